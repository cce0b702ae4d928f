#include "weft/core/shape.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft {

void throw_too_many_dims(std::int64_t n) {
  detail::raise(Fault::user, "shape: at most {} axes, got {}", {kMaxDims, n});
}

std::string to_string(const Shape& s) {
  std::string out = "[";
  for (int i = 0; i < s.size(); ++i) {
    if (i) out += ", ";
    out += std::to_string(s[i]);
  }
  return out + "]";
}

std::int64_t checked_numel(const char* op, const Shape& shape) {
  constexpr std::int64_t kMost = std::int64_t{1} << 56;
  std::int64_t n = 1;
  bool empty = false;
  for (const std::int64_t d : shape) {
    check(d >= 0, "{}: every axis must be at least 0, got shape {}", op, shape);
    if (d == 0)
      empty = true;
    else
      check(!__builtin_mul_overflow(n, d, &n) && n < kMost, "{}: too many elements, got shape {}",
            op, shape);
  }
  return empty ? 0 : n;
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  const int n = std::max(a.size(), b.size());
  Shape out = Shape::filled(n, 1);
  for (int i = 1; i <= n; ++i) {
    const std::int64_t da = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t db = i <= b.size() ? b[b.size() - i] : 1;
    check(da == db || da == 1 || db == 1, "{}: shapes must broadcast, got {} and {}", op, a, b);
    out[n - i] = da == 1 ? db : da;
  }
  return out;
}

int normalize_dim(const char* op, std::int64_t dim, int ndim) {
  const int n = std::max(ndim, 1);  // a scalar may be indexed as if it had one axis
  check(dim >= -n && dim < n, "{}: dim must be in [{}, {}), got {}", op, -n, n, dim);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

}  // namespace weft
