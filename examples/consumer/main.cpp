// Trains a character model to spell one sentence, and checks that it learned: the smallest program
// that uses tensors, the tape, layers and an optimizer of an installed Weft.
#include <cstdio>
#include <string>

#include "weft/weft.h"
using namespace weft;

int main() {
  const std::string text = "the weft is the thread that crosses the warp. ";
  const auto length = static_cast<std::int64_t>(text.size());
  nn::Gpt model({.layers = 1, .heads = 2, .dim = 32, .seq = length, .vocab = 128});
  nn::init(model, 1);
  optim::AdamW optimizer(model, {.lr = 1e-2});

  Tensor ids = Tensor::empty({1, length}, DType::i32), targets = empty_like(ids);
  for (std::size_t i = 0; i < text.size(); ++i) {
    ids.data<std::int32_t>()[i] = text[i];
    targets.data<std::int32_t>()[i] = text[(i + 1) % text.size()];
  }

  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    Tape tape;
    const Tensor loss = model.loss(model(ids), targets);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f nats per character\n", first, last);
  return last < first / 4 ? 0 : 1;
}
