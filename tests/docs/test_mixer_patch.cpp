// The layer of docs/patches/mixer.patch, and what nn::Mixer does for every layer of that kind.
#include <doctest/doctest.h>

#include "running_mean.h"
#include "weft/autograd/view.h"
#include "weft/nn/init.h"
#include "weft/tests/support.h"

namespace weft::mixer_patch_test {

using nn::KvCache;
using nn::RunningMean;

RunningMean made() {
  RunningMean layer(4);
  nn::init(layer, 3);
  layer.to(DType::f64);
  return layer;
}

KvCache cache_of(const nn::Mixer& layer) {
  return KvCache({layer.cache_entry(1, 8, DType::f64, kCpu)}, 1, 8, DType::f64);
}

// The layer's output for x (1, T, 4), token by token with a cache.
Tensor decoded(const RunningMean& layer, const Tensor& x, KvCache& cache) {
  TensorList out;
  for (std::int64_t t = 0; t < x.dim(1); ++t) {
    out.push_back(layer(x.narrow(1, t, 1), {.cache = &cache}));
    cache.advance(1);
  }
  return cat(out, 1);
}

TEST_CASE("mixer patch: each token gets the mean of the values so far, with and without a cache") {
  const RunningMean layer = made();
  const Tensor x = test::random({2, 5, 4}, 1, DType::f64), y = layer(x);
  const Tensor values = layer.value(x);
  for (int t = 0; t < 5; ++t)
    CHECK(test::mismatch(y.select(1, t), layer.proj(values.narrow(1, 0, t + 1).mean({1})), 1e-14) ==
          "");
  KvCache cache = cache_of(layer);
  CHECK(cache.has_state());
  CHECK(test::mismatch(decoded(layer, x.narrow(0, 0, 1), cache), y.narrow(0, 0, 1), 1e-14) == "");
}

TEST_CASE("mixer patch: rows with a cache each continue their own texts") {
  const RunningMean layer = made();
  const Tensor past[] = {test::random({1, 3, 4}, 1, DType::f64),
                         test::random({1, 5, 4}, 2, DType::f64)};
  const Tensor next = test::random({2, 1, 4}, 3, DType::f64);
  KvCache first = cache_of(layer), second = cache_of(layer);
  decoded(layer, past[0], first);
  decoded(layer, past[1], second);
  KvCache* const caches[] = {&first, &second};
  const Tensor y = layer(next, {.rows = caches});
  for (int i = 0; i < 2; ++i) {
    const Tensor whole = layer(cat({past[i], next.narrow(0, i, 1)}, 1));
    CHECK(test::mismatch(y.narrow(0, i, 1), whole.narrow(1, whole.dim(1) - 1, 1), 1e-14) == "");
  }
}

TEST_CASE("mixer patch: packed rows and parts of the tokens are refused, as it handles neither") {
  const RunningMean layer = made();
  const Tensor x = Tensor::zeros({1, 4, 4}, DType::f64);
  nn::Packing packing;
  packing.cu_seqlens = Tensor::of({0, 1, 4}, {3}, DType::i32);
  packing.positions = Tensor::of({0, 0, 1, 2}, {4}, DType::i32);
  CHECK(test::error_of([&] { layer(x, {.packing = packing}); }) ==
        "mean: a row must be one sequence, got packed rows");
  CHECK(test::error_of([&] {
          layer(x, {.part = nn::TokenPart{.sequences = 1, .tokens = 8, .first = 4, .count = 4}});
        }) == "mean: each rank must have all tokens of its sequences, got a part of them");
  CHECK(test::error_of([&] { layer(x.select(0, 0)); }) ==
        "mean: x must have shape (batch, tokens, dim), got [4, 4]");
}

TEST_CASE("mixer: a layer without cache_entry() says so") {
  struct Plain : nn::Mixer {
    const char* name() const override { return "plain"; }
    double multiply_adds(std::int64_t) const override { return 0; }
    void visit(nn::Visitor&) override {}

   protected:
    Tensor mix(const Tensor& x, const nn::TokenContext&) const override { return x; }
  };
  CHECK(test::error_of([] { Plain().cache_entry(1, 1, DType::f32, kCpu); }) ==
        "plain: a layer that decodes with a cache must override cache_entry()");
}

}  // namespace weft::mixer_patch_test
