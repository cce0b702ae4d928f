#pragma once
// The leaves of the tests of tapes.
#include <cstdint>

#include "weft/tests/support.h"

namespace weft::tape_test {

inline Tensor leaf(const Shape& shape, std::uint64_t seed = 1) {
  return test::random(shape, seed).set_requires_grad();
}

}  // namespace weft::tape_test
