// A parameter without a gradient in a step keeps the bits of its value and state: frozen parameters
// and those that the step does not use, in every layout. The others are compared with one process
// without Ddp and without main_grad.
#include <doctest/doctest.h>

#include <set>

#include "weft/distributed/parallel_optimizer.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::frozen_test {
namespace {

using test::cotangent;
using test::Stack;

constexpr std::int64_t kBatch = 24;
constexpr double kCount = kBatch * 6;
constexpr int kSteps = 5, kMicros = 2;

// Layer 1 is used in every second step, only by the first micro-batch of rank 0. Layer 2 is used in
// the first two steps, which give it momentum. Layer 3 is never used.
bool uses_layer_1(int step) { return step % 2 == 0; }
bool uses_layer_2(int step) { return step < 2; }

struct Partly : Stack {
  explicit Partly(DType dtype) : Stack(4, dtype) { layers[0].up.weight.set_requires_grad(false); }
  Tensor loss(Tensor x, int rank, int micro, int step) const {
    x = add(x, layers[0](x));
    if (uses_layer_1(step) && rank == 0 && micro == 0) x = add(x, layers[1](x));
    if (uses_layer_2(step)) x = add(x, layers[2](x));
    return sum(square(x));
  }
  Tensor loss_of_rows(int rank, int ranks, int micro, int step) const {
    const Tensor x =
        test::rows_of(kBatch, rank, ranks, layers[0].up.weight.dtype(), micro, kMicros);
    return loss(x.mul_(1 + 0.1 * step), rank, micro, step);
  }
};

bool has_gradient(const std::string& name, int step) {
  if (name.starts_with("layers.0.up.weight") || name.starts_with("layers.3.")) return false;
  if (name.starts_with("layers.1.")) return uses_layer_1(step);
  if (name.starts_with("layers.2.")) return uses_layer_2(step);
  return true;
}

const optim::AdamWOptions kAdam{.lr = 1e-2, .weight_decay = 0.1};
const optim::SgdOptions kSgd{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1};

std::unique_ptr<optim::Optimizer> plain(const Partly& model, const optim::AdamWOptions& o) {
  return std::make_unique<optim::AdamW>(model.named_parameters(), o);
}
std::unique_ptr<optim::Optimizer> plain(const Partly& model, const optim::SgdOptions& o) {
  return std::make_unique<optim::Sgd>(model.named_parameters(), o);
}

// The parameters after each step of one process that does the work of all ranks.
template <class Options>
std::vector<std::vector<Tensor>> one_process(int ranks, DType dtype, const Options& options) {
  Partly model(dtype);
  const auto optimizer = plain(model, options);
  std::vector<std::vector<Tensor>> out;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int micro = 0; micro < kMicros; ++micro)
      for (int rank = 0; rank < ranks; ++rank) {
        Tape tape;
        const Tensor loss = model.loss_of_rows(rank, ranks, micro, step);
        loss.backward(cotangent(loss, kCount));
      }
    optimizer->step();
    out.push_back(test::copies(model.parameters()));
  }
  return out;
}

StateDict copies(const StateDict& state) {
  StateDict out;
  for (const auto& [name, t] : state) out[name] = t.clone();
  return out;
}

// "" when exactly the parameters without a gradient in this step kept their state.
std::string wrong_states(const StateDict& before, const StateDict& after, int step) {
  for (const auto& [name, t] : after) {
    if (name == "step" || t.numel() == 0) continue;
    const bool same = test::different_bits(t, before.at(name)) == "";
    if (same == has_gradient(name, step)) return name;
  }
  return "";
}

template <class Options>
void check_layout(World& w, bool shard, DType dtype, const Options& options) {
  CAPTURE(shard);
  const auto want = one_process(w.size(), dtype, options);
  Partly model(dtype);
  const NamedTensors parameters = model.named_parameters();
  const DeviceMesh mesh(w);
  Ddp ddp(model, mesh, {}, {.bucket_size = 200, .shard = shard});
  const auto optimizer = make_optimizer(ddp, options);
  const optim::Optimizer& inner = dynamic_cast<const RangeOptimizer&>(*optimizer).inner();
  std::set<std::int64_t> collectives;
  for (int step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    const std::vector<Tensor> before = test::copies(model.parameters());
    const StateDict state = copies(inner.state_dict());
    const std::int64_t calls = w.recorder().count();
    for (int micro = 0; micro < kMicros; ++micro) {
      Tape tape;
      const Tensor loss = model.loss_of_rows(w.rank(), w.size(), micro, step);
      if (micro + 1 == kMicros) ddp.watch(tape);
      loss.backward(cotangent(loss, kCount));
    }
    optimizer->step(ddp.finish());
    optimizer->wait();
    collectives.insert(w.recorder().count() - calls);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(parameters[i].name);
      const Tensor& p = parameters[i].tensor;
      if (has_gradient(parameters[i].name, step))
        CHECK(test::different_bits(p, before[i]) != "");
      else
        CHECK(test::different_bits(p, before[i]) == "");
      if (is_half(dtype)) continue;  // the reference sums in that dtype
      CHECK(test::mismatch(p, want[static_cast<std::size_t>(step)][i],
                           dtype == DType::f64 ? 1e-11 : 2e-5) == "");
    }
    CHECK(wrong_states(state, inner.state_dict(), step) == "");
    optimizer->zero_grad();
  }
  CHECK(collectives.size() == 1);
}

}  // namespace

TEST_CASE("frozen: Ddp and ZeRO keep parameters without a gradient on all ranks") {
  test::distributed_test({1, 2, 4}, [](World& w) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const bool shard : {false, true}) {
        check_layout(w, shard, dtype, kAdam);
        check_layout(w, shard, dtype, kSgd);
      }
  });
}

TEST_CASE("frozen: one rank with main_grad and every form of master weights") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto form :
         {optim::MasterWeights::none, optim::MasterWeights::f32, optim::MasterWeights::remainder}) {
      if (dtype == DType::f16 && form == optim::MasterWeights::remainder) continue;
      Partly model(dtype);
      const NamedTensors parameters = model.named_parameters();
      for (const NamedTensor& p : parameters)
        p.tensor.set_main_grad(Tensor::zeros(p.tensor.shape(), DType::f32));
      optim::AdamW adam(parameters, {.lr = 1e-1, .weight_decay = 0.1, .master_weights = form});
      adam.zero_grad();
      for (int step = 0; step < kSteps; ++step) {
        CAPTURE(step);
        const std::vector<Tensor> before = test::copies(model.parameters());
        const StateDict state = copies(adam.state_dict());
        for (int micro = 0; micro < kMicros; ++micro) {
          Tape tape;
          const Tensor loss = model.loss_of_rows(0, 1, micro, step);
          loss.backward(cotangent(loss, kCount));
        }
        adam.step(optim::measure_clip(parameters, 1));
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          CAPTURE(parameters[i].name);
          const bool moved = test::different_bits(parameters[i].tensor, before[i]) != "";
          CHECK(moved == has_gradient(parameters[i].name, step));
        }
        CHECK(wrong_states(state, adam.state_dict(), step) == "");
        adam.zero_grad();
      }
    }
}

TEST_CASE("frozen: a main_grad written by hand counts as a gradient") {
  Tensor p = Tensor::ones({3}).set_requires_grad();
  optim::Sgd sgd({{"p", p}}, {.lr = 1});
  p.set_main_grad(Tensor::zeros({3}));
  sgd.zero_grad();
  sgd.step();
  CHECK(test::different_bits(p, Tensor::ones({3})) == "");
  p.main_grad().fill_(2);
  sgd.step();
  CHECK(test::different_bits(p, Tensor::full({3}, -1)) == "");
  CHECK(test::error_of([] { Tensor::ones({3}).set_main_grad_filled(true); }) ==
        "set_main_grad_filled: the tensor must have a main_grad, got none");
}

}  // namespace weft::distributed::frozen_test
