// Trains a GPT on text: train_gpt --data book.txt --out run. --help lists every option.
#include "weft/examples/common/gpt_program.h"

int main(int argc, char** argv) {
  weft::examples::GptOptions defaults;
  defaults.program = "train_gpt";
  return weft::examples::train_gpt_main(defaults, argc, argv);
}
