// Trains a module that is no language model: which of three spiral arms is a point on?
//   train_mlp --out run          train_mlp --ranks 3 --out run          mpirun -n 2 train_mlp --out
//   run
#include <cmath>

#include "weft/train.h"
#include "weft/weft.h"

using namespace weft;

struct Classifier : nn::Module {
  nn::Linear in{2, 64}, middle{64, 64}, out{64, 3};
  Tensor operator()(const Tensor& x) const { return out(gelu(middle(gelu(in(x))))); }
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("middle", middle);
    v("out", out);
  }
};

data::TensorDataset spirals(std::int64_t points, std::uint64_t seed) {
  const Tensor at = Tensor::empty({points, 2}), arm = Tensor::empty({points}, DType::i32);
  normal_(at, {seed, 0, 0}, 0, 0.2);
  for (std::int64_t i = 0; i < points; ++i) {
    float* const xy = at.data<float>() + 2 * i;
    const double radius = double(i) / double(points);
    const double angle = 4 * radius + 2.0944 * double(i % 3) + xy[0];
    xy[0] = float(radius * std::sin(angle));
    xy[1] = float(radius * std::cos(angle));
    arm.data<std::int32_t>()[i] = std::int32_t(i % 3);
  }
  return {at, arm};
}

int main(int argc, char** argv) {
  const train::Options defaults{
      .out = "mlp", .steps = 300, .batch = 96, .optimizer = {.lr = 1e-2}, .program = "train_mlp"};
  return train::launch(
      "Trains a classifier of points.", defaults, argc, argv,
      [](const train::Options& options, const train::Ranks& ranks) {
        Classifier model;
        const auto loss = [&](const data::Batch& b) -> train::Loss {
          const Tensor hits = Tensor::empty(b.targets.shape(), DType::boolean, b.targets.device());
          return {.sum = cross_entropy(model(b.inputs), b.targets,
                                       {.reduction = Reduction::sum, .hits = hits}),
                  .metrics = {{"accuracy", sum(hits), {}, "accuracy"}}};
        };
        train::Trainer trainer(model, options, loss, ranks);
        return trainer.fit(spirals(3000, 1), spirals(600, 2));
      });
}
