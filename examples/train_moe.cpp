// Trains a mixture of experts on text: train_moe --data book.txt --out run. Trainer and options are
// those of train_gpt; this program only sets other defaults, which flags override.
#include "weft/examples/common/gpt_program.h"

int main(int argc, char** argv) {
  weft::examples::GptOptions o;
  o.program = "train_moe";
  o.model.arch = weft::nn::Arch::llama;
  o.model.moe.experts = 8;  // a token uses two of them, and the shared expert
  o.model.moe.router.route.topk = 2;
  o.model.moe.shared_ffn = -1;
  o.model.moe.router.route.score = weft::RouterScore::sigmoid;
  o.balance.aux = weft::examples::Aux::bias;  // no loss: overloaded experts are selected less often
  o.balance.bias_rate = 0.01;                 // a run of a few hundred steps is too short for 0.001
  o.model.mtp.depths = 1;
  return weft::examples::train_gpt_main(o, argc, argv);
}
