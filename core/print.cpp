#include <charconv>
#include <cmath>
#include <ostream>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft {
namespace {

constexpr std::int64_t kEdge = 3, kWhole = 8;  // axes longer than kWhole show kEdge at each end

std::string number(double v) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::general, 5);
  return std::string(buffer, end.ptr);
}

std::string element_text(const Tensor& t, std::int64_t at) {
  return dispatch_all(t.dtype(), [&]<class T>() -> std::string {
    const T v = t.data<T>()[at];
    if constexpr (std::is_same_v<T, bool>)
      return v ? "true" : "false";
    else if constexpr (std::is_integral_v<T>)
      return std::to_string(v);
    else
      return number(static_cast<double>(v));
  });
}

void append(std::string& out, const Tensor& t, int axis, std::int64_t at) {
  if (axis == t.ndim()) {
    out += element_text(t, at);
    return;
  }
  const std::int64_t n = t.dim(axis);
  const bool inner = axis + 1 == t.ndim();
  out += '[';
  for (std::int64_t i = 0; i < n; ++i) {
    if (i) out += inner ? ", " : ",\n" + std::string(static_cast<std::size_t>(axis) + 8, ' ');
    if (n > kWhole && i == kEdge) {
      out += "...";
      i = n - kEdge - 1;
      continue;
    }
    append(out, t, axis + 1, at + i * t.strides()[axis]);
  }
  out += ']';
}

}  // namespace

std::string to_string(const Tensor& t) {
  if (!t.defined()) return "tensor(null)";
  std::string out = "tensor(";
  if (t.is_meta() || t.storage()->released)
    out += to_string(t.shape());
  else
    append(out, t.to(kCpu), 0, 0);
  return out + message(", {}, {})", t.dtype(), t.device());
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << to_string(t); }
std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << to_string(s); }
std::ostream& operator<<(std::ostream& out, Device d) { return out << to_string(d); }
std::ostream& operator<<(std::ostream& out, DType t) { return out << name(t); }

}  // namespace weft
