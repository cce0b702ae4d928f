#pragma once
#include "weft/examples/common/gpt_options.h"

namespace weft::examples {

/// Trains the model that the options describe on the text that they name, on all their ranks.
/// Returns the exit status. Throws Error if settings contradict each other, the data or the
/// machine, before allocating anything whose size depends on a setting.
int train_gpt(GptOptions options);

/// The main() of train_gpt and train_moe, which differ in their defaults.
int train_gpt_main(GptOptions defaults, int argc, char** argv);

}  // namespace weft::examples
