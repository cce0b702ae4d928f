// Products in FP8 of rows that are on several ranks: what travels, and that nothing depends on how.
#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/fp8_overlap.h"
#include "weft/tests/poisoned_memory.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::fp8_overlap_test {
namespace {

using fp8::Recipe;
using fp8::Scaling;
using test::different_bits;
using test::distributed_test;
using test::error_of;

constexpr Overlap kForms[] = {Overlap::none, Overlap::ring, Overlap::pipeline};
constexpr std::int64_t kRows = 16, kWidth = 16, kHidden = 32;

// Every rank has numbers of another size, so that only the last one has the largest.
Tensor of_rank(const Shape& shape, int rank, std::uint64_t seed, DType dtype) {
  return mul(test::random(shape, seed + 100 * static_cast<std::uint64_t>(rank), DType::f32),
             std::exp2(rank))
      .to(dtype);
}

fp8::LayerState state_of(const Recipe& r) {
  fp8::LayerState s;
  if (r.scaling == Scaling::delayed) {
    s.delayed = {Tensor::zeros({r.history, 3}), Tensor::zeros({3})};
    s.delayed.scale.copy_(Tensor::of({20, 90, 200}));
  }
  return s;
}

struct Layers {
  Tensor x, w1, b, w2;
  fp8::LayerState s1, s2, s3, s4;
  Layers(int rank, std::int64_t rows, const Recipe& r, DType dtype)
      : x(of_rank({1, rows, kWidth}, rank, 1, dtype)),
        w1(mul(of_rank({kHidden, kWidth}, rank, 2, dtype), 0.1)),
        b(of_rank({kHidden}, rank, 3, dtype)),
        w2(mul(of_rank({kWidth, kHidden}, rank, 4, dtype), 0.1)),
        s1(state_of(r)),
        s2(state_of(r)),
        s3(state_of(r)),
        s4(state_of(r)) {
    for (Tensor* t : {&x, &w1, &b, &w2}) t->set_requires_grad();
  }
};

// y, then the gradients of x, w1, b and w2: a column-parallel layer, an activation and a
// row-parallel layer, twice.
template <class Up, class Down>
TensorList two_layers(const Layers& l, const Up& up, const Down& down) {
  Tape tape;
  const Tensor h = down(gelu(up(l.x, l.s1)), l.s2);
  const Tensor y = down(gelu(up(h, l.s3)), l.s4);
  const TensorList g =
      tape.gradients(y, {l.x, l.w1, l.b, l.w2}, test::random(y.shape(), 9, y.dtype()));
  return {y.detach(), g[0], g[1], g[2], g[3]};
}

TensorList plain_layers(const Layers& l, const Recipe& r, ProcessGroup& g) {
  return two_layers(
      l,
      [&](const Tensor& a, const fp8::LayerState& s) {
        return fp8_linear(gather_rows(a, g), l.w1, l.b, r, &s);
      },
      [&](const Tensor& a, const fp8::LayerState& s) {
        return reduce_scatter_rows(fp8_linear(a, l.w2, {}, r, &s), g);
      });
}

TensorList fp8_layers(const Layers& l, const Recipe& r, ProcessGroup& g, const Fp8Rows& how) {
  return two_layers(
      l,
      [&](const Tensor& a, const fp8::LayerState& s) {
        return fp8_gather_linear(a, l.w1, l.b, r, &s, g, how);
      },
      [&](const Tensor& a, const fp8::LayerState& s) {
        return fp8_linear_scatter(a, l.w2, r, &s, g, how.overlap);
      });
}

}  // namespace

TEST_CASE("fp8 overlap: two layers have the bits of plain collectives in poisoned memory") {
  const test::PoisonedMemory memory;
  distributed_test({1, 2, 3, 4}, [](World& w) {
    ProcessGroup& g = w.all();
    for (const Recipe& r : {Recipe{}, Recipe{.power_of_two = true},
                            Recipe{.scaling = Scaling::delayed, .history = 2}})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const std::int64_t n : {kRows, std::int64_t{0}}) {
          const TensorList want = plain_layers(Layers(w.rank(), n, r, dtype), r, g);
          for (const Overlap form : kForms)
            for (const bool again : {false, true}) {
              CAPTURE(static_cast<int>(r.scaling));
              CAPTURE(std::string(name(dtype)));
              CAPTURE(n);
              CAPTURE(static_cast<int>(form));
              CAPTURE(again);
              const TensorList got = fp8_layers(Layers(w.rank(), n, r, dtype), r, g, {form, again});
              for (int i = 0; i < want.size(); ++i) CHECK(different_bits(got[i], want[i]) == "");
              CHECK((n == 0 || std::isfinite(sum(got[2]).item())));
            }
        }
  });
}

TEST_CASE("fp8 overlap: recipes that do not travel gather numbers") {
  distributed_test(2, [](World& w) {
    for (const Recipe& r :
         {Recipe{.scaling = Scaling::block}, Recipe{.backward = fp8::BackwardOverride::dequantized},
          Recipe{.backward = fp8::BackwardOverride::high_precision}}) {
      const Layers l(w.rank(), kRows, r, DType::bf16);
      const TensorList want = plain_layers(l, r, w.all());
      for (const bool again : {false, true}) {
        const TensorList got = fp8_layers(l, r, w.all(), {Overlap::none, again});
        for (int i = 0; i < want.size(); ++i) CHECK(different_bits(got[i], want[i]) == "");
      }
    }
  });
}

TEST_CASE("fp8 overlap: gathered codes and their scale are those of one rank with all rows") {
  distributed_test({2, 3, 4}, [](World& w) {
    ProcessGroup& g = w.all();
    for (const DType to : {DType::e4m3, DType::e5m2})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        // An outlier on the last rank; the first one has no rows.
        const std::int64_t n = w.rank() == 0 ? 0 : 5;
        const Tensor x = of_rank({n, kWidth}, w.rank(), 7, dtype);
        if (w.rank() == w.size() - 1) x.select(0, 3).select(0, 9).fill_(1e4);
        Rows rows(static_cast<std::size_t>(w.size()), 5);
        rows[0] = 0;
        const std::int64_t all = 5 * (w.size() - 1);
        const Tensor whole = Tensor::empty({all, kWidth}, dtype),
                     codes = Tensor::empty({all, kWidth}, to);
        g.all_gather(whole, x, rows).wait();
        const fp8::Quantized want = fp8::quantize(whole, {.each = all}, to, {});
        const fp8::Quantized own =
            fp8::quantize(x, {.each = n}, to, {}, {},
                          [&](const Tensor& amax) { g.all_reduce(amax, Reduce::max).wait(); });
        g.all_gather(codes, own.rows, rows).wait();
        CHECK(different_bits(codes, want.rows) == "");
        CHECK(different_bits(own.inverse, want.inverse) == "");
      }
  });
}

TEST_CASE("fp8 overlap: a rank's outputs and gradient have the bits of one rank with all outputs") {
  distributed_test({2, 3, 4}, [](World& w) {
    const Recipe r;
    const std::int64_t outputs = 16, ranks = w.size(), all = outputs * ranks;
    Tensor x = test::random({ranks * kRows, kWidth}, 1, DType::bf16);
    // The same largest magnitude in every shard, as each weight has a scale of its own.
    Tensor weight = test::random({all, kWidth}, 2, DType::bf16);
    for (std::int64_t i = 0; i < ranks; ++i) weight.select(0, i * outputs).fill_(4);
    const Tensor dy = test::random({ranks * kRows, all}, 3, DType::bf16);
    const Tensor y = fp8_linear(x, weight, {}, r);
    const auto of = [&](const Tensor& t) {
      return t.narrow(0, w.rank() * kRows, kRows).contiguous();
    };
    for (const Overlap form : kForms) {
      const Tensor own =
          fp8_gather_linear(of(x), weight.narrow(0, w.rank() * outputs, outputs).contiguous(), {},
                            r, nullptr, w.all(), {form});
      CHECK(different_bits(own, y.narrow(1, w.rank() * outputs, outputs).contiguous()) == "");
      // The gradient of a row-parallel layer's input: every rank multiplies all rows of dy.
      Tensor input = test::random({ranks * kRows, kWidth}, 4 + w.rank(), DType::bf16),
             second = test::random({all, kWidth}, 5, DType::bf16);
      input.set_requires_grad();
      second.set_requires_grad();
      Tape tape;
      const Tensor sum = fp8_linear_scatter(input, second, r, nullptr, w.all(), form);
      const TensorList got = tape.gradients(sum, {input, second}, of(dy));
      Tape alone;
      const Tensor one = fp8_linear(input, second, {}, r);
      const TensorList want = alone.gradients(one, {input, second}, dy);
      CHECK(different_bits(got[0], want[0]) == "");
      CHECK(different_bits(got[1], want[1]) == "");
    }
  });
}

TEST_CASE("fp8 overlap: gathers send half of the bytes of bf16") {
  if (test::launched_world()) return;  // the counters below are those of threads
  run_ranks(4, [](World& w) {
    ProcessGroup& g = w.all();
    const Recipe r;
    const Layers l(w.rank(), kRows, r, DType::bf16);
    const auto sent = [&](const auto& layers) {
      const std::int64_t before = w.stats().bytes_sent;
      (void)layers();
      return w.stats().bytes_sent - before;
    };
    // In each layer the rows of x and of dy are gathered once, those of y and dx reduce-scattered;
    // overlap gathers x again in backward. 4 largest magnitudes are reduced, of 4 bytes each.
    const std::int64_t one = (w.size() - 1) * kRows * kWidth;  // numbers of a gather or scatter
    const std::int64_t numbers = sent([&] { return plain_layers(l, r, g); });
    CHECK(numbers == 2 * (2 + 2) * 2 * one);
    const std::int64_t codes = sent([&] { return fp8_layers(l, r, g, {}); });
    const auto close = [](std::int64_t a, std::int64_t b) { return a >= b && a <= b + 256; };
    CHECK(close(codes, 2 * (1 + 1 + 2 + 2) * one));
    for (const Fp8Rows& how :
         {Fp8Rows{Overlap::ring}, Fp8Rows{Overlap::pipeline}, Fp8Rows{Overlap::none, true}}) {
      const std::int64_t again = sent([&] { return fp8_layers(l, r, g, how); });
      CHECK(close(again, 2 * (1 + 1 + 1 + 2 + 2) * one));
    }
  });
}

TEST_CASE("fp8 overlap: backward keeps codes, of this rank's rows where it gathers again") {
  if (test::launched_world()) return;
  run_ranks(2, [](World& w) {
    const Recipe r;
    const std::int64_t rows = 512;
    const Layers l(w.rank(), rows, r, DType::bf16);
    const auto kept = [&](const Fp8Rows& how) {
      w.all().barrier().wait();
      const std::int64_t before = memory_stats(kCpu).live_bytes;
      Tape tape;
      const Tensor y = fp8_gather_linear(l.x, l.w1, l.b, r, nullptr, w.all(), how);
      return memory_stats(kCpu).live_bytes - before;
    };
    const std::int64_t all = kept({}), own = kept({Overlap::none, true});
    CHECK(all - own == size_class_bytes(2 * rows * kWidth) - size_class_bytes(rows * kWidth));
    CHECK(kept({Overlap::ring}) == own);
  });
}

TEST_CASE("fp8 overlap: meta device and errors") {
  distributed_test(2, [](World& w) {
    ProcessGroup& g = w.all();
    const Recipe r;
    const auto meta = [](const Shape& s) { return Tensor::empty(s, DType::bf16, kMeta); };
    for (const Overlap form : kForms) {
      CHECK(fp8_gather_linear(meta({2, 16, 32}), meta({48, 32}), meta({48}), r, nullptr, g, {form})
                .shape() == Shape{1, 64, 48});
      CHECK(fp8_linear_scatter(meta({2, 16, 32}), meta({48, 32}), r, nullptr, g, form).shape() ==
            Shape{1, 16, 48});
    }
    const auto f32 = [](const Shape& s) { return Tensor::zeros(s); };
    const auto gather = [&](const Tensor& x, const Tensor& weight, const Recipe& how = {},
                            Overlap form = Overlap::none) {
      return error_of([&] { fp8_gather_linear(x, weight, {}, how, nullptr, g, {form}); });
    };
    const auto scatter = [&](const Tensor& x, const Tensor& weight, const Recipe& how = {},
                             Overlap form = Overlap::none) {
      return error_of([&] { fp8_linear_scatter(x, weight, how, nullptr, g, form); });
    };
    CHECK(gather(f32({12, 32}), f32({16, 32})) ==
          "fp8_gather_linear: FP8 needs rows of x that are a multiple of 16, got 24");
    CHECK(gather(f32({16, 24}), f32({16, 24})) ==
          "fp8_gather_linear: FP8 needs widths that are multiples of 16, got 24 inputs and 16 "
          "outputs");
    CHECK(gather(f32({16, 32}), f32({16, 16})) ==
          "fp8_gather_linear: weight must have shape [N, 32] (last axis of x [16, 32]), got "
          "[16, 16]");
    CHECK(gather(f32({16, 32}), f32({16, 32}), {.scaling = Scaling::block}, Overlap::ring) ==
          "fp8_gather_linear: overlap needs a recipe whose codes travel: one scale for a tensor, "
          "and FP8 in backward");
    CHECK(gather(f32({16, 32}), f32({16, 32}), {.scaling = Scaling::delayed}) ==
          "fp8_gather_linear: delayed scales need a layer that keeps them, and this one does not; "
          "call nn::prepare_fp8(model, recipe) first");
    CHECK(scatter(f32({33, 32}), f32({16, 32})) ==
          "fp8_linear_scatter: the 33 rows of x [33, 32] do not divide among 2 ranks");
    CHECK(scatter(f32({32, 32}), f32({16, 32}), {.backward = fp8::BackwardOverride::high_precision},
                  Overlap::ring) ==
          "fp8_linear_scatter: overlap needs a recipe whose codes travel: one scale for a tensor, "
          "and FP8 in backward");
    CHECK(scatter(f32({32, 32}).to(DType::f64), f32({16, 32}).to(DType::f64)) ==
          "fp8_linear_scatter: FP8 products need f32 or bf16 tensors, got f64");
  });
}

}  // namespace weft::distributed::fp8_overlap_test
