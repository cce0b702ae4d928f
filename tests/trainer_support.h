#pragma once
// A small model with its data, loss and options, for tests of the trainer.
#include <string>

#include "weft/core/random.h"
#include "weft/io/json.h"
#include "weft/nn/linear.h"
#include "weft/train/trainer.h"

namespace weft::train::trainer_test {

struct TwoLayers : nn::Module {
  nn::Linear up{3, 8}, down{8, 4};
  Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
  void visit(nn::Visitor& v) override {
    v("up", up);
    v("down", down);
  }
};

constexpr std::int64_t kPoints = 60;

inline Tensor points() {
  const Tensor x = Tensor::empty({kPoints, 3});
  normal_(x, {5, 0, 0});
  return x;
}

// Every third point's class is ignored.
inline data::TensorDataset labelled(bool ignores = true) {
  const Tensor classes = Tensor::empty({kPoints}, DType::i32);
  for (std::int64_t i = 0; i < kPoints; ++i)
    classes.data<std::int32_t>()[i] =
        ignores && i % 3 == 0 ? data::kIgnore : static_cast<std::int32_t>(i * i % 4);
  return {points(), classes};
}

inline Loss loss_of(const TwoLayers& model, const data::Batch& b) {
  Loss loss = classify(model(b.inputs), b.targets);
  loss.metrics.push_back({"half", Tensor::full({}, 3), Tensor::full({}, 6)});
  return loss;
}

inline Options options_of(const std::string& out, std::int64_t steps = 6) {
  Options o{.out = out, .steps = steps, .batch = 12};
  o.optimizer.schedule = optim::Schedule::Kind::constant;
  o.optimizer.warmup = 0;
  o.optimizer.lr = 0.02;
  o.run.log_every = 1000;
  return o;
}

inline double number(const io::Json& row, const char* key) { return row.at(key).as_double(); }

}  // namespace weft::train::trainer_test
