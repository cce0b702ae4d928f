#include <iostream>

#include "weft/weft.h"
using namespace weft;

struct TwoLayers : nn::Module {  // a model: members, a forward pass, and their names
  nn::Linear up{2, 32}, down{32, 1};
  Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
  void visit(nn::Visitor& v) override { v("up", up), v("down", down); }
};

int main() {
  TwoLayers model;
  nn::init(model, /*seed=*/1);
  optim::AdamW optimizer(model, {.lr = 0.01});
  const Tensor x = rand_uniform({256, 2}, -1, 1);
  const Tensor y = x.select(1, 0).unsqueeze(1) * x.select(1, 1).unsqueeze(1);  // learn x0 * x1
  for (int step = 0; step <= 500; ++step) {
    Tape tape;  // records until the end of this scope
    const Tensor loss = mse_loss(model(x), y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 100 == 0) std::cout << "step " << step << "  loss " << loss.item() << '\n';
  }
}
