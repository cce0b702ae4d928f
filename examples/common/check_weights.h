#pragma once
#include "weft/distributed/shard_files.h"
#include "weft/nn/gpt.h"

namespace weft::examples {

/// Throws Error unless the files hold exactly the tensors of this model, with their shapes. Reads
/// only the headers, and makes the model on the meta device: sizes that a file claims are checked
/// before anything is allocated.
void check_weights(const nn::GptConfig& config, const distributed::ShardFiles& files);

}  // namespace weft::examples
