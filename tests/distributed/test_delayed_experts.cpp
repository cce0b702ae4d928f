// Gradients of experts' weights that backward computes while those of tokens are in flight.
#include <doctest/doctest.h>

#include <array>
#include <optional>

#include "weft/autograd/fp8.h"
#include "weft/autograd/recompute.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/warm_ranks.h"

namespace weft::distributed::delayed_experts_test {
namespace {

using nn::MoE;
using nn::MoeOptions;
using test::different_bits;
using test::Grid;
using test::random;

constexpr std::int64_t kDim = 16;

MoeOptions layer() {
  return {.experts = 4,
          .router = {.route = {.topk = 2}, .init = nn::Init::normal(1)},
          .ffn = 32,
          .activation = nn::Activation::gelu_tanh,
          .bias = true,
          .init = nn::Init::normal(0.4),
          .proj_init = nn::Init::normal(0.4)};
}

MoE sharded(const MoeOptions& o, const DeviceMesh& mesh, Dispatcher kind, bool delay,
            DType dtype = DType::f32) {
  MoE m(kDim, o);
  nn::init(m, 5);
  m.to(dtype);
  shard_experts(
      m, mesh,
      {.dispatcher = kind, .delay_gradients = delay, .sequence_parallel = mesh.tp().size() > 1});
  return m;
}

/// y, dx and the gradients of all parameters, of two layers in a row.
TensorList gradients(const MoE& a, const MoE& b, const Tensor& x, bool again,
                     const std::optional<fp8::Recipe>& recipe) {
  const fp8::Autocast scope(recipe);
  Tensor in = x.clone();
  in.set_requires_grad();
  TensorList wanted{in};
  for (const MoE* m : {&a, &b})
    for (const Tensor& p : m->parameters()) wanted.push_back(p);
  const auto both = [&](const Tensor& t) { return b(a(t).y).y; };
  Tape tape;
  const Tensor y = again ? recompute(both, in) : both(in);
  TensorList out = tape.gradients(y, wanted, random(y.shape(), 3, y.dtype()));
  out.push_back(y.detach());
  return out;
}

}  // namespace

TEST_CASE("delayed weight gradients change no bit in any layout") {
  struct Form {
    double capacity = 0;
    bool shared = false, again = false, discards = false;
    std::optional<fp8::Recipe> recipe = {};
  };
  const Form forms[] = {{},
                        {.shared = true, .again = true, .discards = true},
                        {.capacity = 1.5},
                        {.recipe = fp8::Recipe{}},
                        {.recipe = fp8::Recipe{.backward = fp8::BackwardOverride::high_precision}}};
  for (const Grid& grid : {Grid{2, {.ep = 2, .etp = 1}}, Grid{4, {.ep = 2, .etp = 2}},
                           Grid{4, {.tp = 2, .ep = 2, .etp = 2}}, Grid{2, {.ep = 1, .etp = 2}}})
    test::distributed_test(grid.ranks, [&](World& w) {
      const DeviceMesh mesh(w, grid.degrees);
      for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
        for (const Form& f : forms) {
          MoeOptions o = layer();
          o.router.capacity_factor = f.capacity;
          o.shared_ffn = f.shared ? 16 : 0;
          o.recompute = f.discards;
          const DType dtype = f.recipe ? DType::bf16 : DType::f32;
          const Tensor x = random({48, kDim}, 10 + static_cast<std::uint64_t>(w.rank()), dtype);
          std::array<TensorList, 2> results;
          for (const bool delay : {false, true}) {
            const MoE a = sharded(o, mesh, kind, delay, dtype),
                      b = sharded(o, mesh, kind, delay, dtype);
            CHECK(shard_of(a).delay_gradients == delay);
            results[delay] = gradients(a, b, x, f.again, f.recipe);
          }
          for (int i = 0; i < results[0].size(); ++i)
            CHECK(different_bits(results[0][i], results[1][i]) == "");
        }
    });
}

TEST_CASE("delayed weight gradients: computed after the gradients of tokens have left") {
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    for (const bool delay : {false, true})
      test::distributed_test(2, [&](World& w) {
        const DeviceMesh mesh(w, {.ep = 2});
        const MoE m = sharded(layer(), mesh, kind, delay);
        Tensor x = random({3, kDim}, 1, DType::f32);
        x.set_requires_grad();
        std::int64_t before[2] = {}, at_end = 0;  // collectives before up and down are ready
        Tape tape;
        tape.on_grad_ready([&](const Tensor& leaf) {
          if (leaf.same(m.experts.up)) before[0] = w.recorder().count();
          if (leaf.same(m.experts.down)) before[1] = w.recorder().count();
        });
        const Tensor y = m(x).y;
        y.backward(y.detach());
        at_end = w.recorder().count();
        // The gradients of tokens and of probabilities.
        CHECK(before[0] == (delay ? at_end : at_end - 2));
        CHECK(before[1] == (delay ? at_end : at_end - 2));
      });
}

TEST_CASE("delayed weight gradients: a warm pass allocates nothing") {
  if (test::launched_world()) return;  // MPI itself allocates
  run_ranks(2, [&](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    const MoE m = sharded(layer(), mesh, Dispatcher::all_to_all, true);
    Tensor x = random({6, kDim}, 3, DType::f32);
    x.set_requires_grad();
    const std::vector<Tensor> parameters = m.parameters();
    test::check_warm(w, [&] {
      Tape tape;
      const Tensor y = m(m(x).y).y;
      y.backward(y.detach());
      for (const Tensor& t : parameters) Tensor(t).set_grad({});
      x.set_grad({});
    });
  });
}

}  // namespace weft::distributed::delayed_experts_test
