// Trains a module that is not a language model: a classifier of points on three spiral arms. Also
// runs with --ranks 3, or under mpirun.
#include <cmath>

#include "weft/train.h"
#include "weft/weft.h"

using namespace weft;

struct Classifier : nn::Module {
  nn::Linear in{2, 64}, middle{64, 64}, out{64, 3};
  Tensor operator()(const Tensor& x) const { return out(gelu(middle(gelu(in(x))))); }
  void visit(nn::Visitor& v) override { v("in", in), v("middle", middle), v("out", out); }
};

data::TensorDataset spirals(std::int64_t points, std::uint64_t seed) {
  const Tensor at = Tensor::empty({points, 2}), arm = Tensor::empty({points}, DType::i32);
  normal_(at, {seed, 0, 0}, 0, 0.2);
  for (std::int64_t i = 0; i < points; ++i) {
    float* const xy = at.data<float>() + 2 * i;
    const double radius = double(i) / double(points), angle = 4 * radius + 2.0944 * (i % 3) + xy[0];
    xy[0] = float(radius * std::sin(angle));
    xy[1] = float(radius * std::cos(angle));
    arm.data<std::int32_t>()[i] = std::int32_t(i % 3);
  }
  return {at, arm};
}

int main(int argc, char** argv) {
  const train::Options defaults{.out = "mlp", .steps = 300, .batch = 96, .optimizer = {.lr = 1e-2}};
  return train::launch(
      "Trains a classifier.", defaults, argc, argv, [](auto& options, auto& ranks) {
        Classifier model;
        const auto loss = [&](const data::Batch& b) {
          return train::classify(model(b.inputs), b.targets);
        };
        return train::Trainer(model, options, loss, ranks).fit(spirals(3000, 1), spirals(600, 2));
      });
}
