// Trains a GPT on text: train_gpt --data book.txt --out run. --help lists every option.
#include "weft/examples/common/trainer.h"

int main(int argc, char** argv) { return weft::train::train_main({}, argc, argv); }
