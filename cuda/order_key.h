#pragma once
// Maps numbers to unsigned keys with the same order.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "weft/cuda/math.h"

namespace weft::cuda {

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// Smaller keys come first. NaN is the largest value; signed zeros are equal. No floating-point
/// value has key 0 in ascending order.
template <class T>
__device__ inline Key<T> key_of(T x, bool descending) {
  using K = Key<T>;
  constexpr K kSign = K{1} << (8 * sizeof(K) - 1);
  K key;
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<K>(x);
    if constexpr (std::is_signed_v<T>) key ^= kSign;
  } else {
    const Compute<T> v = widen(x) + Compute<T>(0);  // -0 becomes 0
    const K bits = std::bit_cast<K>(v);
    key = v != v ? ~K{0} : bits & kSign ? ~bits : bits | kSign;
  }
  return descending ? static_cast<K>(~key) : key;
}

}  // namespace weft::cuda
