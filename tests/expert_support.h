#pragma once
#include "weft/autograd/view.h"
#include "weft/distributed/device_mesh.h"
#include "weft/nn/part.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::test {

/// Ranks, and how they are used.
struct Grid {
  int ranks;
  distributed::Degrees degrees;
};

/// A rank's part of a whole.
inline Tensor part(const Tensor& whole, const nn::Part& p) {
  Tensor own = whole;
  for (const nn::Part::Cut& cut : p.cuts) {
    TensorList pieces;
    for (const auto& [begin, end] : cut.ranges)
      pieces.push_back(own.narrow(cut.axis, begin, end - begin));
    own = cat(pieces, cut.axis);
  }
  return own;
}

}  // namespace weft::test
