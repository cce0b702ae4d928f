#include "weft/distributed/sum_ranks.h"

#include <algorithm>
#include <type_traits>

#include "weft/core/cpu/stream_copy.h"
#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr std::int64_t kBlock = 1024;  // values that stay in the L1 cache together with the inputs

template <Reduce how, class A, class T>
void add_to(A* sum, const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = add_rank(how, sum[i], static_cast<A>(x[i]));
}

template <class A, class T>
void add_to(A* sum, const T* x, std::int64_t n, Reduce reduce) {
  if (reduce == Reduce::sum) return add_to<Reduce::sum>(sum, x, n);
  if (reduce == Reduce::max) return add_to<Reduce::max>(sum, x, n);
  add_to<Reduce::min>(sum, x, n);
}

template <class T>
void combine(Reduce reduce, void* out, std::span<const void* const> parts, std::int64_t count) {
  using A = Compute<T>;
  alignas(64) A sum[kBlock];
  // What waits for a large sum beside its parts reads it later.
  [[maybe_unused]] const bool streams =
      static_cast<std::size_t>(count) * sizeof(T) >= cpu::kStreamBytes &&
      std::find(parts.begin(), parts.end(), out) == parts.end();
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto part = [&](std::size_t p) { return static_cast<const T*>(parts[p]) + begin; };
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(part(0)[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) add_to(sum, part(p), n, reduce);
    T* to = static_cast<T*>(out) + begin;
    if constexpr (std::is_same_v<A, T>)
      if (streams) {
        cpu::stream_copy(to, sum, static_cast<std::size_t>(n) * sizeof(T));
        continue;
      }
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
