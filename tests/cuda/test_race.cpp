// Every family of kernels on grids of a few blocks, for ThreadSanitizer. It runs each CUDA thread
// as a separate thread, which is thorough and slow. The shapes are the smallest in which threads of
// a block, and blocks, still depend on each other.
#include <doctest/doctest.h>

#include "weft/autograd/attention.h"
#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/expert_capacity.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/sort.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/token_permute.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::race_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::kGpu;
using test::random;

Agreement in(DType dtype, double tolerance = 1) {
  return {.dtypes = {dtype}, .tolerance = tolerance, .all_orders = false};
}

Tensor ids(std::initializer_list<double> values) {
  return Tensor::of(values, {static_cast<std::int64_t>(values.size())}, DType::i32);
}

}  // namespace

TEST_CASE("race: norms over rows of eight threads, of one warp and of one block") {
  const auto layer = [](const TensorList& t) { return TensorList{layer_norm(t[0], t[1], t[2])}; };
  const auto rms = [](const TensorList& t) { return TensorList{rms_norm(t[0], t[1])}; };
  const Tensor x = random({2, 40}, 1), w = random({40}, 2), b = random({40}, 3);
  CHECK(disagreement(layer, {x, w, b}, in(DType::f32, 4)) == "");
  CHECK(disagreement(rms, {x, w}, in(DType::f32, 4)) == "");
  // Without weights, whose gradients would take a thousand threads for each 32 columns.
  const auto plain = [](const TensorList& t) {
    return TensorList{layer_norm(t[0], {}, {}), rms_norm(t[0], {})};
  };
  for (const std::int64_t width : {132, 516})
    CHECK(disagreement(plain, {random({2, width})}, in(DType::f32, 4)) == "");
}

TEST_CASE("race: softmax and cross entropy") {
  const auto soft = [](const TensorList& t) { return TensorList{softmax(t[0])}; };
  const auto loss = [](const TensorList& t) { return TensorList{cross_entropy(t[0], t[1])}; };
  for (const std::int64_t width : {40, 1100}) {
    CHECK(disagreement(soft, {random({2, width})}, in(DType::f32)) == "");
    CHECK(disagreement(loss, {random({2, width}), ids({3, 17})}, in(DType::f32)) == "");
  }
}

TEST_CASE("race: reductions, arg extremes and cumulative sums") {
  const auto sums = [](const TensorList& t) {
    return TensorList{sum(t[0]), sum(t[0], {0}), sum(t[0], {1}), max(t[0], 1), cumsum(t[0], 1)};
  };
  CHECK(disagreement(sums, {random({5, 70})}, in(DType::f32, 4)) == "");
}

TEST_CASE("race: sorting") {
  const auto order = [](const TensorList& t) {
    return TensorList{sort(t[0]).values, topk(t[0], 3).values};
  };
  CHECK(disagreement(order, {random({2, 70})}, in(DType::f32)) == "");
}

TEST_CASE("race: embedding with a repeated token, gather and scatter") {
  const auto look_up = [](const TensorList& t) { return TensorList{embedding(t[0], t[1])}; };
  CHECK(disagreement(look_up, {random({5, 33}), ids({1, 4, 1, 0, 1, 4})}, in(DType::f32, 4)) == "");
  const auto scatter = [](const TensorList& t) {
    return TensorList{scatter_add(t[0], 0, t[1], t[2]), gather(t[0], 0, t[1])};
  };
  CHECK(disagreement(scatter,
                     {random({5}, 1), Tensor::of({2, 0, 2}, {3}, DType::i64), random({3}, 2)},
                     in(DType::f32)) == "");
}

TEST_CASE("race: routing with groups, losses, capacity and sinkhorn") {
  const auto routing = [](const TensorList& t) {
    const RouterOptions o{.topk = 2, .score = RouterScore::sigmoid, .groups = 2, .group_topk = 1};
    return TensorList{limit_capacity(route(t[0], {}, o), 8, 1).probs,
                      limit_capacity_factor(route(t[0], {}, o), 8, 0.5).probs};
  };
  const auto losses = [](const TensorList& t) {
    const Tensor counts = count_top_experts(t[0], 2);
    return TensorList{balance_loss(t[0], counts, RouterScore::softmax, 1), z_loss(t[0], 1)};
  };
  const auto even = [](const TensorList& t) { return TensorList{sinkhorn(t[0], {}, 2)}; };
  const Tensor x = random({5, 8}, 1);
  CHECK(disagreement(routing, {x}, in(DType::f32)) == "");
  CHECK(disagreement(losses, {x}, in(DType::f32)) == "");
  Agreement forward = in(DType::f32);
  forward.gradients = false;
  CHECK(disagreement(even, {x}, forward) == "");
}

TEST_CASE("race: rope, swiglu and dropout") {
  const RopeTables tables = rope_tables(8, 8, 10000, DType::f64);
  const auto all = [&](const TensorList& t) {
    const Tensor cos = tables.cos.to(t[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
    const Tensor sin = tables.sin.to(t[0].dtype() == DType::f64 ? DType::f64 : DType::f32);
    return TensorList{rope(t[0], cos.to(t[0].device()), sin.to(t[0].device())), swiglu(t[0]),
                      dropout(t[0], 0.3, RandomKey{1, 2, 3})};
  };
  CHECK(disagreement(all, {random({1, 3, 2, 8})}, in(DType::f32)) == "");
}

TEST_CASE("race: token permutation and back, grouped products and scaled activations") {
  const Tensor experts = Tensor::of({2, 0, 1, 2, 2, 1, -1, 0, 0, 2}, {5, 2}, DType::i64);
  const auto op = [](const TensorList& t) {
    const ExpertRows rows = sort_by_expert(t[2], 3);
    const Tensor h = grouped_linear(permute_tokens(t[0], rows), t[1], {}, rows.rows);
    const Tensor p = select(h, 1, 0);
    return TensorList{combine_tokens(h, rows), scaled_swiglu(h, p), scaled_gelu(h, p)};
  };
  CHECK(disagreement(op, {random({5, 8}, 1), random({3, 12, 8}, 2), experts}, in(DType::f32, 8)) ==
        "");
}

TEST_CASE("race: attention, generic and on tensor cores") {
  const auto causal = [](const TensorList& t) {
    return TensorList{attention(t[0], t[1], t[2], {.causal = true})};
  };
  const auto operands = [](std::int64_t tokens, std::int64_t dim) {
    return TensorList{random({1, tokens, 1, dim}, 1), random({1, tokens, 1, dim}, 2),
                      random({1, tokens, 1, dim}, 3)};
  };
  CHECK(disagreement(causal, operands(9, 8), in(DType::f32, 4)) == "");
  CHECK(disagreement(causal, operands(70, 64), in(DType::bf16)) == "");
  // Three tiles of keys and of queries, so that a stage is reused.
  const auto whole = [](const TensorList& t) { return TensorList{attention(t[0], t[1], t[2])}; };
  CHECK(disagreement(
            whole,
            {random({1, 9, 3, 64}, 1), random({1, 130, 1, 64}, 2), random({1, 130, 1, 64}, 3)},
            in(DType::bf16)) == "");
}

TEST_CASE("race: the gated delta rule over two chunks and its convolution") {
  const auto rule = [](const TensorList& t) {
    return TensorList{gated_delta(t[0], t[0], t[1], t[2], t[2]).y};
  };
  CHECK(disagreement(rule,
                     {random({1, 66, 1, 3}, 1), random({1, 66, 1, 2}, 2),
                      test::random_in({1, 66, 1}, -0.1, 0, 3)},
                     in(DType::f32, 8)) == "");
  const auto conv = [](const TensorList& t) {
    return TensorList{causal_conv1d(t[0], t[1], {.silu = true})};
  };
  CHECK(disagreement(conv, {random({1, 70, 3}, 1), random({3, 4}, 2)}, in(DType::f32, 4)) == "");
}

TEST_CASE("race: AdamW with clipping") {
  const auto stepped = [](Device device) {
    Tensor p = random({300}, 1, DType::f32).to(device), q = random({7}, 2, DType::f32).to(device);
    p.set_requires_grad();
    q.set_requires_grad();
    const NamedTensors all{{"p", p}, {"q", q}};
    optim::AdamW opt(all, {.m_dtype = DType::f16});
    p.set_grad(random({300}, 3, DType::f32).to(device));
    q.set_grad(random({7}, 4, DType::f32).to(device));
    opt.step(optim::measure_clip(all, 1));
    return cat({p.detach(), q.detach()}).to(kCpu);
  };
  CHECK(test::mismatch(stepped(kGpu), stepped(kCpu), 1e-6) == "");
}

}  // namespace weft::race_test
