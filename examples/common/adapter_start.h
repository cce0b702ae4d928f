#pragma once
#include "weft/examples/common/gpt_options.h"

namespace weft::examples {

/// The a and b of the adapter that --adapter names, by their names in the model: where a run with
/// --lora-rank starts. Nothing without --adapter.
/// Throws Error (Fault::user) if there is none, if a flag of LoRA says another rank, scale or set
/// of layers than the adapter has, if it does not fit the model, and if it belongs to a run with
/// other weights.
StateDict start_of_adapter(const GptOptions& options);

}  // namespace weft::examples
