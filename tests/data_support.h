#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

#include "weft/autograd/values.h"

/// Token ids of the tests of data/.
namespace weft::test {

using Ints = std::vector<std::int32_t>;

inline Ints ints(const Tensor& t) { return to_vector<std::int32_t>(t); }

/// 0, 1, ..., n - 1.
inline Ints count_to(int n) {
  Ints v(static_cast<std::size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

}  // namespace weft::test
