// The largest magnitudes and codes of rows that a GPU's kernels compute beside their result.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/token_permute.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::fp8_rows_cuda_test {
namespace {

using test::different_bits;
using test::for_each_order;
using test::kGpu;
using test::random;

using Make = Tensor (*)(const Tensor& x);
Tensor plain_norm(const Tensor& x) { return rms_norm(x, {}, 1e-5); }
Tensor centred(const Tensor& x) { return layer_norm(x, {}, {}, 1e-5); }
Tensor tanh_form(const Tensor& x) { return gelu(x, Gelu::tanh); }
Tensor erf_form(const Tensor& x) { return gelu(x, Gelu::erf); }
Tensor gated(const Tensor& x) { return swiglu(x); }

}  // namespace

TEST_CASE("fp8 row amax: of every way to distribute a row, with the same result as without") {
  for (const Make make : {plain_norm, centred, tanh_form, erf_form, gated})
    for (const DType t : {DType::f32, DType::bf16})
      for (const Shape& s : {Shape{1, 2}, Shape{3, 10}, Shape{21, 16}, Shape{2, 200}, Shape{3, 530},
                             Shape{2, 1040}, Shape{2, 4112}, Shape{1, 8208}, Shape{1, 16400}}) {
        CAPTURE(to_string(s));
        CAPTURE(std::string(name(t)));
        const Tensor x = random(s, 1, t).to(kGpu).set_requires_grad();
        const auto both = [&] {
          Tape tape;
          const Tensor want = make(x);
          const fp8::Autocast scope(fp8::Recipe{});
          const Tensor y = make(x), amax = fp8::row_amax_of(y);
          CHECK(different_bits(y, want) == "");
          REQUIRE(amax.defined());
          CHECK(different_bits(amax, max(abs(want.detach().to(kCpu).to(DType::f32)), -1)) == "");
        };
        s.numel() < 1000 ? for_each_order(both) : both();
      }
}

TEST_CASE("fp8 rows: codes of every way to distribute a row, as the CPU rounds the same result") {
  using fp8::Recipe;
  const Recipe delayed{.scaling = fp8::Scaling::delayed, .history = 2};
  for (const Make make : {plain_norm, centred, erf_form, gated})
    for (const DType t : {DType::f32, DType::bf16})
      for (const Shape& s : {Shape{1, 2}, Shape{3, 10}, Shape{21, 32}, Shape{5, 272}, Shape{3, 530},
                             Shape{2, 1040}, Shape{2, 4112}, Shape{1, 16400}})
        for (const Recipe& r : {delayed, Recipe{.scaling = fp8::Scaling::block}}) {
          CAPTURE(to_string(s));
          CAPTURE(std::string(name(t)));
          const bool block = r.scaling == fp8::Scaling::block;
          fp8::LayerState state;
          if (!block) state.delayed = {Tensor::zeros({2, 3}), Tensor::of({30, 7, 11})};
          const fp8::Delayed on_cpu = state.delayed;
          if (!block) state.delayed = {on_cpu.history.to(kGpu), on_cpu.scale.to(kGpu)};
          const Tensor x = random(s, 1, t).to(kGpu).set_requires_grad();
          const auto both = [&] {
            Tape tape;
            const fp8::Autocast scope(r);
            const fp8::ProducesFor next(&state);
            const Tensor y = make(x);
            const RoundedRows got = fp8::take_rows(y, r, state.delayed);
            REQUIRE(got.codes.defined());
            const Tensor same = y.detach().to(kCpu);
            const RowGroups rows{.each = same.dim(0)};
            const fp8::Quantized want =
                block ? fp8::quantize_tiles(same, rows, fp8::kForward, {1, kFp8Block}, r.numbers())
                      : fp8::quantize_delayed(same, rows, fp8::kForward, on_cpu, fp8::Operand::x,
                                              false);
            CHECK(different_bits(got.codes.to(kCpu), want.rows) == "");
            CHECK(different_bits(got.inverse.to(kCpu), want.inverse) == "");
          };
          s.numel() < 700 ? for_each_order(both) : both();
        }
}

TEST_CASE("fp8 row amax: a NaN of a row wins on a GPU") {
  for (const Make make : {plain_norm, tanh_form})
    for (const std::int64_t width : {16, 700, 4112}) {
      Tensor x = random({2, width}, 1, DType::bf16);
      x.select(0, 1).select(0, width / 2).fill_(std::numeric_limits<double>::quiet_NaN());
      x = x.to(kGpu).set_requires_grad();
      Tape tape;
      const fp8::Autocast scope(fp8::Recipe{});
      const Tensor amax = fp8::row_amax_of(make(x));
      REQUIRE(amax.defined());
      CHECK(std::isfinite(amax.select(0, 0).item()));
      CHECK(std::isnan(amax.select(0, 1).item()));
    }
}

TEST_CASE("fp8 row amax: products and experts have the bits of a pass of their own on a GPU") {
  const Tensor choice = Tensor::of({{0, 2}, {2, 0}, {2, -1}, {0, 2}}).to(DType::i64).to(kGpu);
  const ExpertRows rows = sort_by_expert(choice, 3, {.alignment = 16});
  const Tensor x = random({4, 32}, 1, DType::bf16).to(kGpu).set_requires_grad();
  const Tensor w = random({3, 48, 32}, 2, DType::bf16).to(kGpu).set_requires_grad();
  using fp8::Scaling;
  for (const Scaling scaling : {Scaling::current, Scaling::delayed, Scaling::block}) {
    const fp8::Recipe recipe{.scaling = scaling, .history = 2};
    const fp8::Autocast scope(recipe);
    TensorList results[2];
    for (const bool known : {false, true}) {
      fp8::LayerState state;
      if (scaling == Scaling::delayed)
        state.delayed = {Tensor::zeros({2, 3}).to(kGpu), Tensor::of({30, 7, 11}).to(kGpu)};
      Tape tape;
      const fp8::ProducesFor next(&state);
      const Tensor h = plain_norm(x);
      const Tensor tokens = permute_tokens(known ? h : mul(h, 1.0), rows);
      if (scaling == Scaling::current) REQUIRE(fp8::row_amax_of(tokens).defined() == known);
      const Tensor y = fp8_grouped_linear(tokens, w, rows.rows, recipe, &state);
      results[known] = tape.gradients(y, {x, w}, random(y.shape(), 3, DType::bf16).to(kGpu));
      results[known].push_back(y.detach());
      if (scaling == Scaling::delayed) results[known].push_back(state.delayed.history);
    }
    for (int i = 0; i < results[0].size(); ++i)
      CHECK(different_bits(results[0][i], results[1][i]) == "");
  }
}

}  // namespace weft::fp8_rows_cuda_test
