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
  switch (dtype) {
    case DType::f32:
      return combine<float>(reduce, out, parts, count);
    case DType::f64:
      return combine<double>(reduce, out, parts, count);
    case DType::bf16:
      return combine<bf16>(reduce, out, parts, count);
    case DType::i32:
      return combine<std::int32_t>(reduce, out, parts, count);
    case DType::i64:
      return combine<std::int64_t>(reduce, out, parts, count);
    case DType::u8:
      return combine<std::uint8_t>(reduce, out, parts, count);
    default:
      throw_bad_dtype("reduction over ranks", dtype, "f32, f64, bf16, i32, i64, u8");
  }
}

}  // namespace weft::distributed
