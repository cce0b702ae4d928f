#include "weft/tests/generated/program_ops.h"

namespace weft::generated {

std::span<const ProgramOp> program_ops() {
  static const std::vector<ProgramOp> all = [] {
    std::vector<ProgramOp> found;
    for (const auto& kind :
         {elementwise_ops(), axis_ops(), view_ops(), fused_ops(), sequence_ops()})
      found.insert(found.end(), kind.begin(), kind.end());
    return found;
  }();
  return all;
}

}  // namespace weft::generated
