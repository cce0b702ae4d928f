// Largest magnitudes and codes that the op before a product computes: the same bytes as with a pass
// of their own, and less of them read.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/token_permute.h"
#include "weft/core/parallel.h"
#include "weft/core/profile.h"
#include "weft/tests/support.h"

namespace weft::fp8_rows_test {
namespace {

using fp8::Recipe;
using fp8::Scaling;
using test::different_bits;
using test::random;

struct Producer {
  const char* name;
  Tensor (*make)(const Tensor& x);  // from x (rows, 2C) or (rows, C); f32 or bf16
  bool halves = false;
};
Tensor scale_of(const Tensor& x) { return random({x.dim(0)}, 7, DType::f32); }
const Producer kProducers[] = {
    {"rms_norm", [](const Tensor& x) { return rms_norm(x, {}, 1e-5); }},
    {"rms_norm_residual",
     [](const Tensor& x) { return rms_norm_residual(x, x.detach(), {}, 1e-5).y; }},
    {"layer_norm", [](const Tensor& x) { return layer_norm(x, {}, {}, 1e-5); }},
    {"layer_norm_residual",
     [](const Tensor& x) { return layer_norm_residual(x, x.detach(), {}, {}, 1e-5).y; }},
    {"gelu tanh", [](const Tensor& x) { return gelu(x, Gelu::tanh); }},
    {"gelu erf", [](const Tensor& x) { return gelu(x, Gelu::erf); }},
    {"swiglu", [](const Tensor& x) { return swiglu(x); }, true},
    {"scaled_swiglu", [](const Tensor& x) { return scaled_swiglu(x, scale_of(x)); }, true},
    {"scaled_gelu", [](const Tensor& x) { return scaled_gelu(x, scale_of(x), Gelu::tanh); }}};

Tensor operand(const Producer& p, std::int64_t rows, std::int64_t width, DType t) {
  return random({rows, p.halves ? 2 * width : width}, 1, t).set_requires_grad();
}

// Under the tape, outside of any Autocast: nothing is remembered.
Tensor plain(const Producer& p, const Tensor& x) { return p.make(x); }

const Recipe kDelayed{.scaling = Scaling::delayed, .history = 4}, kBlock{.scaling = Scaling::block};

fp8::LayerState state_of(const Recipe& r) {
  fp8::LayerState state;
  if (r.scaling == Scaling::delayed)
    state.delayed = {Tensor::zeros({r.history, 3}), Tensor::of({50, 20, 90})};
  return state;
}

// By a pass of its own.
fp8::Quantized rounded(const Tensor& y, const Recipe& r, const fp8::LayerState& state) {
  const RowGroups rows{.each = y.dim(0)};
  if (r.scaling == Scaling::block)
    return fp8::quantize_tiles(y, rows, fp8::kForward, {1, kFp8Block}, r.numbers());
  return fp8::quantize_delayed(y, rows, fp8::kForward, state.delayed, fp8::Operand::x, false);
}

}  // namespace

TEST_CASE("fp8 rows: codes and scales of a pass of their own") {
  for (const Recipe& r : {kDelayed, kBlock})
    for (const Producer& p : kProducers)
      for (const DType t : {DType::f32, DType::bf16})
        for (const std::int64_t width : {1, 7, 128, 300, 700}) {
          CAPTURE(p.name);
          CAPTURE(width);
          const fp8::LayerState state = state_of(r);
          const Tensor x = operand(p, 9, width, t);
          x.detach().select(0, 4).mul_(1e6);
          x.detach().select(0, 5).zero_();
          Tape tape;
          const Tensor y = plain(p, x);
          const fp8::Quantized want = rounded(y.detach(), r, state);
          const fp8::Autocast scope(r);
          const fp8::ProducesFor next(&state);
          const Tensor again = p.make(x);
          CHECK(different_bits(again, y) == "");
          const RoundedRows got = fp8::take_rows(again, r, state.delayed);
          REQUIRE(got.codes.defined());
          CHECK(different_bits(got.codes, want.rows) == "");
          CHECK(different_bits(got.inverse, want.inverse) == "");
          CHECK(!fp8::take_rows(again, r, state.delayed).codes.defined());
        }
}

TEST_CASE(
    "fp8 rows: codes are for the layer that was named, with the scale that they were made with") {
  const fp8::LayerState state = state_of(kDelayed), other = state_of(kDelayed);
  const Tensor x = random({16, 32}, 1, DType::bf16).set_requires_grad();
  Tape tape;
  const fp8::Autocast scope(kDelayed);
  const auto made = [&](const fp8::LayerState* reader) {
    const fp8::ProducesFor next(reader);
    return rms_norm(x, {}, 1e-5);
  };
  const auto has_codes = [&](const Tensor& y, const fp8::LayerState& reader) {
    return fp8::take_rows(y, kDelayed, reader.delayed).codes.defined();
  };
  CHECK(!has_codes(made(nullptr), state));
  const Tensor y = made(&state);
  CHECK(!has_codes(y, other));
  CHECK(!fp8::take_rows(y, Recipe{}, {}).codes.defined());
  CHECK(fp8::take_rows(y, Recipe{}, {}).amax.defined());
  CHECK(has_codes(y, state));
  const Tensor old = made(&state);
  fp8::roll(state.delayed, kDelayed);
  CHECK(!has_codes(old, state));
}

TEST_CASE("fp8 row amax: the largest magnitude of each row, and the same result as without") {
  for (const Producer& p : kProducers)
    for (const DType t : {DType::f32, DType::bf16})
      for (const std::int64_t width : {1, 7, 48, 300, 700}) {
        CAPTURE(p.name);
        CAPTURE(width);
        CAPTURE(std::string(name(t)));
        Tensor x = operand(p, 9, width, t);
        x.select(0, 4).mul_(1e6);
        Tape tape;
        const Tensor want = plain(p, x);
        const fp8::Autocast scope(Recipe{});
        const Tensor y = p.make(x), amax = fp8::row_amax_of(y);
        CHECK(different_bits(y, want) == "");
        REQUIRE(amax.defined());
        CHECK(different_bits(amax, max(abs(want.detach().to(DType::f32)), -1)) == "");
        CHECK(!fp8::row_amax_of(want).defined());
        CHECK(!fp8::row_amax_of(y.detach()).defined());
      }
}

TEST_CASE("fp8 row amax: a NaN and an infinity of a row stay visible") {
  const fp8::Autocast scope(Recipe{});
  Tensor x = random({3, 32}, 1, DType::f32).set_requires_grad();
  x.detach().select(0, 1).select(0, 5).fill_(std::numeric_limits<double>::quiet_NaN());
  x.detach().select(0, 2).select(0, 3).fill_(std::numeric_limits<double>::infinity());
  Tape tape;
  const Tensor amax = fp8::row_amax_of(gelu(x, Gelu::tanh));
  REQUIRE(amax.defined());
  CHECK(std::isfinite(amax.select(0, 0).item()));
  CHECK(std::isnan(amax.select(0, 1).item()));
  CHECK(std::isinf(amax.select(0, 2).item()));
}

TEST_CASE("fp8 row amax: products have the same bits as with a pass of their own") {
  const Recipe recipes[] = {{}, {.power_of_two = true}, kDelayed, kBlock};
  for (const Recipe& r : recipes)
    for (const Producer& p : kProducers)
      for (const DType t : {DType::f32, DType::bf16}) {
        CAPTURE(p.name);
        const Tensor weight = random({32, 48}, 2, t).set_requires_grad();
        const Tensor dy = random({64, 32}, 3, t);
        TensorList results[2];
        Tensor histories[2];
        for (const bool known : {false, true}) {
          const fp8::LayerState state = state_of(r);
          const Tensor x = operand(p, 64, 48, t);
          Tape tape;
          Tensor h;
          if (!known) h = plain(p, x);
          const fp8::Autocast scope(r);
          const fp8::ProducesFor next(&state);
          if (known) h = p.make(x);
          if (r.scaling != Scaling::block) CHECK(fp8::row_amax_of(h).defined() == known);
          const Tensor y = fp8_linear(h, weight, {}, r, &state);
          results[known] = tape.gradients(y, {x, weight}, dy);
          results[known].push_back(y.detach());
          histories[known] = state.delayed.history;
        }
        for (int i = 0; i < 3; ++i) CHECK(different_bits(results[0][i], results[1][i]) == "");
        if (r.scaling == Scaling::delayed) CHECK(different_bits(histories[0], histories[1]) == "");
      }
}

TEST_CASE("fp8 row amax: permuted tokens, with padded rows, in groups") {
  const fp8::Autocast scope(Recipe{});
  const Tensor choice = Tensor::of({{0, 2}, {2, 0}, {2, -1}, {0, 2}, {-1, 2}}).to(DType::i64);
  const ExpertRows rows = sort_by_expert(choice, 3, {.alignment = 16});
  const Tensor x = random({5, 32}, 1, DType::bf16).set_requires_grad();
  const Tensor w = random({3, 48, 32}, 2, DType::bf16).set_requires_grad();
  TensorList results[2];
  for (const bool known : {false, true}) {
    Tape tape;
    const Tensor h = rms_norm(x, {}, 1e-5);
    const Tensor tokens = permute_tokens(known ? h : mul(h, 1.0), rows);
    const Tensor amax = fp8::row_amax_of(tokens);
    REQUIRE(amax.defined() == known);
    if (known) CHECK(different_bits(amax, max(abs(tokens.detach().to(DType::f32)), -1)) == "");
    const Tensor y = fp8_grouped_linear(tokens, w, rows.rows, Recipe{});
    results[known] = tape.gradients(y, {x, w}, random(y.shape(), 3, DType::bf16));
    results[known].push_back(y.detach());
  }
  for (int i = 0; i < 3; ++i) CHECK(different_bits(results[0][i], results[1][i]) == "");
}

TEST_CASE("fp8 rows: codes of permuted tokens, with padded rows, in groups") {
  const Tensor choice = Tensor::of({{0, 2}, {2, 0}, {2, -1}, {0, 2}, {-1, 2}}).to(DType::i64);
  const ExpertRows rows = sort_by_expert(choice, 3, {.alignment = 16});
  const Tensor x = random({5, 144}, 1, DType::bf16).set_requires_grad();
  const Tensor w = random({3, 48, 144}, 2, DType::bf16).set_requires_grad();
  for (const Recipe& r : {kDelayed, kBlock}) {
    const fp8::Autocast scope(r);
    TensorList results[2];
    Tensor histories[2];
    double moved[2] = {};
    for (const bool known : {false, true}) {
      const fp8::LayerState state = state_of(r);
      Tape tape;
      const Tensor h = [&] {
        const fp8::ProducesFor next(known ? &state : nullptr);
        return rms_norm(x, {}, 1e-5);
      }();
      const Tensor tokens = permute_tokens(h, rows);
      CHECK(!fp8::take_rows(h, r, state.delayed).codes.defined());
      Profiler profile;
      profile.start("forward");
      const Tensor y = fp8_grouped_linear(tokens, w, rows.rows, r, &state);
      profile.stop();
      for (const Profiler::Entry& e : profile.entries())
        if (e.kernel.find("quantize") != std::string::npos) moved[known] += e.work.bytes;
      results[known] = tape.gradients(y, {x, w}, random(y.shape(), 3, DType::bf16));
      results[known].push_back(y.detach());
      histories[known] = state.delayed.history;
    }
    for (int i = 0; i < 3; ++i) CHECK(different_bits(results[0][i], results[1][i]) == "");
    // Blocks along the other axis, for backward, take a pass over bf16 as before.
    CHECK(moved[0] - moved[1] >= 3.0 * 144 * static_cast<double>(rows.slot_of.numel()));
    if (r.scaling == Scaling::delayed) CHECK(different_bits(histories[0], histories[1]) == "");
  }
}

TEST_CASE(
    "fp8 row amax: forgotten when the tensor is written, after others, and with the Autocast") {
  const Tensor x = random({16, 32}, 1, DType::f32).set_requires_grad();
  Tape tape;
  Tensor y;
  {
    const fp8::Autocast scope(Recipe{});
    CHECK(!fp8::row_amax_of(x).defined());
    y = rms_norm(x, {}, 1e-5);
    CHECK(fp8::row_amax_of(y).defined());
    {
      const fp8::Autocast off(std::nullopt);
      CHECK(!fp8::row_amax_of(y).defined());
      const fp8::Autocast block(Recipe{.scaling = Scaling::block});
      CHECK(!fp8::row_amax_of(y).defined());
      CHECK(!fp8::row_amax_of(rms_norm(x, {}, 1e-5)).defined());
    }
    CHECK(fp8::row_amax_of(y).defined());
    for (int i = 0; i < 3; ++i) (void)rms_norm(x, {}, 1e-5);
    CHECK(fp8::row_amax_of(y).defined());
    (void)rms_norm(x, {}, 1e-5);
    CHECK(!fp8::row_amax_of(y).defined());
    Tensor z = rms_norm(x, {}, 1e-5);
    z.bump_version();
    CHECK(!fp8::row_amax_of(z).defined());
    {
      const NoGradGuard off;
      CHECK(!fp8::row_amax_of(rms_norm(x, {}, 1e-5)).defined());
    }
    y = rms_norm(x, {}, 1e-5);
  }
  const fp8::Autocast scope(Recipe{});
  CHECK(!fp8::row_amax_of(y).defined());
}

TEST_CASE("fp8 row amax: the product reads its operand once") {
  const Tensor x = random({64, 256}, 1, DType::bf16).set_requires_grad();
  const Tensor w = random({32, 256}, 2, DType::bf16).set_requires_grad();
  const fp8::Autocast scope(Recipe{});
  const auto bytes = [&](bool known) {
    Tape tape;
    const Tensor h = rms_norm(x, {}, 1e-5), in = known ? h : h.detach();
    Profiler profile;
    profile.start("forward");
    (void)fp8_linear(in, w, {}, Recipe{});
    profile.stop();
    double sum = 0;
    for (const Profiler::Entry& e : profile.entries())
      if (e.kernel.find("fp8_amax") != std::string::npos) sum += e.work.bytes;
    return sum;
  };
  const double weight = 32 * 256 * 2 + 4;
  CHECK(bytes(false) == weight + 64 * 256 * 2 + 4);
  CHECK(bytes(true) == weight + 64 * 4 + 4);
}

}  // namespace weft::fp8_rows_test
