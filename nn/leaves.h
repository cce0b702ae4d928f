#pragma once
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Where a recording and a module's visit() disagree about what is trained.
struct LeafReport {
  std::vector<Tensor> strangers;    ///< used and requiring a gradient, but not listed by visit()
  std::vector<std::string> unused;  ///< listed, but no op on the tape used them
  /// "" or one sentence for the first stranger, else for the first unused parameter.
  std::string text() const;
};

/// Compares the leaves of a forward pass with the parameters of the module it ran. A member that
/// visit() forgets is otherwise silent: it gets a gradient and never an update. To be called
/// between forward and backward, once is enough.
LeafReport compare_leaves(const Tape& tape, const Module& module);

}  // namespace weft::nn
