#pragma once
#include "weft/distributed/pieces.h"
#include "weft/nn/gpt.h"

namespace weft::examples {

/// Throws Error unless the files hold the tensors of this model in their shapes, and no others. Of
/// the files only headers are read, and the model is never made: what a file says of its sizes is
/// held against what it has before anything is allocated.
void check_weights(const nn::GptConfig& config, const distributed::PieceFiles& files);

}  // namespace weft::examples
