// The gated delta layer and models that mix it with attention.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/nn/attention.h"
#include "weft/tests/gpt_support.h"

namespace weft::gated_delta_net_test {
using nn::Arch;
using nn::GatedDeltaNet;
using nn::GatedDeltaNetOptions;
using nn::Gpt;
using nn::GptConfig;
using test::error_of;
using test::mismatch;
using test::values;

namespace {

const GatedDeltaNetOptions kSmall{
    .key_heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 5, .conv = 4};

// Weights large enough that a wrong section of in_proj shows.
template <class M>
M wide(M model) {
  model.to(DType::f64);
  std::uint64_t seed = 70;
  for (const NamedTensor& p : model.named_parameters()) {
    const bool norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    if (p.name.ends_with("a_log")) continue;
    normal_(p.tensor, {seed++, 1, 0}, norm ? 1 : 0, p.tensor.ndim() == 2 ? 0.25 : 0.1);
  }
  return model;
}

using Row = std::vector<double>;

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

// The layer's formulas for one sequence, in scalar loops.
Row by_definition(const GatedDeltaNet& m, const Tensor& x) {
  const GatedDeltaNetOptions& o = m.options;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::size_t tokens = size(x.dim(1)), width = size(x.dim(2)), Hk = size(o.key_heads);
  const std::size_t Hv = size(o.value_heads), K = size(o.key_dim), V = size(o.value_dim);
  const std::size_t taps = size(o.conv), mixed = 2 * Hk * K + Hv * V,
                    rows = mixed + Hv * V + 2 * Hv;
  const Row in = values(x), weight = values(m.in_proj.weight), conv = values(m.conv);
  const Row a_log = values(m.a_log), dt = values(m.dt_bias), norm = values(m.norm.weight);
  const Row out_weight = values(m.out_proj.weight);
  std::vector<Row> p;  // in_proj of each token
  std::vector<Row> state(Hv, Row(K * V, 0.0));
  Row out;
  for (std::size_t t = 0; t < tokens; ++t) {
    Row& now = p.emplace_back(rows, 0.0);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < width; ++c) now[r] += weight[r * width + c] * in[t * width + c];
    Row qkv(mixed, 0.0);
    for (std::size_t c = 0; c < mixed; ++c) {
      for (std::size_t j = 0; j < taps; ++j)
        if (t + j + 1 >= taps) qkv[c] += conv[c * taps + j] * p[t + j + 1 - taps][c];
      qkv[c] *= sigmoid_of(qkv[c]);
    }
    Row gated;
    for (std::size_t h = 0; h < Hv; ++h) {
      const std::size_t key_head = h / (Hv / Hk);
      Row q(K), k(K), v(V), y(V, 0.0);
      double qq = 0, kk = 0, yy = 0;
      for (std::size_t c = 0; c < K; ++c) {
        q[c] = qkv[key_head * K + c];
        k[c] = qkv[Hk * K + key_head * K + c];
        qq += q[c] * q[c];
        kk += k[c] * k[c];
      }
      for (std::size_t c = 0; c < V; ++c) v[c] = qkv[2 * Hk * K + h * V + c];
      const double beta = sigmoid_of(now[mixed + Hv * V + h]);
      const double alpha = now[mixed + Hv * V + Hv + h] + dt[h];
      const double decay = std::exp(-std::exp(a_log[h]) * std::log(1 + std::exp(alpha)));
      Row& s = state[h];
      for (double& e : s) e *= decay;
      for (std::size_t c = 0; c < V; ++c) {
        double found = 0;
        for (std::size_t i = 0; i < K; ++i) found += s[i * V + c] * k[i] / std::sqrt(kk + 1e-6);
        for (std::size_t i = 0; i < K; ++i)
          s[i * V + c] += k[i] / std::sqrt(kk + 1e-6) * beta * (v[c] - found);
        for (std::size_t i = 0; i < K; ++i)
          y[c] += s[i * V + c] * q[i] / std::sqrt(qq + 1e-6) / std::sqrt(static_cast<double>(K));
        yy += y[c] * y[c] / static_cast<double>(V);
      }
      for (std::size_t c = 0; c < V; ++c) {
        const double z = now[mixed + h * V + c];
        gated.push_back(y[c] / std::sqrt(yy + o.norm_eps) * norm[c] * z * sigmoid_of(z));
      }
    }
    for (std::size_t r = 0; r < width; ++r) {
      double sum = 0;
      for (std::size_t c = 0; c < Hv * V; ++c) sum += out_weight[r * Hv * V + c] * gated[c];
      out.push_back(sum);
    }
  }
  return out;
}

GptConfig hybrid(Arch arch) {
  return {.arch = arch,
          .layers = 3,
          .heads = 4,
          .kv_heads = 2,
          .dim = 32,
          .seq = 12,
          .vocab = 19,
          .pattern = "da"};
}

Tensor tokens(std::int64_t rows, std::int64_t n) { return test::random({rows, n}, 5, DType::i32); }

}  // namespace

TEST_CASE("gated_delta_net: output follows its formulas") {
  const GatedDeltaNet m = wide(GatedDeltaNet(8, kSmall));
  const Tensor x = test::random({1, 7, 8}, 1);
  CHECK(mismatch(m(x), Tensor::from<double>(by_definition(m, x), {1, 7, 8}), 1e-12) == "");
  const Tensor two = cat({x, test::random({1, 7, 8}, 2)}, 0);
  CHECK(mismatch(m(two).narrow(0, 0, 1), m(x), 1e-13) == "");
}

TEST_CASE("gated_delta_net: parameter shapes, initial values and dtypes") {
  nn::DeviceScope scope(kCpu, DType::f32);
  GatedDeltaNet m(16, {.key_heads = 20, .value_heads = 40, .key_dim = 4, .value_dim = 6});
  nn::init(m, 3);
  const auto s = m.state_dict();
  CHECK(s.size() == 6);
  CHECK(s.at("in_proj.weight").shape() == Shape{2 * 80 + 2 * 240 + 2 * 40, 16});
  CHECK(s.at("conv").shape() == Shape{2 * 80 + 240, 4});
  CHECK(s.at("norm.weight").shape() == Shape{6});
  CHECK(s.at("out_proj.weight").shape() == Shape{16, 240});
  double low = 9, high = -9;
  for (const double a : values(s.at("a_log"))) {
    low = std::min(low, a);
    high = std::max(high, a);
  }
  CHECK(low >= 0);
  CHECK(high < std::log(16.0));
  CHECK(high > std::log(12.0));
  CHECK(mismatch(s.at("dt_bias"), Tensor::ones({40}), 0) == "");
  CHECK(norm(s.at("conv"), INFINITY).item() == doctest::Approx(0.5).epsilon(0.01));
  m.to(DType::bf16);
  CHECK(m.a_log.dtype() == DType::f32);
  CHECK(m.dt_bias.dtype() == DType::f32);
  CHECK(m.conv.dtype() == DType::bf16);
  const Tensor y = m(test::random({2, 3, 16}, 1, DType::bf16));
  CHECK(y.dtype() == DType::bf16);
  CHECK(y.shape() == Shape{2, 3, 16});
  const GatedDeltaNet copy = nn::clone(m);
  CHECK(mismatch(copy(test::random({2, 3, 16}, 1, DType::bf16)), y, 0) == "");
}

TEST_CASE("gated_delta_net: gradients of x and the weights match finite differences") {
  GatedDeltaNet m = wide(GatedDeltaNet(4, {.key_dim = 3, .value_dim = 2}));
  const auto f = [&](const TensorList& in) {
    m.in_proj.weight = in[1];
    m.conv = in[2];
    m.norm.weight = in[3];
    m.a_log = in[4];
    m.dt_bias = in[5];
    return m(in[0]);
  };
  CHECK(gradcheck(f, {test::random({1, 6, 4}, 1), test::random(m.in_proj.weight.shape(), 2),
                      test::random(m.conv.shape(), 3), test::random({2}, 4), test::random({1}, 5),
                      test::random({1}, 6)}) == "");
}

TEST_CASE("gated_delta_net: parameter count, FLOPs and cache follow the configured sizes") {
  GptConfig c = hybrid(Arch::llama);
  const double plain = c.flops_per_token();
  CHECK(Gpt(c).blocks[0].as<GatedDeltaNet>()->options.key_heads == c.heads);
  c.delta.key_heads = 1;
  c.delta.value_heads = 3;
  c.delta.key_dim = 5;
  c.delta.value_dim = 7;
  c.delta.conv = 3;
  const Gpt model(c);
  const GatedDeltaNet& m = *model.blocks[0].as<GatedDeltaNet>();
  CHECK(m.in_proj.weight.dim(0) == 2 * 5 + 2 * 3 * 7 + 2 * 3);
  CHECK(m.conv.shape() == Shape{2 * 5 + 3 * 7, 3});
  CHECK(model.parameter_count() == c.parameter_count());
  CHECK(c.flops_per_token() != plain);
  // Decoding token by token equals one pass, so the cache has the configured sizes too.
  const Tensor ids = test::random({1, 6}, 1, DType::i32);
  nn::KvCache cache(c, 1, 6);
  const Tensor whole = model(ids);
  for (std::int64_t i = 0; i < 6; ++i)
    CHECK(test::mismatch(model.decode(ids.narrow(1, i, 1), cache).view({c.vocab}),
                         whole.select(0, 0).select(0, i), 1e-5) == "");
}

TEST_CASE("gated_delta_net: errors name the rule") {
  const auto text = [](const GatedDeltaNetOptions& o) {
    return error_of([&] { GatedDeltaNet(8, o); });
  };
  CHECK(text({.key_heads = 2, .value_heads = 3}) ==
        "gated_delta_net: value_heads 3 must be a multiple of key_heads 2");
  CHECK(text({.key_dim = 0}) ==
        "gated_delta_net: key_dim and value_dim must be at least 1, got 0 and 64");
  CHECK(text({.conv = 9}) == "gated_delta_net: conv must be in [2, 8], got 9");
  const GatedDeltaNet m(8, kSmall);
  CHECK(error_of([&] {
          m(Tensor::zeros({2, 8}));
        }) == "delta: x must have shape (batch, tokens, dim), got [2, 8]");
  const Tensor cu = Tensor::of({0, 4}, {2}, DType::i32),
               at = Tensor::of({0, 1, 2, 3}, {4}, DType::i32);
  nn::KvCache cache(hybrid(Arch::llama), 1, 4);
  CHECK(error_of([&] {
          m(Tensor::zeros({1, 4, 8}), {.packing = {cu, at}, .cache = &cache});
        }) == "delta: a packed row cannot go with a cache");
  CHECK(error_of([&] { hybrid(Arch::llama).validate(); }) == "no error");
  GptConfig wrong = hybrid(Arch::llama);
  wrong.pattern = "dxa";
  CHECK(error_of([&] { wrong.validate(); }) ==
        "gpt: pattern must consist of a (attention), w (attention in a window) and d (gated delta "
        "net), got \"dxa\"");
  wrong = hybrid(Arch::llama);
  wrong.delta.value_heads = 3;
  CHECK(error_of([&] { wrong.validate(); }) ==
        "gated_delta_net: value_heads 3 must be a multiple of key_heads 4");
  wrong.pattern = "a";
  CHECK(error_of([&] { wrong.validate(); }) ==
        "gpt: delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim and delta_conv "
        "need a pattern with d, got \"a\"");
  CHECK(error_of([&] { cache.recurrent(1); }) == "kv_cache: layer 1 keeps no state in this model");
  CHECK(error_of([&] {
          cache.append(0, Tensor::zeros({1, 1, 2, 8}), Tensor::zeros({1, 1, 2, 8}));
        }) == "kv_cache: layer 0 keeps no keys and values in this model");
  CHECK(error_of([&] {
          cache.set_recurrent(0, {Tensor::zeros({1}), Tensor::zeros({1})});
        }) ==
        "kv_cache: a layer's state must keep its shapes [1, 3, 96] and [1, 4, 8, 8], got [1] and "
        "[1]");
  cache.advance(3);
  CHECK(error_of([&] { cache.truncate(2); }) ==
        "kv_cache: layers with a state forget all tokens or none: length must be 0 or 3, got 2");
}

TEST_CASE("hybrid gpt: layer kinds, parameter count and FLOPs") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const int mtp : {0, 1}) {
      GptConfig c = hybrid(arch);
      c.mtp.depths = mtp;
      const Gpt model(c);
      CHECK(model.parameter_count() == c.parameter_count());
      CHECK(model.blocks[0].as<GatedDeltaNet>() != nullptr);
      CHECK(model.blocks[1].as<nn::Attention>() != nullptr);
      CHECK(model.blocks[2].as<GatedDeltaNet>() != nullptr);
      CHECK(model.blocks[2].as<nn::Attention>() == nullptr);
      CHECK(model.state_dict().count("blocks.2.delta.a_log") == 1);
    }
  // One layer of each kind: in_proj, conv, delta rule and out_proj; qkv, proj and 6.5 visible keys.
  GptConfig c = hybrid(Arch::llama);
  c.layers = 1;
  c.pattern = "d";
  const double delta = c.flops_per_token();
  c.pattern = "a";
  const double difference =
      32 * (4 * 32 + 2 * 4) + 4 * 96 + 4 * 32 * 8 + 32 * 32 - (32 * 64 + 32 * 32 + 2 * 32 * 6.5);
  CHECK(delta - c.flops_per_token() == doctest::Approx(6 * difference));
}

TEST_CASE("hybrid gpt: decoding with a cache equals the full forward") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const Gpt model = wide(Gpt(hybrid(arch)));
    nn::KvCache cache(model.config, 3, 12, DType::f64);
    for (int again = 0; again < 2; ++again) {
      test::check_decoding(model, tokens(3, 12), cache);
      cache.truncate(0);
    }
  }
}

TEST_CASE("hybrid gpt: a packed row gives the results of its separate sequences") {
  test::check_packing(wide(Gpt(hybrid(Arch::llama))), tokens(1, 12));
}

}  // namespace weft::gated_delta_net_test
