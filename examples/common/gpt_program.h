#pragma once
#include "weft/examples/common/gpt_options.h"

namespace weft::examples {

/// Trains the model that the options describe on the text that they name, on all of their ranks.
/// Returns the status to exit with. Throws Error, before anything is allocated by the size of a
/// setting, when one does not fit the others, the data or the machine.
int train_gpt(GptOptions options);

/// main() of train_gpt and train_moe, which differ in their defaults.
int train_gpt_main(GptOptions defaults, int argc, char** argv);

}  // namespace weft::examples
