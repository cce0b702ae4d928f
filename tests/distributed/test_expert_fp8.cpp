// Tokens that travel to experts as FP8 codes.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/poisoned_memory.h"

namespace weft::distributed::expert_fp8_test {
namespace {

using nn::MoE;
using nn::MoeOptions;
using nn::TokenForm;
using test::different_bits;
using test::Grid;
using test::random;

constexpr std::int64_t kDim = 144;  // a block of 128 and a part of one
const MoeOptions kLayer{.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 32};

MoE layer(DType dtype) {
  MoE moe(kDim, kLayer);
  std::uint64_t seed = 20;
  for (const Tensor& p : moe.parameters()) p.copy_(mul(random(p.shape(), ++seed, DType::f32), 0.2));
  moe.to(dtype);
  return moe;
}

// Rank 1 has no tokens.
std::int64_t tokens_of(int rank) { return rank == 1 ? 0 : 3 + rank; }
std::int64_t tokens_before(int rank) {
  std::int64_t n = 0;
  for (int r = 0; r < rank; ++r) n += tokens_of(r);
  return n;
}

struct Numbers {
  Tensor x, dy;
  Routing routing;
  Numbers(int ranks, DType dtype) {
    const std::int64_t T = tokens_before(ranks);
    x = mul(random({T, kDim}, 1), exp(mul(random({T, 1}, 5), 3))).to(dtype);
    dy = random({T, kDim}, 2).to(dtype);
    routing = layer(dtype).router(x).routing;
  }
  Numbers of(int rank) const {
    Numbers own = *this;
    const auto rows = [rank](const Tensor& t) {
      return t.narrow(0, tokens_before(rank), tokens_of(rank)).clone();
    };
    own.x = rows(x);
    own.dy = rows(dy);
    own.routing = {rows(routing.probs), rows(routing.experts)};
    return own;
  }
};

// y, then the gradients of x and of the experts.
TensorList through(const MoE& m, const Numbers& n) {
  Tensor x = n.x.detach();
  x.set_requires_grad();
  TensorList wanted{x};
  for (const Tensor& p : m.experts.parameters()) wanted.push_back(p);
  Tape tape;
  const nn::TokenDispatcher& to = m.dispatcher();
  nn::Dispatch d = to.dispatch_preprocess(x, n.routing, 0);
  to.token_dispatch(d);
  to.dispatch_postprocess(d);
  Tensor y = m.experts(d.tokens, d.probs, d.expert_rows);
  y = to.combine_postprocess(to.token_combine(to.combine_preprocess(y, d), d), d);
  TensorList out{y.detach()};
  for (const Tensor& g : tape.gradients(y, wanted, n.dy)) out.push_back(g);
  return out;
}

TensorList on_ranks(World& w, const Grid& grid, DType dtype, Dispatcher kind, TokenForm form) {
  const DeviceMesh mesh(w, grid.degrees);
  MoE m = layer(dtype);
  shard_experts(m, mesh, {.dispatcher = kind, .tokens = form});
  return through(m, Numbers(w.size(), dtype).of(w.rank()));
}

double distance(const Tensor& got, const Tensor& want) {
  const auto norm = [](const Tensor& t) { return std::sqrt(sum(mul(t, t)).item()); };
  const Tensor exact = want.to(DType::f64);
  return want.numel() == 0 ? 0 : norm(sub(got.to(DType::f64), exact)) / norm(exact);
}

const Grid kGrids[] = {{1, {.ep = 1, .etp = 1}},
                       {2, {.ep = 2, .etp = 1}},
                       {4, {.ep = 4, .etp = 1}},
                       {4, {.ep = 2, .etp = 2}}};

}  // namespace

TEST_CASE("expert fp8: ranks have the bits of one rank that rounds, in both dispatchers") {
  for (const bool products : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Grid& grid : kGrids) {
        CAPTURE(grid.ranks);
        CAPTURE(products);
        const std::optional<fp8::Recipe> recipe =
            products ? std::optional(fp8::Recipe{}) : std::nullopt;
        TensorList one;
        {
          // One rank gets tokens that were rounded before.
          const fp8::Autocast scope(recipe);
          Numbers all(grid.ranks, dtype);
          all.x = fp8::rounded_rows(all.x);
          one = through(layer(dtype), all);
        }
        test::distributed_test(grid.ranks, [&](World& w) {
          const fp8::Autocast scope(recipe);
          const auto rows = [&](const Tensor& t) {
            return t.narrow(0, tokens_before(w.rank()), tokens_of(w.rank())).clone();
          };
          for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
            const TensorList got = on_ranks(w, grid, dtype, kind, TokenForm::fp8);
            for (const int i : {0, 1}) {
              if (grid.degrees.etp == 1)
                CHECK(different_bits(got[i], rows(one[i])) == "");
              else  // hidden units are summed over ranks
                CHECK(distance(got[i], rows(one[i])) < (products ? 0.125 : 0.02));
            }
            if (grid.degrees.etp > 1) continue;
            const std::int64_t own = kLayer.experts / grid.degrees.ep;
            for (int i = 2; i < got.size(); ++i)
              CHECK(different_bits(got[i], one[i].narrow(0, w.rank() * own, own).clone()) == "");
          }
        });
      }
}

TEST_CASE("expert fp8: three bits of mantissa show, within the bound of FP8") {
  test::distributed_test(2, [](World& w) {
    const Grid grid{2, {.ep = 2, .etp = 1}};
    for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
      const TensorList plain = on_ranks(w, grid, DType::f32, kind, TokenForm::model),
                       got = on_ranks(w, grid, DType::f32, kind, TokenForm::fp8);
      for (int i = 0; i < got.size(); ++i) CHECK(distance(got[i], plain[i]) < 0.125);
      if (tokens_of(w.rank()) > 0) CHECK(distance(got[0], plain[0]) > 1e-3);
    }
  });
}

TEST_CASE("expert fp8: two layers in memory that is poisoned when it is given back") {
  const test::PoisonedMemory memory;
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
      MoE m = layer(DType::bf16);
      shard_experts(m, mesh, {.dispatcher = kind, .tokens = TokenForm::fp8});
      const Numbers n = Numbers(2, DType::bf16).of(w.rank());
      Tensor x = n.x.detach();
      x.set_requires_grad();
      Tape tape;
      const Tensor y = m(m(x).y).y;
      for (const Tensor& g : tape.gradients(y, {x, m.experts.up, m.experts.down}, n.dy))
        CHECK(std::isfinite(weft::sum(abs(g)).item()));
    }
  });
}

TEST_CASE("expert fp8: tokens take half of bf16's bytes and the scales") {
  const auto world = fake_world(0, 4);
  const DeviceMesh mesh(*world, {.ep = 4, .etp = 1});
  const auto sent = [&](Dispatcher kind, TokenForm form) {
    const nn::DeviceScope on_meta(kMeta, DType::bf16);
    MoE m(kDim, kLayer);
    shard_experts(m, mesh, {.dispatcher = kind, .tokens = form});
    const std::int64_t before = world->stats().bytes_sent;
    (void)m(Tensor::empty({8, kDim}, DType::bf16, kMeta));
    return world->stats().bytes_sent - before;
  };
  // 16 slots, of which 12 are for other ranks; or 8 tokens for 3 ranks.
  constexpr std::int64_t kSaved = 2 * kDim - (kDim + 2 * 4);
  CHECK(sent(Dispatcher::all_to_all, TokenForm::model) -
            sent(Dispatcher::all_to_all, TokenForm::fp8) ==
        12 * kSaved);
  CHECK(sent(Dispatcher::all_gather, TokenForm::model) -
            sent(Dispatcher::all_gather, TokenForm::fp8) ==
        3 * 8 * kSaved);
}

}  // namespace weft::distributed::expert_fp8_test
