// Dispatches tokens to experts on other ranks.
#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/expert_support.h"

namespace weft::distributed::expert_dispatch_test {
namespace {

using nn::Activation;
using nn::MoE;
using nn::MoeOptions;
using test::different_bits;
using test::error_of;
using test::Grid;
using test::mismatch;
using test::part;
using test::random;

constexpr std::int64_t kDim = 6;

MoE layer(MoeOptions options, DType dtype = DType::f64) {
  options.ffn = 4;
  MoE moe(kDim, options);
  std::uint64_t seed = 20;
  for (const Tensor& p : moe.parameters()) p.copy_(mul(random(p.shape(), ++seed, DType::f32), 0.4));
  moe.to(dtype);
  return moe;
}

const Grid kGrids[] = {{1, {.ep = 1, .etp = 1}}, {2, {.ep = 2, .etp = 1}}, {4, {.ep = 4, .etp = 1}},
                       {2, {.ep = 1, .etp = 2}}, {4, {.ep = 2, .etp = 2}}, {8, {.ep = 4, .etp = 2}},
                       {4, {.ep = 2, .etp = 1}}};

// The tokens of a rank; rank 1 has none.
struct Share {
  std::int64_t first, count;
};
Share share_of(int rank, bool even) {
  std::int64_t first = 0;
  const auto count = [&](int r) { return even ? 3 : r == 1 ? 0 : 2 + r % 3; };
  for (int r = 0; r < rank; ++r) first += count(r);
  return {first, count(rank)};
}
std::int64_t tokens_of(int ranks, bool even) { return share_of(ranks, even).first; }

Tensor rows_of(const Tensor& t, const Share& s) { return t.narrow(0, s.first, s.count).clone(); }

// y, and the gradients of x, the slots' probabilities and the experts' parameters.
struct Result {
  Tensor y, dx, dprobs;
  TensorList dw;
};

Result through(const MoE& m, const Tensor& given, const Routing& routing, const Tensor& dy,
               std::int64_t capacity = 0) {
  // A view that does not start at the beginning of its storage, like a slice of a batch.
  const std::int64_t tokens = given.dim(0);
  Tensor x = cat({given, given}, 0).narrow(0, tokens, tokens), probs = routing.probs.clone();
  x.set_requires_grad();
  probs.set_requires_grad();
  TensorList wanted{x, probs};
  for (const Tensor& p : m.experts.parameters()) wanted.push_back(p);
  Tape tape;
  nn::Dispatch d = m.dispatcher().dispatch_preprocess(x, {probs, routing.experts}, capacity);
  m.dispatcher().token_dispatch(d);
  m.dispatcher().dispatch_postprocess(d);
  Tensor y = m.experts(d.tokens, d.probs, d.expert_rows);
  y = m.dispatcher().combine_preprocess(y, d);
  y = m.dispatcher().token_combine(y, d);
  y = m.dispatcher().combine_postprocess(y, d);
  const TensorList g = tape.gradients(y, wanted, dy);
  Result out{y.detach(), g[0], g[1], {}};
  for (int i = 2; i < g.size(); ++i) out.dw.push_back(g[i]);
  return out;
}

// y_t = sum over e of p_te FFN_e(x_t), every expert with every token.
Result dense(const MoE& m, const Tensor& given, const Routing& routing, const Tensor& dy) {
  Tensor x = given.clone(), probs = routing.probs.clone();
  x.set_requires_grad();
  probs.set_requires_grad();
  TensorList wanted{x, probs};
  for (const Tensor& p : m.experts.parameters()) wanted.push_back(p);
  Tape tape;
  const nn::Experts& w = m.experts;
  Tensor y;
  for (std::int64_t e = 0; e < m.options.experts; ++e) {
    const Tensor chosen = eq(routing.experts, static_cast<double>(e)).to(x.dtype());
    const Tensor p = sum(mul(probs, chosen), {1}, true);
    Tensor h = matmul(x, w.up.select(0, e).t());
    if (w.up_bias.defined()) h = add(h, w.up_bias.select(0, e));
    h = test::activation_by_parts(h, m.options.activation);
    h = matmul(h, w.down.select(0, e).t());
    if (w.down_bias.defined()) h = add(h, w.down_bias.select(0, e));
    y = y.defined() ? add(y, mul(h, p)) : mul(h, p);
  }
  const TensorList g = tape.gradients(y, wanted, dy);
  Result out{y.detach(), g[0], g[1], {}};
  for (int i = 2; i < g.size(); ++i) out.dw.push_back(g[i]);
  return out;
}

const MoeOptions kLayers[] = {{.experts = 4, .router = {.route = {.topk = 3}}},
                              {.experts = 8,
                               .router = {.route = {.topk = 2}},
                               .activation = Activation::gelu_tanh,
                               .bias = true}};

Result run(World& w, const Grid& grid, const MoeOptions& options, Dispatcher kind, DType dtype,
           bool even = false, std::int64_t capacity = 0) {
  const DeviceMesh mesh(w, grid.degrees);
  MoE m = layer(options, dtype);
  const std::int64_t T = tokens_of(grid.ranks, even);
  const Tensor x = random({T, kDim}, 1).to(dtype), dy = random({T, kDim}, 2).to(dtype);
  const Routing all = m.router(x).routing;
  shard_experts(m, mesh, {.dispatcher = kind});
  const Share s = share_of(w.rank(), even);
  Result r = through(m, rows_of(x, s), {rows_of(all.probs, s), rows_of(all.experts, s)},
                     rows_of(dy, s), capacity);
  for (const Tensor& g : r.dw) mesh.edp().all_reduce(g).wait();
  return r;
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  return v;
}

}  // namespace

TEST_CASE("D3, D7: every grid and dispatcher gives the dense sum with one rank without tokens") {
  for (const Grid& grid : kGrids)
    for (const MoeOptions& o : kLayers)
      for (const DType dtype : {DType::f64, DType::f32}) {
        CAPTURE(grid.ranks);
        CAPTURE(grid.degrees.ep);
        CAPTURE(o.experts);
        const double tol = dtype == DType::f64 ? 1e-10 : 1e-5;
        const MoE whole = layer(o);
        const std::int64_t T = tokens_of(grid.ranks, false);
        const Tensor x = random({T, kDim}, 1);
        const Result want = dense(whole, x, whole.router(x).routing, random({T, kDim}, 2));
        test::distributed_test(grid.ranks, [&](World& w) {
          const DeviceMesh mesh(w, grid.degrees);
          MoE shape_only = layer(o);
          const Layout layout = shard_experts(shape_only, mesh);
          const Share s = share_of(w.rank(), false);
          for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
            const Result got = run(w, grid, o, kind, dtype);
            CHECK(mismatch(got.y, rows_of(want.y, s), tol) == "");
            CHECK(mismatch(got.dx, rows_of(want.dx, s), tol) == "");
            CHECK(mismatch(got.dprobs, rows_of(want.dprobs, s), tol) == "");
            const NamedTensors names = shape_only.experts.named_parameters();
            for (int i = 0; i < got.dw.size(); ++i) {
              const std::string name = "experts." + names[static_cast<std::size_t>(i)].name;
              CHECK(mismatch(got.dw[i], part(want.dw[i], layout.at(name).spec), tol) == "");
            }
          }
        });
      }
}

TEST_CASE("D4: dispatchers agree bit by bit with each other and with one rank") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Grid& grid : kGrids) {
      CAPTURE(grid.ranks);
      const MoE whole = layer(kLayers[0], dtype);
      const std::int64_t T = tokens_of(grid.ranks, false);
      const Tensor x = random({T, kDim}, 1).to(dtype), dy = random({T, kDim}, 2).to(dtype);
      const Result one = through(whole, x, whole.router(x).routing, dy);
      test::distributed_test(grid.ranks, [&](World& w) {
        const Result a = run(w, grid, kLayers[0], Dispatcher::all_to_all, dtype);
        const Result b = run(w, grid, kLayers[0], Dispatcher::all_gather, dtype);
        CHECK(different_bits(a.y, b.y) == "");
        CHECK(different_bits(a.dx, b.dx) == "");
        CHECK(different_bits(a.dprobs, b.dprobs) == "");
        for (int i = 0; i < a.dw.size(); ++i) CHECK(different_bits(a.dw[i], b.dw[i]) == "");
        if (grid.degrees.etp > 1) return;
        const Share s = share_of(w.rank(), false);
        CHECK(different_bits(a.y, rows_of(one.y, s)) == "");
        CHECK(different_bits(a.dx, rows_of(one.dx, s)) == "");
        CHECK(different_bits(a.dprobs, rows_of(one.dprobs, s)) == "");
      });
    }
}

TEST_CASE("D2: two ranks with four tokens and two experts each") {
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    const bool a = w.rank() == 0;
    // Tokens a0 ... a3 are 0 ... 3, tokens b0 ... b3 are 10 ... 13.
    const Tensor x = Tensor::arange(a ? 0 : 10, a ? 4 : 14).view({4, 1});
    const Tensor chosen = (a ? Tensor::of({0, 1, 1, 2, 2, 3, 1, 0}, {4, 2})
                             : Tensor::of({3, 0, 3, 1, 3, 2, 0, 1}, {4, 2}))
                              .to(DType::i64);
    const AllToAllDispatcher dispatcher(ExpertGroups(mesh), 4);
    nn::Dispatch d = dispatcher.dispatch_preprocess(x, {Tensor::full({4, 2}, 0.5), chosen}, 0);
    CHECK(values(d.tokens) == (a ? std::vector<double>{0, 3, 0, 1, 3, 1, 2, 2}
                                 : std::vector<double>{10, 13, 11, 13, 12, 10, 11, 12}));
    dispatcher.token_dispatch(d);
    dispatcher.dispatch_postprocess(d);
    CHECK(values(d.expert_rows) == (a ? std::vector<double>{4, 5} : std::vector<double>{3, 4}));
    CHECK(values(d.tokens) == (a ? std::vector<double>{0, 3, 10, 13, 0, 1, 3, 11, 13}
                                 : std::vector<double>{1, 2, 12, 2, 10, 11, 12}));
    // Identity experts: each token comes back once with the sum of both halves.
    const Tensor y = mul(d.tokens, d.probs.view({d.probs.dim(0), 1}));
    Tensor back = dispatcher.combine_preprocess(y, d);
    back = dispatcher.token_combine(back, d);
    CHECK(different_bits(dispatcher.combine_postprocess(back, d), x) == "");
  });
}

TEST_CASE("D5: a capacity avoids the exchange of counts and drops slots without a row") {
  for (const Grid& grid : kGrids)
    for (const std::int64_t capacity : {1, 2, 5}) {
      CAPTURE(grid.ranks);
      CAPTURE(capacity);
      test::distributed_test(grid.ranks, [&](World& w) {
        const DeviceMesh mesh(w, grid.degrees);
        const MoeOptions& o = kLayers[1];
        MoE m = layer(o);
        const std::int64_t T = tokens_of(grid.ranks, true);
        const Tensor x = random({T, kDim}, 1), dy = random({T, kDim}, 2);
        const Share s = share_of(w.rank(), true);
        const Routing all = m.router(x).routing;
        const Tensor kept = rows_of(all.experts, s);
        std::array<std::int64_t, 8> used = {};
        for (std::int64_t i = 0; i < kept.numel(); ++i) {
          std::int64_t& e = kept.data<std::int64_t>()[i];
          if (used[static_cast<std::size_t>(e)]++ >= capacity) e = -1;
        }
        for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
          MoE part = layer(o);
          shard_experts(part, mesh, {.dispatcher = kind});
          const std::int64_t before = w.recorder().count();
          const Result padded =
              through(part, rows_of(x, s), {rows_of(all.probs, s), rows_of(all.experts, s)},
                      rows_of(dy, s), capacity);
          const std::int64_t calls = w.recorder().count() - before;
          const Result dropped =
              through(part, rows_of(x, s), {rows_of(all.probs, s), kept}, rows_of(dy, s));
          if (mesh.tp_ep().size() > 1) CHECK(w.recorder().count() - before == 2 * calls + 1);
          CHECK(mismatch(padded.y, dropped.y, 1e-12) == "");
          CHECK(mismatch(padded.dx, dropped.dx, 1e-12) == "");
          CHECK(mismatch(padded.dprobs, dropped.dprobs, 1e-12) == "");
          for (int i = 0; i < padded.dw.size(); ++i)
            CHECK(mismatch(padded.dw[i], dropped.dw[i], 1e-12) == "");
        }
      });
    }
}

TEST_CASE("expert dispatch: aligned rows change no bit") {
  test::distributed_test(4, [](World& w) {
    const Grid grid{4, {.ep = 2, .etp = 2}};
    MoeOptions o = kLayers[0];
    const Result plain = run(w, grid, o, Dispatcher::all_to_all, DType::f32);
    o.alignment = 4;
    for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
      const Result r = run(w, grid, o, kind, DType::f32);
      CHECK(different_bits(r.y, plain.y) == "");
      CHECK(different_bits(r.dx, plain.dx) == "");
      for (int i = 0; i < r.dw.size(); ++i) CHECK(different_bits(r.dw[i], plain.dw[i]) == "");
    }
  });
}

TEST_CASE("expert dispatch: a fake rank counts the bytes of an even load") {
  const auto world = fake_world(0, 8);
  const DeviceMesh mesh(*world, {.ep = 4, .etp = 2});
  for (const double capacity : {0.0, 1.0})
    for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
      nn::DeviceScope on_meta(kMeta);
      MoeOptions o = kLayers[0];
      o.ffn = 4;
      o.router.capacity_factor = capacity;
      MoE m(kDim, o);
      shard_experts(m, mesh, {.dispatcher = kind});
      const std::int64_t before = world->stats().bytes_sent;
      CHECK(m(Tensor::empty({8, kDim}, DType::f32, kMeta)).y.shape() == Shape{8, kDim});
      const std::int64_t sent = world->stats().bytes_sent - before;
      const std::int64_t row = kDim * 4, counts = capacity > 0 ? 0 : 7 * 8;
      // 24 slots, 6 for each expert.
      if (kind == Dispatcher::all_to_all)
        // Sent over ep and then to the other half of the experts, and back.
        CHECK(sent == 4 * counts + 18 * (2 * row + 4) + 24 * (2 * row + 4));
      else
        CHECK(sent == (capacity > 0 ? 0 : 5 * counts) + 7 * 8 * (row + 3 * (4 + 8)) + 7 * 24 * row);
    }
}

}  // namespace weft::distributed::expert_dispatch_test
