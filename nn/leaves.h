#pragma once
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Differences between the leaves of a recording and the parameters that visit() lists.
struct LeafReport {
  std::vector<Tensor> strangers;    ///< used and requiring a gradient, but not listed by visit()
  std::vector<std::string> unused;  ///< listed, but not used by any op on the tape
  /// "", or one sentence about the first stranger, else about the first unused parameter.
  std::string text() const;
};

/// Compares the leaves of a forward pass with the module's parameters. Without this check a member
/// that visit() omits gets a gradient but no update, silently. Call it between forward and
/// backward; once is enough.
LeafReport compare_leaves(const Tape& tape, const Module& module);

}  // namespace weft::nn
