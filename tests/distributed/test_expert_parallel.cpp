// MoE layers after shard_experts().
#include <doctest/doctest.h>

#include <array>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/warm_ranks.h"

namespace weft::distributed::expert_parallel_test {
namespace {

using nn::Balance;
using nn::Gpt;
using nn::MoE;
using nn::MoeOptions;
using test::different_bits;
using test::error_of;
using test::Grid;
using test::part;
using test::random;

constexpr std::int64_t kDim = 6;
const MoeOptions kLayer{.experts = 4,
                        .router = {.route = {.topk = 3}, .init = nn::Init::normal(1)},
                        .ffn = 4,
                        .activation = nn::Activation::gelu_tanh,
                        .bias = true,
                        .init = nn::Init::normal(0.4),
                        .proj_init = nn::Init::normal(0.4)};

MoE seeded(const MoeOptions& o) {
  MoE m(kDim, o);
  nn::init(m, 5);
  return m;
}

}  // namespace

TEST_CASE("D8: overlapping the shared expert changes no bit") {
  for (const Grid& grid :
       {Grid{1, {.ep = 1, .etp = 1}}, Grid{2, {.ep = 2, .etp = 1}}, Grid{4, {.ep = 4, .etp = 1}},
        Grid{4, {.ep = 2, .etp = 2}}, Grid{8, {.ep = 4, .etp = 2}}})
    test::distributed_test(grid.ranks, [&](World& w) {
      const DeviceMesh mesh(w, grid.degrees);
      MoeOptions o = kLayer;
      o.shared_ffn = 5;
      o.shared_gate = true;
      o.latent = 4;
      const Tensor x = random({3, kDim}, 10 + static_cast<std::uint64_t>(w.rank()), DType::f32);
      std::array<TensorList, 2> results;
      for (const bool overlap : {false, true}) {
        MoE m = seeded(o);
        shard_experts(m, mesh, {.overlap_shared = overlap});
        CHECK(shard_of(m).overlap_shared == (overlap && grid.ranks > 1));
        Tensor in = x.clone();
        in.set_requires_grad();
        TensorList wanted{in};
        for (const Tensor& p : m.parameters()) wanted.push_back(p);
        Tape tape;
        const Tensor y = m(in).y;
        TensorList& r = results[overlap];
        r = tape.gradients(y, wanted, random(y.shape(), 3, DType::f32));
        r.push_back(y.detach());
      }
      for (int i = 0; i < results[0].size(); ++i)
        CHECK(different_bits(results[0][i], results[1][i]) == "");
    });
}

TEST_CASE("expert parallelism: the shared expert overlaps with dispatch in forward and backward") {
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    MoeOptions o = kLayer;
    o.shared_ffn = 5;
    MoE m = seeded(o);
    shard_experts(m, mesh);
    Tensor x = random({3, kDim}, 1, DType::f32);
    x.set_requires_grad();
    const Tensor shared = m.shared->parameters().front(), other = m.experts.parameters().front();
    std::int64_t by_shared = 0, by_other = 0;  // collectives before each gradient is ready
    Tape tape;
    tape.on_grad_ready([&](const Tensor& leaf) {
      if (leaf.impl() == shared.impl()) by_shared = w.recorder().count();
      if (leaf.impl() == other.impl()) by_other = w.recorder().count();
    });
    const Tensor y = m(x).y;
    const std::string record = tape.print();
    CAPTURE(record);
    const std::size_t departure = record.find("send_tokens"), mlp = record.find("mlp"),
                      arrival = record.find("receive_tokens");
    CHECK(arrival != std::string::npos);
    CHECK(departure < mlp);
    CHECK(mlp < arrival);
    y.backward(y.detach());
    // In between, the gradients of tokens and probabilities were sent.
    CHECK(by_other > 0);
    CHECK(by_shared == by_other + 2);
  });
}

TEST_CASE("expert parallelism: every layout initialises the same model in memory and on meta") {
  test::distributed_test(4, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2, .etp = 2});
    const nn::GptConfig tiny{.arch = nn::Arch::llama,
                             .layers = 2,
                             .heads = 2,
                             .dim = 8,
                             .seq = 6,
                             .vocab = 13,
                             .mtp = {.depths = 1},
                             .moe = {.experts = 4, .ffn = 6}};
    Gpt whole(tiny), cut(tiny);
    nn::init(whole, 7);
    nn::init(cut, 7);
    const Layout layout = shard_experts(cut, mesh);
    nn::DeviceScope on_meta(kMeta);
    Gpt made(tiny);
    shard_experts(made, mesh);
    nn::ShardSpecs parts;
    for (const auto& [name, l] : layout) parts[name] = l.spec;
    nn::materialise(made, kCpu, 7, parts);
    const StateDict all = whole.state_dict(), a = cut.state_dict(), b = made.state_dict();
    for (const auto& [name, t] : all) {
      CAPTURE(name);
      const Tensor want = part(t, layout, name);
      CHECK(different_bits(a.at(name), want) == "");
      CHECK(different_bits(b.at(name), want) == "");
    }
    const ParameterLayout& up = layout.at("blocks.1.moe.experts.gate_up");
    CHECK(up.expert);
    CHECK(up.tp_cut);
    CHECK(up.spec.whole == Shape{4, 12, 8});
    const std::int64_t e = mesh.ep().rank(), q = mesh.etp().rank();
    using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
    CHECK(up.spec.cuts[0].ranges == Ranges{{2 * e, 2 * e + 2}});
    CHECK(up.spec.cuts[1].ranges == Ranges{{3 * q, 3 * q + 3}, {6 + 3 * q, 9 + 3 * q}});
    CHECK(layout.count("mtp.0.block.moe.experts.down") == 1);
    CHECK(layout.count("blocks.1.moe.router.weight") == 0);  // tp is 1: not a special case
  });
}

TEST_CASE("O2: an idle rank or idle experts make the same collectives") {
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    for (const Degrees& degrees : {Degrees{.ep = 4, .etp = 1}, Degrees{.ep = 2, .etp = 2}})
      for (const bool idle : {false, true}) {
        test::distributed_test(4, [&](World& w) {
          const DeviceMesh mesh(w, degrees);
          nn::MoE moe(8, {.experts = 4,
                          .router = {.balance = {{Balance::global, 0.1}}},
                          .ffn = 6,
                          .shared_ffn = 4});
          if (idle) moe.router.weight.zero_();  // all tokens go to experts 0 and 1
          shard_experts(moe, mesh, {.dispatcher = kind});
          Tensor x = random({!idle && w.rank() == 1 ? 0 : 5, 8}, 3, DType::f32);
          x.set_requires_grad();
          Tape tape;
          const nn::MoeOutput out = moe(x);
          add(sum(out.y), out.loss).backward();
          (void)nn::update_expert_bias(moe, 1e-3, sum_router_counts(mesh));
          for (const NamedTensor& p : moe.named_parameters()) {
            CAPTURE(p.name);
            REQUIRE(p.tensor.grad().defined());
            if (idle && degrees.ep == 4 && w.rank() > 1 && p.name.starts_with("experts."))
              CHECK(max(p.tensor.grad().abs()).item() == 0);
          }
          CHECK(w.recorder().count() > 5);
          test::check_same_traces(w);
        });
      }
}

TEST_CASE("expert parallelism: errors name the layer") {
  test::distributed_test(4, [](World& w) {
    struct Model : nn::Module {
      MoE moe = seeded(kLayer);
      void visit(nn::Visitor& v) override { v("moe", moe); }
    };
    const auto text = [&](const Degrees& degrees, const ExpertPlan& plan = {}) {
      const DeviceMesh mesh(w, degrees);
      Model model;
      return error_of([&] { shard_experts(model, mesh, plan); });
    };
    CHECK(text({.tp = 2, .ep = 2, .etp = 1}) ==
          "moe: experts with tp 2 need sequence parallelism (--sp): without it all tp ranks have "
          "the same tokens, and each would be sent 2 times");
    CHECK(text({.tp = 2, .ep = 2, .etp = 1}, {.sequence_parallel = true}) == "no error");
    MoeOptions even = kLayer;
    even.router = {.sinkhorn = true};
    Model balanced;
    balanced.moe = seeded(even);
    const DeviceMesh shared(w, {.tp = 2, .ep = 2, .etp = 1});
    CHECK(error_of([&] { shard_experts(balanced, shared, {.sequence_parallel = true}); }) ==
          "moe: sinkhorn balances the tokens of a batch, which must be on one rank, got 2 ranks");
    const DeviceMesh mesh(w, {.ep = 4});
    CHECK(error_of([&] { AllToAllDispatcher(ExpertGroups(mesh), 6); }) ==
          "expert parallelism: the number of experts 6 must be a multiple of ep 4");
    MoeOptions o = kLayer;
    o.experts = 6;
    Model model;
    model.moe = seeded(o);
    CHECK(error_of([&] { shard_experts(model, mesh); }) ==
          "moe: experts 6 must be a multiple of ep 4");
    o.experts = 4;
    o.ffn = 3;
    model.moe = MoE(kDim, o);
    const DeviceMesh halves(w, {.etp = 2});
    CHECK(error_of([&] { shard_experts(model, halves); }) ==
          "moe: the width 3 of an expert must be a multiple of etp 2");
  });
}

TEST_CASE("expert parallelism: a warm pass allocates nothing") {
  if (test::launched_world()) return;  // MPI itself allocates
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    for (const auto& [capacity, tp] : {std::pair{0.0, 1}, {1.5, 1}, {1.1, 2}})
      run_ranks(4, [&, capacity = capacity, tp = tp](World& w) {
        CAPTURE(capacity);
        CAPTURE(tp);
        const DeviceMesh mesh(w, {.tp = tp, .ep = 2, .etp = 2});
        MoeOptions o = kLayer;
        o.shared_ffn = 5;
        o.router.balance = {{Balance::global, 0.1}};
        o.router.capacity_factor = capacity;
        MoE m = seeded(o);
        shard_experts(m, mesh, {.dispatcher = kind, .sequence_parallel = tp > 1});
        Tensor x = random({6, kDim}, 3, DType::f32);
        x.set_requires_grad();
        const std::vector<Tensor> parameters = m.parameters();
        const auto step = [&] {
          Tape tape;
          const nn::MoeOutput one = m(x), two = m(one.y);
          add(sum(two.y), add(one.loss, two.loss)).backward();
          for (const Tensor& t : parameters) t.set_grad({});
          x.set_grad({});
        };
        test::check_warm(w, step);
      });
}

}  // namespace weft::distributed::expert_parallel_test
