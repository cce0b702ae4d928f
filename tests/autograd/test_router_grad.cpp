#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router.h"
#include "weft/tests/router_modes.h"
#include "weft/tests/support.h"

namespace weft::router_grad_test {
namespace {

using test::different_bits;
using test::error_of;
using test::kRouterModes;
using test::mismatch;
using test::random;
using test::takes_bias;
using test::values;

}  // namespace

TEST_CASE("router: R15 gradients match finite differences in every mode") {
  for (const RouterOptions& o : kRouterModes)
    for (const Shape& s : {Shape{5, 8}, Shape{2, 32}, Shape{0, 8}}) {
      CAPTURE(static_cast<int>(o.score));
      CAPTURE(o.topk);
      CAPTURE(o.groups);
      const Tensor bias =
          takes_bias(o) ? test::random_in({s[1]}, -.4, .4, 9).to(DType::f32) : Tensor();
      const auto f = [&](const TensorList& in) { return route(in[0], bias, o).probs; };
      // Differences of this size do not change the choice.
      CHECK(gradcheck(f, {random(s, 3)}) == "");
      CHECK(gradcheck(f, {test::strided(random(s, 4))}) == "");
      CHECK(gradcheck([&](const TensorList& in) { return mul(f(in), f({mul(in[0], 2)})); },
                      {random(s, 5)}) == "");
    }
  // Large values, on both branches of sqrt(softplus).
  const auto far = [](const TensorList& in) {
    return route(in[0], {}, {.topk = 1, .score = RouterScore::sqrt_softplus}).probs;
  };
  CHECK(gradcheck(far, {Tensor::of({-25, -40, 30, 10, -3, 0.1}, {3, 2}, DType::f64)},
                  {.tolerance = 1e-9}) == "");
}

TEST_CASE("router: gradients in f32 and bf16 agree with f64") {
  for (const RouterOptions& o : kRouterModes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      const Tensor narrow = random({33, 16}, 3).to(t);
      const auto gradient = [&](const Tensor& x) {
        Tensor leaf = x.detach().set_requires_grad();
        Tape tape;
        const Routing r = route(leaf, {}, o);
        return tape.gradients(r.probs, {leaf},
                              random({33, o.topk}, 8).to(DType::f32).to(r.probs.dtype()))[0];
      };
      const Tensor got = gradient(narrow);
      CHECK(got.dtype() == t);
      CHECK(mismatch(got, gradient(narrow.to(DType::f64)), t == DType::f32 ? 2e-6 : 1e-2) == "");
    }
}

TEST_CASE("router: padding is not routed and gets no gradient") {
  const Tensor pad = Tensor::of({0, 1, 0, 1, 1}, {5}, DType::boolean);
  for (const RouterOptions& o : kRouterModes) {
    const Tensor x = random({5, 16}, 2);
    Tensor leaf = x.detach().set_requires_grad();
    Tape tape;
    const Routing r = route(leaf, {}, o, pad);
    const Routing whole = route(x, {}, o);
    const Tensor g = tape.gradients(r.probs, {leaf}, random(r.probs.shape(), 3))[0];
    for (std::int64_t t = 0; t < 5; ++t) {
      const bool padded = t == 1 || t >= 3;
      for (std::int64_t i = 0; i < o.topk; ++i) {
        const std::int64_t at = t * o.topk + i;
        CHECK(r.experts.data<std::int64_t>()[at] ==
              (padded ? -1 : whole.experts.data<std::int64_t>()[at]));
        CHECK(r.probs.data<double>()[at] == (padded ? 0 : whole.probs.data<double>()[at]));
      }
      for (std::int64_t e = 0; padded && e < 16; ++e) CHECK(g.data<double>()[t * 16 + e] == 0);
    }
  }
}

TEST_CASE("router: a token's bits do not depend on its neighbours") {
  const Tensor bias = test::random_in({70}, -.4, .4, 9).to(DType::f32);
  for (const RouterOptions& o : kRouterModes)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      const std::int64_t E = o.groups ? 16 : 70;
      const Tensor b = takes_bias(o) ? bias.narrow(0, 0, E).contiguous() : Tensor();
      const Tensor x = random({40, E}, 5).to(t), spoiled = x.clone();
      const auto gradient = [&](const Tensor& logits) {
        Tensor leaf = logits.detach().set_requires_grad();
        Tape tape;
        const Tensor p = route(leaf, b, o).probs;
        return tape.gradients(p, {leaf}, mul(p.detach(), p.detach()))[0];
      };
      const Tensor g = gradient(x);
      spoiled.select(0, 3).fill_(std::nan(""));  // its block is processed token by token
      const Routing whole = route(x, b, o), other = route(spoiled, b, o);
      for (const std::int64_t i : {0, 2, 4, 15, 16, 39}) {
        const Routing one = route(x.narrow(0, i, 1), b, o);
        CHECK(different_bits(gradient(x.narrow(0, i, 1)), g.narrow(0, i, 1)) == "");
        for (const Routing* r : {&whole, &other}) {
          CHECK(different_bits(r->experts.narrow(0, i, 1), one.experts) == "");
          CHECK(different_bits(r->probs.narrow(0, i, 1), one.probs) == "");
        }
      }
    }
}

TEST_CASE("router: R11 sinkhorn balances the choice and keeps the logits' probabilities") {
  // All tokens prefer the first two experts.
  const Tensor x = random({64, 8}, 3);
  for (std::int64_t t = 0; t < 64; ++t)
    for (const std::int64_t e : {0, 1}) x.data<double>()[t * 8 + e] += 2;
  const auto most = [](const Routing& r) {
    std::vector<int> count(8);
    for (const double e : values(r.experts)) ++count[static_cast<std::size_t>(e)];
    return *std::max_element(count.begin(), count.end());
  };
  for (const std::int64_t k : {1, 2}) {
    const Routing even = route_sinkhorn(x, k, true), plain = route_sinkhorn(x, k, false);
    CHECK(most(even) < 1.5 * 64 * k / 8);
    CHECK(most(plain) > 2 * 64 * k / 8);
    const RouterOptions o = k == 1 ? RouterOptions{.topk = 1, .score = RouterScore::sigmoid}
                                   : RouterOptions{.topk = k, .pre_softmax = true};
    CHECK(different_bits(plain.experts, route(x, {}, o).experts) == "");
    CHECK(different_bits(plain.probs, route(x, {}, o).probs) == "");
    const Tensor all = k == 1 ? sigmoid(x) : x.softmax();
    CHECK(mismatch(even.probs, all.gather(1, even.experts), 1e-15) == "");
    const auto f = [&](const TensorList& in) { return route_sinkhorn(in[0], k, true).probs; };
    CHECK(gradcheck(f, {random({6, 5}, 4)}) == "");
  }
  const Tensor pad = Tensor::of({0, 1, 0}, {3}, DType::boolean);
  const Routing r = route_sinkhorn(random({3, 4}, 1), 2, true, pad);
  CHECK(r.experts.data<std::int64_t>()[2] == -1);
  CHECK(error_of([&] { route_sinkhorn(x, 9, true); }) ==
        "route_sinkhorn: topk must be at most the number of experts 8, got 9");
}

TEST_CASE("router: gradients of the largest router of 1024 experts with topk 32") {
  const auto f = [](const TensorList& in) {
    return route(in[0], {}, {.topk = 32, .pre_softmax = true}).probs;
  };
  CHECK(gradcheck(f, {random({1, 1024}, 12)}) == "");
}

}  // namespace weft::router_grad_test
