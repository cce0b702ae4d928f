// Weights that every rank holds as FP8 codes, and their owners as bf16 and f32.
#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "weft/distributed/sharded_optimizer.h"
#include "weft/nn/experts.h"
#include "weft/nn/init.h"
#include "weft/nn/linear.h"
#include "weft/optim/adamw.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::fp8_gather_test {
namespace {

using test::different_bits;

struct Model : nn::Module {
  nn::Linear up{48, 80, {.dtype = DType::bf16}};
  nn::Experts experts{3, 32, 16};
  Model() {
    nn::assign_names(*this);
    nn::init(*this, 7);
    to(DType::bf16);
  }
  void visit(nn::Visitor& v) override {
    v("up", up);
    v("experts", experts);
  }
};

void set_gradients(const Model& model, int rank) {
  std::uint64_t seed = 10 * static_cast<std::uint64_t>(rank);
  for (const Tensor& p : model.parameters()) {
    p.main_grad().copy_(test::random(p.shape(), ++seed, DType::f32));
    p.set_main_grad_filled(true);
  }
}

// "" if the codes and scales are those of the whole weight.
std::string differences(const fp8::LayerState& state, const Tensor& weight,
                        const fp8::Recipe& recipe) {
  const std::int64_t groups = weight.ndim() == 3 ? weight.dim(0) : 1, columns = weight.dim(-1);
  const Tensor rows = weight.detach().view({weight.numel() / columns, columns});
  const fp8::Quantized want = fp8::quantize(rows, {.count = groups, .each = rows.dim(0) / groups},
                                            fp8::kForward, recipe.numbers());
  const fp8::Quantized* const got = state.weight.held();
  if (!got) return "no codes";
  return different_bits(got->rows, want.rows) + different_bits(got->inverse, want.inverse);
}

}  // namespace

TEST_CASE("fp8 gather: codes are those of whole weights, after steps and after writes") {
  test::distributed_test({1, 2, 3}, [](World& w) {
    const DeviceMesh mesh(w);
    for (const bool powers : {false, true}) {
      const fp8::Recipe recipe{.power_of_two = powers};
      Model alone, plain;
      Ddp codes(alone, mesh, {}, {.bucket_size = 1000, .shard = true, .fp8_weights = recipe}),
          values(plain, mesh, {}, {.bucket_size = 1000, .shard = true});
      ShardedOptimizer a(codes, optim::AdamWOptions{.lr = 0.1}),
          b(values, optim::AdamWOptions{.lr = 0.1});
      const auto same = [&] {
        a.wait();
        b.wait();
        CHECK(differences(alone.up.fp8_state, plain.up.weight, recipe) == "");
        CHECK(differences(alone.experts.fp8_up, plain.experts.up, recipe) == "");
        CHECK(differences(alone.experts.fp8_down, plain.experts.down, recipe) == "");
        CHECK(alone.up.weight.storage()->released);
        CHECK(!alone.up.bias.storage()->released);
      };
      same();
      for (int step = 0; step < 3; ++step) {
        for (const auto& [model, ddp, adam] :
             {std::tuple(&alone, &codes, &a), std::tuple(&plain, &values, &b)}) {
          set_gradients(*model, w.rank() + step);
          adam->step(ddp->finish(1.0));
          adam->zero_grad();
        }
        same();
      }
      a.restore_values();
      const std::vector<Tensor> p = alone.parameters(), q = plain.parameters();
      for (std::size_t i = 0; i < p.size(); ++i) CHECK(different_bits(p[i], q[i]) == "");
      for (Model* m : {&alone, &plain}) m->experts.up.mul_(-3);
      a.release_values();
      same();
    }
  });
}

TEST_CASE("fp8 gather: needs scales from the weights themselves") {
  run_ranks(2, [](World& w) {
    const DeviceMesh mesh(w);
    Model model;
    const DdpOptions options{.shard = true,
                             .fp8_weights = fp8::Recipe{.scaling = fp8::Scaling::block}};
    CHECK(test::error_of([&] { Ddp(model, mesh, {}, options); }) ==
          "ddp: fp8_weights needs scales from the tensors themselves");
  });
}

}  // namespace weft::distributed::fp8_gather_test
