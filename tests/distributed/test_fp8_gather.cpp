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

// "" if the codes and scales are those of the whole weight, which the other model has.
std::string differences(const nn::Fp8Layer& alone, const nn::Fp8Layer& plain,
                        const fp8::Recipe& recipe) {
  const Tensor& weight = plain.weight;
  const std::int64_t groups = weight.ndim() == 3 ? weight.dim(0) : 1, columns = weight.dim(-1);
  const Tensor rows = weight.detach().view({weight.numel() / columns, columns});
  const RowGroups each{.count = groups, .each = rows.dim(0) / groups};
  const fp8::Quantized want =
      recipe.scaling == fp8::Scaling::delayed
          ? fp8::quantize_delayed(rows, each, fp8::kForward, plain.state->delayed,
                                  fp8::Operand::weight, false)
          : fp8::quantize(rows, each, fp8::kForward, recipe.numbers());
  const fp8::Quantized* const got = alone.state->weight.held();
  if (!got) return "no codes";
  return different_bits(got->rows, want.rows) + different_bits(got->inverse, want.inverse);
}

// What a forward pass does to the history of delayed scales, and the end of the step.
void use(Model& model, const fp8::Recipe& recipe, ProcessGroup& all) {
  if (recipe.scaling != fp8::Scaling::delayed) return;
  for (const nn::Fp8Layer& layer : nn::fp8_layers(model)) {
    const Tensor& w = layer.weight;
    const auto given = layer.state->weight.given(w, false, {.each = w.numel() / w.dim(-1)});
    fp8::count_amax(layer.state->delayed, fp8::Operand::weight,
                    given ? given->amax : w.detach().to(DType::f32).abs().view({w.numel()}));
  }
  nn::Fp8Step(model, recipe).finish([&](const Tensor& amax) {
    all.at_once().all_reduce(amax, Reduce::max).wait();
  });
}

}  // namespace

TEST_CASE("fp8 gather: codes are those of whole weights, after steps and after writes") {
  test::distributed_test({1, 2, 3}, [](World& w) {
    const DeviceMesh mesh(w);
    for (const fp8::Recipe& recipe :
         {fp8::Recipe{}, fp8::Recipe{.power_of_two = true},
          fp8::Recipe{.scaling = fp8::Scaling::delayed, .history = 3}}) {
      Model alone, plain;
      for (Model* m : {&alone, &plain}) nn::prepare_fp8(*m, recipe);
      Ddp codes(alone, mesh, {}, {.bucket_size = 1000, .shard = true, .fp8_weights = recipe}),
          values(plain, mesh, {}, {.bucket_size = 1000, .shard = true});
      ShardedOptimizer a(codes, optim::AdamWOptions{.lr = 0.1}),
          b(values, optim::AdamWOptions{.lr = 0.1});
      const auto same = [&] {
        a.wait();
        b.wait();
        const auto left = nn::fp8_layers(alone), right = nn::fp8_layers(plain);
        for (std::size_t i = 0; i < left.size(); ++i) {
          CHECK(differences(left[i], right[i], recipe) == "");
          if (recipe.scaling == fp8::Scaling::delayed)
            CHECK(different_bits(left[i].state->delayed.history, right[i].state->delayed.history) ==
                  "");
        }
        CHECK(alone.up.weight.storage()->released);
        CHECK(!alone.up.bias.storage()->released);
      };
      same();
      for (int step = 0; step < 3; ++step) {
        for (const auto& [model, ddp, adam] :
             {std::tuple(&alone, &codes, &a), std::tuple(&plain, &values, &b)}) {
          use(*model, recipe, w.all());
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

TEST_CASE("fp8 gather: blocks are refused") {
  run_ranks(2, [](World& w) {
    const DeviceMesh mesh(w);
    Model model;
    const DdpOptions options{.shard = true,
                             .fp8_weights = fp8::Recipe{.scaling = fp8::Scaling::block}};
    CHECK(test::error_of([&] { Ddp(model, mesh, {}, options); }) ==
          "ddp: fp8_weights needs a recipe with one scale for a weight, got blocks");
  });
}

}  // namespace weft::distributed::fp8_gather_test
