// Trains a mixture of experts on text: train_moe --data book.txt --out run. Trainer and options are
// those of train_gpt; this program only sets other defaults, which flags override.
#include "weft/examples/common/gpt_program.h"

int main(int argc, char** argv) {
  weft::examples::GptOptions defaults = weft::examples::moe_defaults();
  defaults.program = "train_moe";
  return weft::examples::train_gpt_main(defaults, argc, argv);
}
