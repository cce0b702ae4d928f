// Optimizers of one model that follow each other, and gradients that come when they must not.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "weft/distributed/ddp.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::optimizer_replaced_test {
namespace {

using test::Stack;

constexpr std::int64_t kBatch = 8;

void backward(const Stack& model, World& w, ParallelOptimizer& optimizer, DType dtype) {
  Tape tape;
  const Tensor loss = test::loss_of(model, test::rows_of(kBatch, w.rank(), w.size(), dtype));
  optimizer.watch(tape);
  loss.backward(test::cotangent(loss, 48));
}

// The norm of one step's gradients and the parameters after it.
std::pair<double, std::vector<Tensor>> step(World& w, DType dtype, const DdpOptions& options,
                                            int optimizers) {
  const DeviceMesh mesh(w);
  Stack model(2, dtype);
  std::unique_ptr<ParallelOptimizer> optimizer;
  for (int i = 0; i < optimizers; ++i)
    optimizer = make_optimizer(model, mesh, {}, optim::AdamWOptions{.lr = 0.1}, options);
  backward(model, w, *optimizer, dtype);
  const bool has_sums = is_half(dtype) || w.size() > 1;
  for (const Tensor& p : model.parameters()) CHECK(p.main_grad().defined() == has_sums);
  const optim::GradClip clip = optimizer->finish(1);
  optimizer->step(clip);
  optimizer->wait();
  std::vector<Tensor> values;
  for (const Tensor& p : model.parameters()) values.push_back(p.detach().clone());
  return {clip.norm.item(), values};
}

}  // namespace

TEST_CASE("optimizer: one that replaces another leaves no trace of it") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool shard : {false, true})
      test::distributed_test({1, 2}, [&](World& w) {
        const auto [norm, values] = step(w, dtype, {.shard = shard}, 1);
        const auto [norm2, values2] = step(w, dtype, {.shard = shard}, 2);
        CHECK(norm > 0);
        CHECK(norm2 == norm);
        for (std::size_t i = 0; i < values.size(); ++i)
          CHECK(test::different_bits(values2[i], values[i]) == "");
      });
}

TEST_CASE("optimizer: the earlier of two on one model is refused") {
  for (const int ranks : {1, 2})
    test::distributed_test(ranks, [&](World& w) {
      const DeviceMesh mesh(w);
      Stack model(1, DType::bf16);
      const auto make = [&] { return make_optimizer(model, mesh, {}, optim::AdamWOptions{}, {}); };
      const auto first = make(), second = make();
      backward(model, w, *second, DType::bf16);
      CHECK(second->finish(1).norm.item() > 0);
      CHECK(test::error_of([&] { first->finish(1); })
                .ends_with(" must have the main_grad of this object, got that of a later optimizer "
                           "or none"));
    });
}

TEST_CASE("optimizer: without gradients the norm is 0 on any number of ranks") {
  for (const DType dtype : {DType::f32, DType::bf16})
    test::distributed_test({1, 2}, [&](World& w) {
      const DeviceMesh mesh(w);
      Stack model(1, dtype);
      const auto optimizer = make_optimizer(model, mesh, {}, optim::AdamWOptions{.lr = 0.1}, {});
      const Tensor before = model.parameters()[0].detach().clone();
      const optim::GradClip clip = optimizer->finish(1);
      CHECK(clip.norm.item() == 0);
      CHECK(clip.scale.item() == 1);
      optimizer->step(clip);
      CHECK(test::different_bits(model.parameters()[0].detach(), before) == "");
    });
}

TEST_CASE("optimizer: f64 parameters beside 16-bit ones have f64 gradient sums") {
  test::distributed_test({1, 2}, [](World& w) {
    const DeviceMesh mesh(w);
    Stack model(2, DType::bf16);
    model.layers[1].to(DType::f64);
    const auto optimizer = make_optimizer(model, mesh, {}, optim::AdamWOptions{.lr = 0.1}, {});
    for (const Tensor& p : model.parameters())
      CHECK(p.main_grad().dtype() == (p.dtype() == DType::f64 ? DType::f64 : DType::f32));
  });
}

TEST_CASE("ddp: a backward between that of watch() and finish() is refused") {
  run_ranks(1, [](World& w) {
    const DeviceMesh mesh(w);
    Stack model(1);
    Ddp ddp(model, mesh);
    const auto backward = [&](bool watched) {
      Tape tape;
      const Tensor loss = test::loss_of(model, test::rows_of(4, 0, 1));
      if (watched) ddp.watch(tape);
      loss.backward();
    };
    backward(true);
    backward(false);
    CHECK(test::error_of([&] { ddp.finish(); })
              .starts_with("ddp: no backward must run between that of watch() and finish(), but "
                           "one wrote the gradient of layers."));
    ddp.zero_grad();  // the next step works
    backward(true);
    CHECK(ddp.finish().norm.item() > 0);
  });
}

}  // namespace weft::distributed::optimizer_replaced_test
