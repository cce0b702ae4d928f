#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/reduce.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::sinkhorn_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

Tensor fixture(DType dtype) {
  return Tensor::of({2, 1, .5, -1, 0, 3, .2, .1, -.5, .4, 1.5, 1.4, 1, 1.1, .9, .8}, {4, 4}, dtype);
}

}  // namespace

TEST_CASE("sinkhorn: R11 the fixture takes nine rounds and its rows and columns sum to a quarter") {
  for (const DType t : {DType::f32, DType::f64}) {
    const Tensor x = fixture(t), p = sinkhorn(x);
    CHECK(mismatch(p.narrow(0, 0, 1).contiguous(),
                   Tensor::of({.16067662, .02949958, .04649393, .01333348}, {1, 4}), 1e-7) == "");
    CHECK(mismatch(sum(p, {0}), Tensor::full({4}, .25, t), 2e-5) == "");
    // Rows are divided before columns, so they are off by the change of the last round.
    CHECK(mismatch(sum(p, {1}), Tensor::full({4}, .25, t), 2e-5, 1) == "");
    CHECK(different_bits(p, sinkhorn(x, {}, 9)) == "");
    CHECK(different_bits(p, sinkhorn(x, {}, 8)) != "");
  }
}

TEST_CASE("sinkhorn: R11 extreme logits converge without overflow") {
  // Each token has one expert far above the others, two tokens per expert: an even share is
  // possible.
  const Tensor blocks = Tensor::full({16, 8}, -50);
  for (std::int64_t t = 0; t < 16; ++t) blocks.data<float>()[t * 8 + t % 8] = 50;
  const Tensor p = sinkhorn(blocks);
  CHECK(mismatch(sum(p, {0}), Tensor::full({8}, 1.0 / 8), 1e-4) == "");
  CHECK(mismatch(sum(p, {1}), Tensor::full({16}, 1.0 / 16), 1e-4) == "");
  // An even share is impossible: all tokens prefer one expert by far. Columns are off, nothing is
  // NaN.
  for (const double far : {50.0, 200.0, -200.0}) {
    const Tensor x = Tensor::zeros({16, 8});
    for (std::int64_t t = 0; t < 16; ++t) x.data<float>()[t * 8] = static_cast<float>(far);
    CHECK(std::isfinite(sum(sinkhorn(x)).item()));
  }
  const Tensor wild = test::random_in({40, 12}, -50, 50).to(DType::f32);
  const Tensor few = sinkhorn(wild, {}, 3), many = sinkhorn(wild);
  CHECK(std::isfinite(sum(many).item()));
  CHECK(different_bits(few, many) != "");
}

TEST_CASE("sinkhorn: padding, narrow logits, zero tokens, threads and meta device") {
  const Tensor x = random({5, 6}, 3), pad = Tensor::of({0, 1, 0, 0, 1}, {5}, DType::boolean);
  const Tensor p = sinkhorn(x, pad);
  CHECK(mismatch(sum(p, {1}), Tensor::of({1. / 3, 0, 1. / 3, 1. / 3, 0}, {5}, DType::f64), 1e-3) ==
        "");
  CHECK(mismatch(sum(p, {0}), Tensor::full({6}, 1. / 6, DType::f64), 1e-6) == "");
  CHECK(sum(sinkhorn(x, Tensor::ones({5}, DType::boolean))).item() == 0);
  const Tensor narrow = x.to(DType::bf16);
  CHECK(sinkhorn(narrow).dtype() == DType::f32);
  CHECK(mismatch(sinkhorn(narrow), sinkhorn(narrow.to(DType::f64)), 1e-6) == "");
  CHECK(different_bits(sinkhorn(test::strided(x)), sinkhorn(x)) == "");
  CHECK(sinkhorn(Tensor::zeros({0, 4})).shape() == Shape{0, 4});
  CHECK(sinkhorn(Tensor::zeros({3, 4}, DType::bf16, kMeta)).dtype() == DType::f32);
  const Tensor big = random({999, 33}, 5, DType::f32);
  const test::RestoreThreads restore;
  set_num_threads(1);
  const Tensor one = sinkhorn(big);
  set_num_threads(3);
  const Tensor three = sinkhorn(big);
  CHECK(different_bits(one, three) == "");
}

TEST_CASE("sinkhorn: errors name the rule") {
  const Tensor x = fixture(DType::f32);
  CHECK(error_of([&] { sinkhorn(x, {}, 0); }) == "sinkhorn: rounds must be at least 1, got 0");
  CHECK(error_of([&] { sinkhorn(Tensor::zeros({4})); }) ==
        "sinkhorn: logits must have shape [tokens, experts], got [4]");
  CHECK(error_of([&] {
          sinkhorn(Tensor::zeros({4, 1025}));
        }) == "sinkhorn: experts must be in [1, 1024], got 1025");
}

}  // namespace weft::sinkhorn_test
