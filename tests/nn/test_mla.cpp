// The multi-head latent attention layer and models that use it.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/nn/attention.h"
#include "weft/tests/gpt_support.h"

namespace weft::mla_test {
using nn::Arch;
using nn::AttentionKind;
using nn::Gpt;
using nn::GptConfig;
using nn::Mla;
using nn::MlaOptions;
using nn::RotaryTable;
using test::error_of;
using test::mismatch;
using test::values;

namespace {

const MlaOptions kSmall{.q_lora = 5, .kv_lora = 7, .nope = 3, .rope = 4, .v_head = 6};

// Weights large enough that a wrong section or attention to a neighbour shows.
template <class M>
M wide(M model) {
  model.to(DType::f64);
  std::uint64_t seed = 70;
  for (const NamedTensor& p : model.named_parameters()) {
    const bool norm = p.name.find("norm") != std::string::npos;
    normal_(p.tensor, {seed++, 1, 0}, norm ? 1 : 0, p.tensor.ndim() == 2 ? 0.4 : 0.1);
  }
  return model;
}

RotaryTable angles(std::int64_t rope) {
  RotaryTable table(16, rope, 100);
  table.to(DType::f64);
  return table;
}

using Row = std::vector<double>;

// y = W x for a weight (rows, x's length).
Row times(const Tensor& weight, const Row& x) {
  const Row w = values(weight);
  Row y(w.size() / x.size(), 0.0);
  for (std::size_t r = 0; r < y.size(); ++r)
    for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
  return y;
}

Row normed(const nn::RMSNorm& norm, Row x) {
  double squares = 0;
  for (const double e : x) squares += e * e / static_cast<double>(x.size());
  const Row w = values(norm.weight);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= w[i] / std::sqrt(squares + norm.eps);
  return x;
}

Row turned(const Row& x, std::size_t position) {
  const std::size_t half = x.size() / 2;
  Row y(x.size());
  for (std::size_t i = 0; i < half; ++i) {
    const double a = static_cast<double>(position) *
                     std::pow(100, -2.0 * static_cast<double>(i) / static_cast<double>(x.size()));
    y[i] = x[i] * std::cos(a) - x[half + i] * std::sin(a);
    y[half + i] = x[half + i] * std::cos(a) + x[i] * std::sin(a);
  }
  return y;
}

Row part(const Row& x, std::size_t from, std::size_t n) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(from);
  return Row(begin, begin + static_cast<std::ptrdiff_t>(n));
}

// The layer's formulas for one sequence, in scalar loops.
Tensor by_definition(const Mla& m, const Tensor& x) {
  const MlaOptions& o = m.options;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const std::size_t H = size(m.heads()), nope = size(o.nope), turn = size(o.rope);
  const std::size_t head = nope + turn, v_head = size(o.v_head), lora = size(o.kv_lora);
  const std::size_t tokens = size(x.dim(1)), width = size(x.dim(2));
  const Row in = values(x);
  std::vector<Row> queries, ups, shared;
  Row out;
  for (std::size_t t = 0; t < tokens; ++t) {
    const Row token = part(in, t * width, width);
    queries.push_back(
        times(m.q_up.weight, m.q_down ? normed(*m.q_norm, times(m.q_down->weight, token)) : token));
    const Row down = times(m.kv_down.weight, token);
    ups.push_back(times(m.kv_up.weight, normed(m.kv_norm, part(down, 0, lora))));
    shared.push_back(turned(part(down, lora, turn), t));
    Row mixed;
    for (std::size_t h = 0; h < H; ++h) {
      const Row q = part(queries[t], h * head, nope);
      const Row r = turned(part(queries[t], h * head + nope, turn), t);
      Row y(v_head, 0.0);
      double sum = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (std::size_t c = 0; c < nope; ++c) score += q[c] * ups[s][h * (nope + v_head) + c];
        for (std::size_t c = 0; c < turn; ++c) score += r[c] * shared[s][c];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(head)));
        sum += weight;
        for (std::size_t c = 0; c < v_head; ++c)
          y[c] += weight * ups[s][h * (nope + v_head) + nope + c];
      }
      for (const double e : y) mixed.push_back(e / sum);
    }
    for (const double e : times(m.proj.weight, mixed)) out.push_back(e);
  }
  return Tensor::from<double>(out, x.shape());
}

GptConfig latent() {
  return {.arch = Arch::llama,
          .layers = 2,
          .heads = 4,
          .dim = 32,
          .seq = 12,
          .vocab = 19,
          .attention = AttentionKind::mla,
          .mla = {.v_head = 5}};
}

Tensor tokens(std::int64_t rows, std::int64_t n) { return test::random({rows, n}, 5, DType::i32); }

}  // namespace

TEST_CASE("mla: output follows its formulas with and without a query latent") {
  for (const std::int64_t q_lora : {5, 0}) {
    MlaOptions o = kSmall;
    o.q_lora = q_lora;
    const Mla m = wide(Mla(8, 3, o));
    const Tensor x = test::random({1, 9, 8}, 1);
    const RotaryTable table = angles(4);
    CHECK(mismatch(m(x, {.rotary = &table}), by_definition(m, x), 1e-12) == "");
  }
}

TEST_CASE("mla: gradients of x and every weight match finite differences") {
  Mla m = wide(Mla(4, 2, {.q_lora = 3, .kv_lora = 3, .nope = 2, .rope = 2, .v_head = 1}));
  const RotaryTable table = angles(2);
  const auto f = [&](const TensorList& in) {
    m.q_down->weight = in[1];
    m.q_norm->weight = in[2];
    m.q_up.weight = in[3];
    m.kv_down.weight = in[4];
    m.kv_norm.weight = in[5];
    m.kv_up.weight = in[6];
    return m(in[0], {.rotary = &table});
  };
  CHECK(gradcheck(f, {test::random({2, 5, 4}, 1), m.q_down->weight.detach(),
                      m.q_norm->weight.detach(), m.q_up.weight.detach(), m.kv_down.weight.detach(),
                      m.kv_norm.weight.detach(), m.kv_up.weight.detach()}) == "");
}

TEST_CASE("mla: names, shapes, clone and bf16") {
  Mla m(8, 3, kSmall);
  const auto s = m.state_dict();
  CHECK(s.size() == 7);
  CHECK(s.at("q_down.weight").shape() == Shape{5, 8});
  CHECK(s.at("q_up.weight").shape() == Shape{21, 5});
  CHECK(s.at("kv_down.weight").shape() == Shape{11, 8});
  CHECK(s.at("kv_up.weight").shape() == Shape{27, 7});
  CHECK(s.at("proj.weight").shape() == Shape{8, 18});
  RotaryTable table(16, 4, 100);
  const Tensor x = test::random({2, 5, 8}, 1, DType::f32);
  const Tensor y = m(x, {.rotary = &table});
  CHECK(mismatch(nn::clone(m)(x, {.rotary = &table}), y, 0) == "");
  m.to(DType::bf16);
  CHECK(mismatch(m(x.to(DType::bf16), {.rotary = &table}), y, test::tolerance(DType::bf16)) == "");
}

TEST_CASE("mla: errors name the rule") {
  const auto text = [](std::int64_t heads, const MlaOptions& o) {
    return error_of([&] { Mla(8, heads, o); });
  };
  CHECK(text(0, kSmall) == "mla: heads must be at least 1, got 0");
  CHECK(text(1, {.rope = 2}) == "mla: kv_lora, nope and v_head must be at least 1, got 0, 0 and 0");
  CHECK(text(1, {.kv_lora = 1, .nope = 1, .rope = 3, .v_head = 1}) ==
        "mla: rope must be even and at least 2, got 3");
  CHECK(text(1, {.q_lora = -1, .kv_lora = 1, .nope = 1, .rope = 2, .v_head = 1}) ==
        "mla: q_lora must be at least 0, got -1");
  CHECK(text(1, {.kv_lora = 1, .nope = 1, .rope = 2, .v_head = 1, .window = -1}) ==
        "mla: window must be at least 0, got -1");
  const Mla m(8, 3, kSmall);
  const RotaryTable table(16, 4, 100);
  CHECK(error_of([&] {
          m(Tensor::zeros({2, 8}), {.rotary = &table});
        }) == "mla: x must have shape (batch, tokens, dim), got [2, 8]");
  const Tensor cu = Tensor::of({0, 2}, {2}, DType::i32), at = Tensor::of({0, 1}, {2}, DType::i32);
  nn::KvCache cache(latent(), 1, 4);
  CHECK(error_of([&] {
          m(Tensor::zeros({1, 2, 8}), {.packing = {cu, at}, .rotary = &table, .cache = &cache});
        }) == "mla: a packed row cannot go with a cache");
  const nn::Block block(nn::LayerNorm(8), Mla(8, 3, kSmall), nn::Mlp(8, 8));
  CHECK(error_of([&] {
          block(Tensor::zeros({1, 2, 8}));
        }) == "block: multi-head latent attention needs a rotary table");
  CHECK(error_of([&] {
          cache.append(0, Tensor::zeros({1, 2, 1, 32}), Tensor::zeros({1, 2, 1, 8}));
        }) ==
        "kv_cache: k and v must have shapes [1, 2, 1, 32] and [1, 2, 1, 4], got "
        "[1, 2, 1, 32] and [1, 2, 1, 8]");
}

TEST_CASE("mla gpt: incompatible configurations are refused") {
  const auto text = [](auto change) {
    GptConfig c = latent();
    change(c);
    return error_of([&] { c.validate(); });
  };
  CHECK(text([](GptConfig&) {}) == "no error");
  CHECK(text([](GptConfig& c) { c.arch = Arch::gpt2; }) ==
        "gpt: attention mla needs rotary positions, got learned");
  CHECK(text([](GptConfig& c) { c.kv_heads = 2; }) == "gpt: attention mla has no kv_heads, got 2");
  CHECK(text([](GptConfig& c) { c.qk_norm = true; }) ==
        "gpt: attention mla has norms of its own and takes no qk_norm");
  CHECK(text([](GptConfig& c) { c.attn_gate = true; }) ==
        "gpt: attention mla takes no rotary_dim, clip_qkv and attn_gate");
  CHECK(text([](GptConfig& c) { c.mla.kv_lora = -1; }) ==
        "gpt: kv_lora must be at least 0, got -1");
  CHECK(text([](GptConfig& c) { c.mla.rope = 3; }) ==
        "gpt: qk_rope must be even and at least 2, got 3");
  CHECK(text([](GptConfig& c) { c.attention = AttentionKind::mha; }) ==
        "gpt: q_lora, kv_lora, qk_nope, qk_rope and v_head need attention mla");
}

TEST_CASE("mla gpt: parameter count and FLOPs") {
  for (const std::int64_t q_lora : {0, 6}) {
    GptConfig c = latent();
    c.mla.q_lora = q_lora;
    c.pattern = "ad";
    const Gpt model(c);
    CHECK(model.parameter_count() == c.parameter_count());
    CHECK(model.blocks[0].as<Mla>() != nullptr);
    CHECK(model.blocks[1].as<nn::GatedDeltaNet>() != nullptr);
  }
  // One layer: the matrices, and for each of 6.5 visible keys a score of 8 + 4 and a value of 5.
  GptConfig c = latent();
  c.layers = 1;
  const double matrices = 32 * 48 + 32 * 36 + 32 * 52 + 20 * 32;
  CHECK(c.flops_per_token() ==
        doctest::Approx(6 * (matrices + 3 * 32 * 96 + 19 * 32 + 4 * 17 * 6.5)));
}

TEST_CASE("mla gpt: decoding with a latent cache equals the full forward") {
  for (const std::int64_t window : {0, 4}) {
    GptConfig c = latent();
    c.window = window;
    const Gpt model = wide(Gpt(c));
    const Tensor ids = tokens(3, 12);
    nn::KvCache cache(c, 3, 12, DType::f64);
    const Tensor all = test::check_decoding(model, ids, cache);
    cache.truncate(5);
    CHECK(mismatch(model.decode(ids.narrow(1, 5, 1), cache), all.select(1, 5), 1e-12) == "");
  }
}

TEST_CASE("mla gpt: a packed row gives the results of its separate sequences") {
  test::check_packing(wide(Gpt(latent())), tokens(1, 12));
}

TEST_CASE("mla: dropout applies to the attention weights only in training") {
  MlaOptions o = kSmall;
  o.dropout = 0.5;
  Mla m = wide(Mla(8, 3, o));
  const Tensor x = test::random({1, 9, 8}, 1), whole = by_definition(m, x);
  const RandomScope scope({.seed = 1, .step = 3});
  const RotaryTable table = angles(4);
  nn::assign_names(m);
  CHECK(mismatch(m(x, {.rotary = &table}), whole, 1e-3) != "");
  m.eval();
  CHECK(mismatch(m(x, {.rotary = &table}), whole, 1e-12) == "");
}

}  // namespace weft::mla_test
