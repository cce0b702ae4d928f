#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/softmax.h"
#include "weft/nn/attention.h"
#include "weft/nn/block.h"
#include "weft/nn/moe.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/support.h"

namespace weft::moe_test {

namespace {

using nn::Activation;
using nn::MoE;
using nn::MoeOptions;
using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

// Weights large enough that scores differ and every term affects the output.
MoE layer(MoeOptions options, DType dtype = DType::f64) {
  options.ffn = 5;
  MoE moe(6, options);
  std::uint64_t seed = 20;
  for (const Tensor& p : moe.parameters()) p.copy_(mul(random(p.shape(), ++seed, DType::f32), 0.4));
  moe.to(dtype);
  return moe;
}

Tensor affine(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Tensor y = matmul(x, w.t());
  return b.defined() ? add(y, b) : y;
}

// Every expert sees every token; an expert that was not chosen has probability 0.
//   y_t = sum over e of p_te FFN_e(x_t)
Tensor dense(const MoE& m, const Tensor& x) {
  const Tensor logits = matmul(x, m.router.weight.t());
  const Tensor chosen = route(logits.detach(), {}, m.options.router.route).experts;
  Tensor mask = Tensor::zeros({x.dim(0), m.options.experts}, x.dtype());
  for (std::int64_t j = 0; j < chosen.dim(1); ++j)
    mask = add(mask, one_hot(contiguous(chosen.select(1, j)), m.options.experts, x.dtype()));
  const Tensor p = softmax(add(logits, mul(sub(mask, 1.0), 1e30)));
  const Tensor in = m.latent_down ? affine(x, m.latent_down->weight, {}) : x;
  Tensor y;
  for (std::int64_t e = 0; e < m.options.experts; ++e) {
    const auto of = [e](const Tensor& t) { return t.defined() ? t.select(0, e) : Tensor(); };
    const Tensor h = test::activation_by_parts(affine(in, of(m.experts.up), of(m.experts.up_bias)),
                                               m.options.activation);
    const Tensor part =
        mul(affine(h, of(m.experts.down), of(m.experts.down_bias)), p.narrow(1, e, 1));
    y = y.defined() ? add(y, part) : part;
  }
  if (m.latent_up) y = affine(y, m.latent_up->weight, {});
  if (m.shared) {
    const nn::Mlp& mlp = m.shared->mlp;
    const Tensor h =
        test::activation_by_parts(affine(x, mlp.up.weight, mlp.up.bias), m.options.activation);
    Tensor s = affine(h, mlp.down.weight, mlp.down.bias);
    if (m.shared->gate) s = mul(s, sigmoid(affine(x, m.shared->gate->weight, {})));
    y = add(y, s);
  }
  return y;
}

// y, then the gradients of x and of all parameters.
template <class F>
TensorList run(const MoE& m, const Tensor& given, F f) {
  Tensor x = given.detach();
  x.set_requires_grad();
  TensorList wanted{x};
  for (const Tensor& p : m.parameters()) wanted.push_back(p);
  Tape tape;
  const Tensor y = f(x);
  TensorList out = tape.gradients(y, wanted, random(y.shape(), 9, DType::f64).to(y.dtype()));
  out.push_back(y.detach());
  return out;
}

TensorList run(const MoE& m, const Tensor& x) {
  return run(m, x, [&](const Tensor& in) { return m(in).y; });
}

const MoeOptions kLayers[] = {{.experts = 4},
                              {.experts = 4,
                               .router = {.route = {.topk = 4}},
                               .activation = Activation::gelu_tanh,
                               .bias = true},
                              {.experts = 5,
                               .router = {.route = {.topk = 3}},
                               .activation = Activation::gelu_erf,
                               .shared_ffn = 7},
                              {.experts = 4, .bias = true, .shared_ffn = 3, .shared_gate = true},
                              {.experts = 4, .activation = Activation::geglu, .recompute = true},
                              {.experts = 4, .activation = Activation::relu2, .shared_ffn = 3},
                              {.experts = 4, .latent = 3, .recompute = true},
                              {.experts = 40, .alignment = 8}};  // more experts than slots

}  // namespace

TEST_CASE("D3: forward and backward equal the dense sum over all experts") {
  for (const MoeOptions& o : kLayers)
    for (const std::int64_t tokens : {1, 11}) {
      CAPTURE(o.experts);
      CAPTURE(tokens);
      const MoE m = layer(o);
      const Tensor x = random({tokens, 6}, 1);
      const TensorList got = run(m, x);
      const TensorList want = run(m, x, [&](const Tensor& in) { return dense(m, in); });
      for (int i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(mismatch(got[i], want[i], 1e-9) == "");
      }
      const MoE narrow = layer(o, DType::f32);
      const TensorList single = run(narrow, x.to(DType::f32));
      for (int i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(mismatch(single[i], want[i], 1e-5) == "");
      }
    }
}

TEST_CASE("R15: gradients through router and experts match finite differences") {
  for (const MoeOptions& o : kLayers) {
    if (o.experts > 5) continue;
    CAPTURE(o.experts);
    MoE m = layer(o);
    const auto op = [&](const TensorList& in) {
      m.router.weight = in[1];
      m.experts.up = in[2];
      m.experts.down = in[3];
      return m(in[0]).y;
    };
    CHECK(gradcheck(op, {random({7, 6}, 3), m.router.weight.detach(), m.experts.up.detach(),
                         m.experts.down.detach()}) == "");
  }
}

TEST_CASE("D8: the shared expert adds its own term to the routed experts' output") {
  const MoE m = layer({.experts = 4, .bias = true, .shared_ffn = 3});
  MoE alone = layer({.experts = 4, .bias = true});
  alone.load_state_dict(m.state_dict(), false);
  const Tensor x = random({9, 6}, 2);
  const TensorList got = run(m, x), rest = run(alone, x);
  const TensorList shared = run(m, x, [&](const Tensor& in) { return (*m.shared)(in); });
  CHECK(mismatch(got[0], add(rest[0], shared[0]), 1e-12) == "");
  const int last = got.size() - 1;
  CHECK(mismatch(got[last], add(rest[rest.size() - 1], shared[last]), 1e-12) == "");
  // The weights of each term get no gradient from the other.
  int of_rest = 0;
  const NamedTensors names = m.named_parameters();
  for (int i = 1; i < last; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i) - 1].name;
    CAPTURE(name);
    const bool own = name.starts_with("shared.");
    CHECK(mismatch(got[i], own ? shared[i] : rest[++of_rest], 1e-12) == "");
  }
  CHECK(of_rest == rest.size() - 2);
}

TEST_CASE("D7: idle experts, an empty batch and one expert with all tokens") {
  MoE m = layer({.experts = 4, .bias = true, .shared_ffn = 2});
  // Every token prefers expert 2, then expert 0.
  for (std::int64_t e = 0; e < 4; ++e)
    m.router.weight.select(0, e).fill_(e == 2 ? 3 : e == 0 ? 1 : -1);
  const Tensor x = add(random({6, 6}).abs(), 0.1);
  const TensorList got = run(m, x), want = run(m, x, [&](const Tensor&in) { return dense(m, in); });
  for (int i = 0; i < got.size(); ++i) CHECK(mismatch(got[i], want[i], 1e-9) == "");
  const NamedTensors names = m.named_parameters();
  int idle = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!names[i].name.starts_with("experts.")) continue;
    const Tensor g = got[static_cast<int>(i) + 1];
    for (const std::int64_t e : {1, 3}) {
      CHECK(different_bits(g.select(0, e).abs().max(), Tensor::zeros({}, DType::f64)) == "");
      ++idle;
    }
  }
  CHECK(idle == 8);
  const TensorList none = run(m, Tensor::zeros({0, 6}, DType::f64));
  CHECK(none[none.size() - 1].shape() == Shape{0, 6});
  for (int i = 1; i + 1 < none.size(); ++i)
    if (none[i].defined()) CHECK(none[i].abs().max().item() == 0);
}

TEST_CASE("D5: padding to the capacity gives the same as dropping slots without padding") {
  for (const DropPolicy drop : {DropPolicy::position, DropPolicy::probability})
    for (const double factor : {0.5, 1.0, 1.5, 10.0}) {
      CAPTURE(factor);
      MoeOptions o{.experts = 4,
                   .router = {.capacity_factor = factor, .drop = drop},
                   .bias = true,
                   .shared_ffn = 3};
      const Tensor x = random({13, 6}, 5);
      const MoE padded = layer(o);
      o.pad_to_capacity = false;
      const MoE plain = layer(o);
      const TensorList got = run(padded, x), want = run(plain, x);
      for (int i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(mismatch(got[i], want[i], 1e-12) == "");
      }
      // By hand: the later slots of a full expert are dropped.
      if (drop != DropPolicy::position) continue;
      o.router.capacity_factor = 0;
      const MoE all = layer(o);
      const auto dropped = [&](const Tensor& in) {
        const Routing r = all.router(in).routing;
        const Tensor kept = r.experts.detach().clone();
        std::vector<std::int64_t> used(4, 0);
        std::int64_t* id = kept.data<std::int64_t>();
        for (std::int64_t i = 0; i < kept.numel(); ++i)
          if (used[static_cast<std::size_t>(id[i])]++ >= expert_capacity(13, 4, 2, factor))
            id[i] = -1;
        nn::Dispatch d = all.dispatcher().dispatch_preprocess(in, {r.probs, kept}, 0);
        all.dispatcher().token_dispatch(d);
        all.dispatcher().dispatch_postprocess(d);
        const Tensor y = all.experts(d.tokens, d.probs, d.expert_rows);
        return add(all.dispatcher().combine_postprocess(y, d), (*all.shared)(in));
      };
      const TensorList by_hand = run(all, x, dropped);
      for (int i = 0; i < got.size(); ++i) CHECK(mismatch(got[i], by_hand[i], 1e-12) == "");
    }
}

TEST_CASE("D4, D6: padding rows and their alignment change no bit") {
  MoeOptions o{.experts = 4, .router = {.route = {.topk = 3}}, .bias = true};
  const Tensor x = random({9, 6}, 5);
  const TensorList want = run(layer(o), x);
  for (const std::int64_t alignment : {4, 16}) {  // 16 is more than the number of tokens
    o.alignment = alignment;
    const MoE m = layer(o);
    nn::Dispatch d = m.dispatcher().dispatch_preprocess(x, m.router(x).routing, 0);
    for (std::int64_t e = 0; e < 4; ++e)
      CHECK(d.rows.rows.data<std::int64_t>()[e] % alignment == 0);
    const TensorList got = run(m, x);
    for (int i = 0; i < got.size(); ++i) CHECK(different_bits(got[i], want[i]) == "");
  }
}

TEST_CASE("MoE: padding tokens are not dispatched and get 0 from the experts") {
  const MoE m = layer({.experts = 4});
  const Tensor x = random({2, 3, 6});
  const Tensor padding = Tensor::of({0, 0, 1, 0, 1, 1}, {6}).to(DType::boolean);
  const Tensor y = m(x, {.packing = {.padding = padding}}).y.view({6, 6}),
               whole = m(x).y.view({6, 6});
  for (std::int64_t t = 0; t < 6; ++t) {
    const bool pad = t == 2 || t > 3;
    CHECK(mismatch(y.select(0, t), pad ? Tensor::zeros({6}, DType::f64) : whole.select(0, t),
                   1e-12) == "");
  }
  const Routing r = m.router(x.view({6, 6}), {.padding = padding}).routing;
  CHECK(m.dispatcher().dispatch_preprocess(x.view({6, 6}), r, 0).tokens.shape() == Shape{6, 6});
}

TEST_CASE("MoE: a token without an expert gets 0") {
  const MoE m = layer({.experts = 4});
  const Tensor x = random({3, 6});
  const Routing r = m.router(x).routing;
  const Tensor experts = r.experts.clone();
  experts.select(0, 1).fill_(-1);
  nn::Dispatch d = m.dispatcher().dispatch_preprocess(x, {r.probs, experts}, 0);
  m.dispatcher().dispatch_postprocess(d);
  CHECK(d.tokens.shape() == Shape{4, 6});  // two tokens of three
  const Tensor y =
      m.dispatcher().combine_postprocess(m.experts(d.tokens, d.probs, d.expert_rows), d);
  CHECK(different_bits(y.select(0, 1), Tensor::zeros({6}, DType::f64)) == "");
}

TEST_CASE("MoE: leading axes, names, clone, meta device and printed text") {
  const MoeOptions o{.experts = 4, .shared_ffn = 3, .shared_gate = true, .latent = 2};
  const MoE m = layer(o);
  const Tensor x = random({2, 3, 6}, 1);
  CHECK(different_bits(m(x).y, m(x.view({6, 6})).y.view({2, 3, 6})) == "");
  CHECK(different_bits(nn::clone(m)(x).y, m(x).y) == "");
  const StateDict state = m.state_dict();
  for (const char* name : {"router.weight", "experts.gate_up", "experts.down", "latent_down.weight",
                           "latent_up.weight", "shared.mlp.gate_up.weight",
                           "shared.mlp.down.weight", "shared.gate.weight"}) {
    CAPTURE(name);
    CHECK(state.count(name) == 1);
  }
  CHECK(m.describe() == "MoE(4 experts, 2 a token)");
  const nn::DeviceScope on_meta(kMeta);
  for (const double capacity : {0.0, 1.0}) {
    MoeOptions planned = o;
    planned.ffn = 5;
    planned.router.capacity_factor = capacity;
    const MoE meta(6, planned);
    CHECK(meta(Tensor::empty({2, 3, 6}, DType::f32, kMeta)).y.shape() == Shape{2, 3, 6});
  }
}

TEST_CASE("Block: experts replace the MLP and the router's loss joins the stream") {
  const MoeOptions moe{.experts = 4,
                       .router = {.balance = {{nn::Balance::sequence, 0.1}}},
                       .ffn = 6,
                       .shared_ffn = 4};
  nn::Block block(nn::LayerNorm(8), nn::Attention(8, 2, {.bias = false}), MoE(8, moe));
  nn::init(block, 1);
  const Tensor x = random({2, 3, 8}, 1, DType::f32), before = Tensor::full({}, 2);
  Tape tape;
  const nn::Stream one = block(nn::Stream{x, {}, {}});
  const nn::Stream two = block(nn::Stream{x, {}, before});
  CHECK(one.aux.ndim() == 0);
  CHECK(one.aux.item() > 0);
  CHECK(two.aux.item() == doctest::Approx(2 + one.aux.item()));
  // Each sequence is balanced separately.
  const Tensor first = block(nn::Stream{x.narrow(0, 0, 1), {}, {}}).aux;
  const Tensor second = block(nn::Stream{x.narrow(0, 1, 1), {}, {}}).aux;
  CHECK(one.aux.item() == doctest::Approx((first.item() + second.item()) / 2));
  CHECK(error_of([&] { block(x); }) ==
        "block: a block with experts is called on a Stream, which carries its loss");
  CHECK(block.state_dict().count("moe.experts.down") == 1);
  CHECK(nn::clone(block).parameter_count() == block.parameter_count());
}

TEST_CASE("MoE: errors name the rule") {
  const auto text = [](MoeOptions o) {
    o.experts = o.experts ? o.experts : 4;
    return error_of([&] { MoE(4, o); });
  };
  CHECK(error_of([] { MoE(4, {.ffn = 3}); }) == "moe: experts must be at least 1, got 0");
  CHECK(text({.ffn = 0}) == "moe: ffn must be at least 1, got 0");
  CHECK(text({.ffn = 2, .shared_ffn = -1}) == "moe: shared_ffn must be at least 0, got -1");
  CHECK(text({.ffn = 2, .shared_gate = true}) == "moe: shared_gate needs a shared_ffn");
  CHECK(text({.ffn = 2, .latent = -1}) == "moe: latent must be at least 0, got -1");
  CHECK(text({.ffn = 2, .alignment = -1}) == "moe: alignment must be at least 0, got -1");
}

TEST_CASE("MoE: boundaries checked for other tokens are refused") {
  const MoE moe = layer({.experts = 4, .router = {.balance = {{nn::Balance::sequence, 0.1}}}});
  const Tensor x = random({1, 8, 6});
  Tape tape;
  const auto error = [&](std::vector<std::int32_t> boundaries) {
    const nn::Packing packing = nn::Packing::of(boundaries, 4096);
    return error_of([&] { (void)moe(x, {.packing = packing}); });
  };
  CHECK(error({0, 4, 4096}) == "moe: the packed row must have the 8 tokens of x, got 4096");
  CHECK(error({0, 4, 7}) == "moe: the packed row must have the 8 tokens of x, got 7");
  CHECK(error({0, 4, 8}) == "no error");
}

}  // namespace weft::moe_test
