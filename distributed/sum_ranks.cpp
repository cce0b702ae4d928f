#include "weft/distributed/sum_ranks.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr std::int64_t kBlock = 1024;  // values that stay in the L1 cache together with the inputs

template <Reduce how, class A>
void add_to(A* sum, const A* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = add_rank(how, sum[i], x[i]);
}

template <class A>
void add_to(A* sum, const A* x, std::int64_t n, Reduce reduce) {
  if (reduce == Reduce::sum) return add_to<Reduce::sum>(sum, x, n);
  if (reduce == Reduce::max) return add_to<Reduce::max>(sum, x, n);
  add_to<Reduce::min>(sum, x, n);
}

template <class T>
void combine(Reduce reduce, void* out, std::span<const void* const> parts, std::int64_t count) {
  using A = Compute<T>;
  A sum[kBlock], next[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto load = [&](std::size_t part, A* to) {
      const T* from = static_cast<const T*>(parts[part]) + begin;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
    };
    load(0, sum);
    for (std::size_t p = 1; p < parts.size(); ++p) {
      load(p, next);
      add_to(sum, next, n, reduce);
    }
    T* to = static_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sum[i]);
  }
}

}  // namespace

void combine_ranks(DType dtype, Reduce reduce, void* out, std::span<const void* const> parts,
                   std::int64_t count) {
  dispatch_numeric(
      dtype, [&]<class T>() { combine<T>(reduce, out, parts, count); }, "reduction over ranks");
}

}  // namespace weft::distributed
