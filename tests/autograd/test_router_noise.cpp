#include <doctest/doctest.h>

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/router_noise.h"
#include "weft/autograd/view.h"
#include "weft/core/random.h"
#include "weft/tests/support.h"

namespace weft::router_noise_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const RandomKey kKey{7, 8, 0};

}  // namespace

TEST_CASE("router_noise: jitter multiplies by numbers in [1 - eps, 1 + eps)") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor y = jitter(Tensor::ones({50, 40}, t), 0.125, kKey);
    CHECK(y.dtype() == t);
    std::vector<double> v(2000);
    y.copy_to(v);
    const auto [low, high] = std::minmax_element(v.begin(), v.end());
    CHECK(*low >= 0.875);
    CHECK(*low < 0.88);
    CHECK(*high < 1.125);
    if (t == DType::bf16)
      CHECK(*high == 1.1171875);  // the next number is 1.125
    else
      CHECK(*high > 1.12);
  }
  // A shard draws its part of the whole: rows of 40 numbers, from row 20 on.
  const Tensor x = random({50, 40}, 1);
  CHECK(different_bits(jitter(x.narrow(0, 20, 30), 0.1, {7, 8, 20 * 40}),
                       contiguous(jitter(x, 0.1, kKey).narrow(0, 20, 30))) == "");
  CHECK(different_bits(jitter(x, 0, kKey), x) == "");
}

TEST_CASE("router_noise: jitter passes its factor to the gradient") {
  const auto f = [](const TensorList& in) { return jitter(in[0], 0.3, kKey); };
  CHECK(gradcheck(f, {random({5, 6}, 1)}) == "");
  CHECK(gradcheck(f, {test::strided(random({5, 6}, 1))}) == "");
  CHECK(gradcheck([&](const TensorList& in) { return mul(f(in).t(), in[0].t()); },
                  {random({5, 6}, 1)}) == "");
}

TEST_CASE("router_noise: R12 forced balance is even and passes the gradient straight through") {
  const Tensor x = random({4096, 16}, 1, DType::f32);
  Tensor leaf = x.detach().set_requires_grad();
  {
    Tape tape;
    const Tensor y = random_logits(leaf, kKey), dy = random(x.shape(), 2, DType::f32);
    CHECK(different_bits(tape.gradients(y, {leaf}, dy)[0], dy) == "");
  }
  // Independent of the logits; another key gives another draw.
  CHECK(different_bits(random_logits(x, kKey), random_logits(mul(x, 3), kKey)) == "");
  CHECK(different_bits(random_logits(x, kKey), random_logits(x, {7, 9, 0})) != "");
  CHECK(different_bits(random_logits(x, kKey), random_logits(x, {7, 8, 4096 * 16})) != "");
  const Tensor counts = count_top_experts(random_logits(x, kKey), 2);
  CHECK(counts.max().item() < 1.1 * 4096 * 2 / 16);
  // A bias makes one expert busy.
  const Tensor bias = Tensor::zeros({16});
  bias.data<float>()[3] = 2;
  const Tensor uneven = count_top_experts(random_logits(x, kKey, bias), 2);
  CHECK(uneven.data<std::int64_t>()[3] > 4 * 4096 * 2 / 16);
}

TEST_CASE("router_noise: meta gives the same shapes and errors name the rule") {
  const Tensor meta = Tensor::empty({6, 8}, DType::bf16, kMeta);
  CHECK(jitter(meta, 0.1, kKey).dtype() == DType::bf16);
  CHECK(random_logits(meta, kKey).shape() == Shape{6, 8});
  const Tensor x = random({2, 3});
  CHECK(error_of([&] { jitter({}, 0.1, kKey); }) ==
        "jitter: x must be a tensor, got a null handle");
  CHECK(error_of([&] { jitter(x, 1, kKey); }) == "jitter: eps must be in [0, 1), got 1");
  CHECK(error_of([&] { jitter(x.to(DType::i32), 0.1, kKey); }) ==
        "jitter: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { random_logits({}, kKey); }) ==
        "random_logits: logits must be a tensor, got a null handle");
  CHECK(error_of([&] { random_logits(x.to(DType::i32), kKey); }) ==
        "random_logits: dtype must be one of f32, f64, bf16, f16, got i32");
}

}  // namespace weft::router_noise_test
