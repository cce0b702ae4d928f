// The capacity of an expert applies to the batch of a data-parallel rank. The ranks that share the
// batch must keep and drop the same slots as one rank with all of it.
#include <doctest/doctest.h>

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router_loss.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed::capacity_layouts_test {
namespace {

using nn::Balance;
using nn::MoE;
using nn::MoeOptions;
using test::different_bits;
using test::Grid;
using test::mismatch;
using test::part;
using test::random;

// Three sequences. Two or four ranks split them in the middle of a sequence.
constexpr std::int64_t kSequences = 3, kLength = 8, kTokens = kSequences * kLength, kDim = 8;

const Grid kGrids[] = {{2, {.tp = 2, .ep = 1, .etp = 2}}, {2, {.tp = 2, .ep = 2, .etp = 1}},
                       {4, {.tp = 4, .ep = 2, .etp = 2}}, {4, {.tp = 4, .ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 2, .etp = 2}}, {4, {.tp = 2, .ep = 2, .etp = 1}},
                       {4, {.tp = 2, .ep = 4, .etp = 1}}, {4, {.tp = 1, .ep = 4, .etp = 1}}};

MoE layer(const MoeOptions& o) {
  MoE m(kDim, o);
  nn::init(m, 5);
  m.to(DType::f64);
  return m;
}

MoeOptions options(double factor, DropPolicy drop, bool pads) {
  return {.experts = 4,
          .router = {.route = {.topk = 2},
                     .balance = {{Balance::aux, 1}, {Balance::sequence, 0.5}},
                     .z_loss = 0.1,
                     .capacity_factor = factor,
                     .drop = drop,
                     .init = nn::Init::normal(1)},
          .ffn = 6,
          .bias = true,
          .pad_to_capacity = pads,
          .init = nn::Init::normal(0.4),
          .proj_init = nn::Init::normal(0.4)};
}

// The batch of a dp rank. Its first third has larger scores: by probability, experts keep most
// slots there, more than an even share of the ranks.
Tensor batch(int dp) {
  const Tensor x = random({kSequences, kLength, kDim}, 1 + static_cast<std::uint64_t>(dp));
  x.narrow(0, 1, 2).mul_(0.1);
  return x;
}

// Most of the padding is on the first rank.
Tensor some_padding() {
  const Tensor pad = Tensor::zeros({kSequences, kLength}, DType::boolean);
  for (const std::int64_t t : {1, 3, 4, 5, 6, 13, 23}) pad.data<bool>()[t] = true;
  return pad;
}

struct Result {
  Tensor experts, y, dx;
  double loss = 0;
  TensorList dw;
};

Result run(MoE& m, const Tensor& given, const Tensor& dy, const Tensor& padding, int dp,
           const std::optional<nn::TokenPart>& tokens_here = {}) {
  const RandomScope noise(
      {.seed = 3, .step = 1, .first_global_row = static_cast<std::uint64_t>(kSequences * dp)});
  Tensor x = given.clone();
  x.set_requires_grad();
  TensorList wanted{x};
  for (const Tensor& p : m.parameters()) wanted.push_back(p);
  Tape tape;
  const nn::MoeOutput out = m(x, {.packing = {.padding = padding}, .part = tokens_here});
  const TensorList g = tape.gradients(add(sum(mul(out.y, dy)), out.loss), wanted);
  Result r{{}, out.y.detach(), g[0], out.loss.item(), {}};
  for (int i = 1; i < g.size(); ++i) r.dw.push_back(g[i]);
  const std::int64_t tokens = given.numel() / kDim;
  const nn::RouterInput in{.padding = padding.defined() ? padding.flatten() : padding,
                           .sequences = given.dim(0),
                           .part = tokens_here};
  r.experts = m.router(given.view({tokens, kDim}), in).routing.experts;
  return r;
}

std::int64_t kept(const Tensor& experts) { return sum(ge(experts, 0.0).to(DType::i64)).item_int(); }

// Compares a layer spread over the ranks with one rank that processes the batches one by one.
void compare(World& w, const DeviceMesh& mesh, const MoeOptions& o, Dispatcher kind,
             const Tensor& padding) {
  const int dp = mesh.dp().rank(), tp = mesh.tp().size();
  const Tensor dy = random({kSequences, kLength, kDim}, 9);
  MoE whole = layer(o);
  Result want;
  TensorList dw;
  for (int d = 0; d < mesh.dp().size(); ++d) {
    Result r = run(whole, batch(d), dy, padding, d);
    for (int i = 0; i < r.dw.size(); ++i)
      if (d == 0)
        dw.push_back(r.dw[i].clone());
      else
        dw[i].add_(r.dw[i]);
    if (d == dp) want = std::move(r);
  }
  MoE m = layer(o);
  const Layout layout = shard_experts(m, mesh, {.dispatcher = kind, .sequence_parallel = true});
  const std::int64_t count = kTokens / tp, first = mesh.tp().rank() * count;
  const nn::TokenPart here{kSequences, kLength, first, count};
  const auto rows = [&](const Tensor& t) {
    return t.view({1, kTokens, kDim}).narrow(1, first, count).contiguous();
  };
  const Result got = tp > 1 ? run(m, rows(batch(dp)), rows(dy), padding, dp, here)
                            : run(m, batch(dp), dy, padding, dp);
  CHECK(different_bits(got.experts, want.experts.narrow(0, first, count).contiguous()) == "");
  CHECK(mismatch(got.y.flatten(), rows(want.y).flatten(), 1e-10) == "");
  CHECK(mismatch(got.dx.flatten(), rows(want.dx).flatten(), 1e-10) == "");
  const Tensor loss = Tensor::full({1}, got.loss, DType::f64);
  mesh.tp().all_reduce(loss).wait();
  CHECK(std::abs(loss.item() - want.loss) < 1e-12);
  const NamedTensors names = m.named_parameters();
  for (int i = 0; i < got.dw.size(); ++i) {
    const std::string& name = names[static_cast<std::size_t>(i)].name;
    CAPTURE(name);
    const auto entry = layout.find(name);
    const bool expert = entry != layout.end() && entry->second.expert;
    const Tensor g = got.dw[i].contiguous();
    (expert ? mesh.edp() : w.all()).all_reduce(g).wait();
    CHECK(mismatch(g, entry == layout.end() ? dw[i] : part(dw[i], entry->second.spec), 1e-10) ==
          "");
  }
}

}  // namespace

TEST_CASE("capacity: ranks that share a batch keep and drop the slots that one rank does") {
  for (const Grid& grid : kGrids)
    test::distributed_test(grid.ranks, [&](World& w) {
      const DeviceMesh mesh(w, grid.degrees);
      for (const double factor : {0.4, 0.9, 1.5})
        for (const DropPolicy drop : {DropPolicy::probability, DropPolicy::position})
          for (const bool pads : {false, true})
            for (const Tensor& padding : {Tensor(), some_padding()})
              for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
                CAPTURE(grid.ranks);
                CAPTURE(grid.degrees.tp);
                CAPTURE(grid.degrees.ep);
                CAPTURE(factor);
                CAPTURE(pads);
                CAPTURE(padding.defined());
                compare(w, mesh, options(factor, drop, pads), kind, padding);
              }
      test::check_same_traces(w);
    });
}

TEST_CASE("capacity: an expert multiplies only the rows that it may keep") {
  for (const Grid& grid : kGrids)
    test::distributed_test(grid.ranks, [&](World& w) {
      const DeviceMesh mesh(w, grid.degrees);
      CAPTURE(grid.degrees.tp);
      CAPTURE(grid.degrees.ep);
      CAPTURE(grid.degrees.etp);
      const std::int64_t tokens = kTokens / mesh.tp().size(), room = 5;
      for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
        MoE m = layer(options(0.4, DropPolicy::probability, true));
        shard_experts(m, mesh, {.dispatcher = kind, .sequence_parallel = true});
        const Tensor x = random({tokens, kDim}, 1 + static_cast<std::uint64_t>(w.rank()));
        nn::Dispatch d = m.dispatcher().dispatch_preprocess(x, m.router(x).routing, {room, room});
        m.dispatcher().token_dispatch(d);
        m.dispatcher().dispatch_postprocess(d);
        const int batches = std::max(1, mesh.tp_ep().size() / mesh.tp().size());
        for (const double rows : test::values(d.expert_rows))
          CHECK(rows == static_cast<double>(batches * room));
        CHECK(d.tokens.dim(0) == sum(d.expert_rows).item_int());
        const Tensor y =
            m.dispatcher().token_combine(m.dispatcher().combine_preprocess(d.tokens, d), d);
        CHECK(m.dispatcher().combine_postprocess(y, d).shape() == x.shape());
      }
      test::check_same_traces(w);
    });
}

TEST_CASE("capacity: forced routing lets a rank use more than its even share of an expert") {
  test::distributed_test({2, 4}, [](World& w) {
    const DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 1});
    MoeOptions o = options(0.7, DropPolicy::probability, true);
    o.router.force_balance = true;
    o.router.force_bias = 1;
    compare(w, mesh, o, Dispatcher::all_to_all, some_padding());
    // An expert has room for six: three for each of two ranks in an even split.
    const Tensor experts = layer(options(0.5, DropPolicy::probability, true))
                               .router(batch(0).view({kTokens, kDim}), {.sequences = kSequences})
                               .routing.experts;
    CHECK(max(count_experts(experts, 4)).item_int() == 6);
    CHECK(max(count_experts(experts.narrow(0, 0, kTokens / 2), 4)).item_int() > 3);
  });
}

TEST_CASE("capacity: the collectives of a layer do not depend on data") {
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 1});
    const auto calls = [&](double factor, bool pads, const Tensor& x, const Tensor& padding) {
      MoE m = layer(options(factor, DropPolicy::probability, pads));
      shard_experts(m, mesh, {.sequence_parallel = true});
      const std::int64_t before = w.recorder().count();
      (void)m(x, {.packing = {.padding = padding},
                  .part = nn::TokenPart{kSequences, kLength, 12L * w.rank(), 12}});
      return w.recorder().count() - before;
    };
    const Tensor x = random({1, 12, kDim}, 3 + static_cast<std::uint64_t>(w.rank()));
    const Tensor same = Tensor::zeros(x.shape(), DType::f64);
    const Tensor nothing = Tensor::ones({kSequences, kLength}, DType::boolean);
    for (const bool pads : {false, true}) {
      const std::int64_t usual = calls(0.9, pads, x, {});
      CHECK(calls(0.9, pads, same, {}) == usual);
      CHECK(calls(0.9, pads, x, some_padding()) == usual);
      CHECK(calls(0.9, pads, x, nothing) == usual);
      // With two slots per token and factor 2 an expert has room for every token, so ranks need not
      // distinguish padding from slots.
      CHECK(calls(2, pads, x, {}) == usual - (pads ? 3 : 2));
    }
    test::check_same_traces(w);
    // Evaluation drops nothing.
    MoE m = layer(options(0.9, DropPolicy::probability, true));
    shard_experts(m, mesh, {.sequence_parallel = true});
    m.eval();
    const std::int64_t before = w.recorder().count();
    CHECK(kept(m.router(x.view({12, kDim})).routing.experts) == 24);
    CHECK(w.recorder().count() == before);
  });
}

TEST_CASE("capacity: ranks with unequal shares of a batch are refused by name") {
  if (test::launched_world()) return;  // the error ends the world
  const std::string text = test::error_of([] {
    run_ranks(2, [](World& w) {
      const DeviceMesh mesh(w, {.tp = 2, .ep = 1, .etp = 2});
      MoE m = layer(options(0.9, DropPolicy::probability, true));
      shard_experts(m, mesh, {.sequence_parallel = true});
      (void)m.router(random({w.rank() ? 5 : 6, kDim}, 1));
    });
  });
  CHECK(text ==
        "all ranks of a group must give the same rows: rank 0 called all_gather 0 of group tp_cp, "
        "f64 [12, 2] from f64 [6, 2], rank 1 called all_gather 0 of group tp_cp, f64 [10, 2] from "
        "f64 [5, 2]");
}

}  // namespace weft::distributed::capacity_layouts_test
