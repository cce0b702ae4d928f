// A training step on a GPU whose batches have further tensors.
#include <doctest/doctest.h>

#include <vector>

#include "weft/nn/linear.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/train/train_step.h"

namespace weft::step_inputs_test {
namespace {

struct Masked : nn::Module {
  nn::Linear in{3, 4};
  Tensor operator()(const Tensor& x, const Tensor& mask) const { return in(x)*mask; }
  void visit(nn::Visitor& v) override { v("in", in); }
};

data::Batch batch_of(std::int64_t step, std::int64_t width = 4) {
  const Tensor classes = Tensor::empty({6}, DType::i32), mask = Tensor::empty({6, width});
  for (std::int64_t i = 0; i < 6; ++i)
    classes.data<std::int32_t>()[i] = static_cast<std::int32_t>((i + step) % 4);
  for (std::int64_t i = 0; i < 6 * width; ++i)
    mask.data<float>()[i] = static_cast<float>((i * step) % 3);
  return {test::random({6, 3}, static_cast<std::uint64_t>(step), DType::f32),
          classes,
          {},
          {},
          {{"mask", mask}}};
}

std::vector<double> losses(const char* device, bool graph) {
  train::Options o{.steps = 6, .batch = 6, .micro_batch = 3};
  o.optimizer.lr = 0.05;
  o.machine.device = device;
  o.machine.graph = graph;
  const train::Ranks alone = train::Ranks::alone(o);
  Masked model;
  nn::init(model, 3);
  train::TrainStep step({.model = model,
                         .loss =
                             [&](const data::Batch& b) {
                               return train::classify(model(b.inputs, b.at("mask")), b.targets);
                             }},
                        o, alone);
  std::vector<double> out;
  for (std::int64_t i = 1; i <= 5; ++i) out.push_back(step(i, batch_of(i)).loss());
  if (graph)
    CHECK(test::error_of([&] { step(6, batch_of(6, 1)); }) ==
          "train step: a graph needs batches of one shape, without positions");
  return out;
}

}  // namespace

TEST_CASE("step_inputs: further tensors of each batch reach a GPU, also in a graph") {
  const std::vector<double> want = losses("cpu", false), eager = losses("cuda", false),
                            graph = losses("cuda", true);
  CHECK(graph == eager);
  for (std::size_t i = 0; i < want.size(); ++i)
    CHECK(eager[i] == doctest::Approx(want[i]).epsilon(1e-5));
}

}  // namespace weft::step_inputs_test
