// Trains a mixture of experts on text: train_moe --data book.txt --out run. The trainer and its
// options are those of train_gpt; what is set here are other defaults, and any flag wins over them.
#include "weft/examples/common/gpt_program.h"

int main(int argc, char** argv) {
  weft::examples::GptOptions o;
  o.program = "train_moe";
  o.model.arch = weft::nn::Arch::llama;
  o.model.moe.experts = 8;  // of which a token uses two, and one more that all tokens use
  o.model.moe.router.route.topk = 2;
  o.model.moe.shared_ffn = -1;
  o.model.moe.router.route.score = weft::RouterScore::sigmoid;
  o.balance.aux = weft::examples::Aux::bias;  // nothing is added to the loss: overused experts are
                                              // chosen less often
  o.balance.bias_rate = 0.01;                 // a run of a few hundred steps has no time for 0.001
  o.model.mtp.depths = 1;
  return weft::examples::train_gpt_main(o, argc, argv);
}
