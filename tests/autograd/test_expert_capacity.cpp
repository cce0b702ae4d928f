#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "weft/autograd/expert_capacity.h"
#include "weft/autograd/reduce.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::expert_capacity_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

// The definition: sort the slots of an expert and keep the first `capacity`.
Routing by_definition(const Routing& r, std::int64_t E, std::int64_t capacity, DropPolicy policy) {
  const Tensor p = r.probs.clone(), e = r.experts.clone();
  double* probs = p.data<double>();
  std::int64_t* experts = e.data<std::int64_t>();
  for (std::int64_t expert = 0; expert < E; ++expert) {
    std::vector<std::int64_t> slots;
    for (std::int64_t s = 0; s < e.numel(); ++s)
      if (experts[s] == expert) slots.push_back(s);
    if (policy == DropPolicy::probability)
      std::stable_sort(slots.begin(), slots.end(),
                       [&](std::int64_t a, std::int64_t b) { return probs[a] > probs[b]; });
    for (std::size_t i = static_cast<std::size_t>(capacity); i < slots.size(); ++i) {
      probs[slots[i]] = 0;
      experts[slots[i]] = -1;
    }
  }
  return {p, e};
}

}  // namespace

TEST_CASE("expert_capacity: R13 the four cases, and whole numbers that rounding must not change") {
  CHECK(expert_capacity(4, 4, 2, 1) == 2);
  CHECK(expert_capacity(4096, 64, 8, 1) == 512);
  CHECK(expert_capacity(1024, 8, 2, 1.25) == 320);
  CHECK(expert_capacity(5, 4, 2, 1) == 3);
  CHECK(expert_capacity(500, 10, 2, 1.1) == 110);  // 1000 * 1.1 is slightly above 1100 in f64
  CHECK(expert_capacity(0, 4, 2, 1) == 0);
  CHECK(expert_capacity(1, 64, 1, 0.5) == 1);
}

TEST_CASE("expert_capacity: R13 drops slots by probability and by position") {
  const Routing r{Tensor::of({.9, .1, .8, .2, .7, .3, .8, .2}, {4, 2}),
                  Tensor::of({0, 1, 0, 2, 0, 1, 0, 2}, {4, 2}, DType::i64)};
  const Routing best = limit_capacity(r, 3, 2);
  CHECK(mismatch(best.experts, Tensor::of({0, 1, 0, 2, -1, 1, -1, 2}, {4, 2}, DType::i64), 0) ==
        "");
  CHECK(mismatch(best.probs, Tensor::of({.9, .1, .8, .2, 0, .3, 0, .2}, {4, 2}), 0) == "");
  const Routing one = limit_capacity(r, 3, 1);
  CHECK(mismatch(one.experts, Tensor::of({0, -1, -1, 2, -1, 1, -1, -1}, {4, 2}, DType::i64), 0) ==
        "");
  const Routing first = limit_capacity(r, 3, 1, DropPolicy::position);
  CHECK(mismatch(first.experts, Tensor::of({0, 1, -1, 2, -1, -1, -1, -1}, {4, 2}, DType::i64), 0) ==
        "");
  CHECK(mismatch(limit_capacity(r, 3, 0).probs, Tensor::zeros({4, 2}), 0) == "");
  CHECK(different_bits(limit_capacity(r, 3, 4).experts, r.experts) == "");
}

TEST_CASE("expert_capacity: random routings with ties follow the definition") {
  for (const DropPolicy policy : {DropPolicy::probability, DropPolicy::position})
    for (const std::int64_t capacity : {1, 7, 20})
      for (const bool tied : {false, true}) {
        Routing r = route(random({80, 6}, 3), {}, {.topk = 3});
        if (tied) r.probs = Tensor::full({80, 3}, .25, DType::f64);
        r.experts.data<std::int64_t>()[7] = -1;  // already dropped
        r.probs.data<double>()[7] = 0;
        const Routing want = by_definition(r, 6, capacity, policy);
        const Routing got = limit_capacity(r, 6, capacity, policy);
        CHECK(different_bits(got.experts, want.experts) == "");
        CHECK(different_bits(got.probs, want.probs) == "");
        CHECK(different_bits(limit_capacity({r.probs.to(DType::f32), r.experts}, 6, capacity,
                                            DropPolicy::position)
                                 .experts,
                             by_definition(r, 6, capacity, DropPolicy::position).experts) == "");
      }
}

TEST_CASE("expert_capacity: a factor applies to the slots that have an expert") {
  for (const std::uint64_t seed : {1, 2, 3})
    for (const double factor : {0.1, 0.5, 1.0, 1.25, 2.9, 3.0})
      for (const DropPolicy policy : {DropPolicy::probability, DropPolicy::position}) {
        CAPTURE(factor);
        const Routing r = route(random({50, 6}, seed), {}, {.topk = 2});
        const Routing all = limit_capacity_factor(r, 6, factor, policy);
        const Routing want = limit_capacity(r, 6, expert_capacity(50, 6, 2, factor), policy);
        CHECK(different_bits(all.experts, want.experts) == "");
        CHECK(different_bits(all.probs, want.probs) == "");
        // Every third token is padding: the result is the same as without these tokens.
        const Tensor padding = Tensor::zeros({50}, DType::boolean);
        const Tensor x = random({50, 6}, seed), rows = Tensor::empty({33, 6}, DType::f64);
        for (std::int64_t t = 0, n = 0; t < 50; ++t) {
          padding.data<bool>()[t] = t % 3 == 0;
          if (t % 3 != 0) rows.select(0, n++).copy_(x.select(0, t));
        }
        const Routing few =
            limit_capacity_factor(route(x, {}, {.topk = 2}, padding), 6, factor, policy);
        const Routing alone =
            limit_capacity_factor(route(rows, {}, {.topk = 2}), 6, factor, policy);
        for (std::int64_t t = 0, n = 0; t < 50; ++t) {
          if (t % 3 == 0) {
            CHECK(max(few.experts.select(0, t)).item_int() == -1);
            continue;
          }
          CHECK(different_bits(few.experts.select(0, t), alone.experts.select(0, n)) == "");
          CHECK(different_bits(few.probs.select(0, t), alone.probs.select(0, n++)) == "");
        }
      }
}

TEST_CASE("expert_capacity: a factor counts the slots that an earlier limit left") {
  const Tensor experts = Tensor::of({{-1, 1}, {1, 2}}, DType::i64);
  const Tensor probs = Tensor::of({{0, 0.5}, {0.25, 0.75}}, DType::f64);
  // Three slots for three experts: one each.
  const Routing r = limit_capacity_factor({probs, experts}, 3, 1);
  CHECK(test::values(r.experts) == std::vector<double>{-1, 1, -1, 2});
  CHECK(test::values(r.probs) == std::vector<double>{0, 0.5, 0, 0.75});
  const Tensor none = Tensor::zeros({0, 2}, DType::i64);
  CHECK(limit_capacity_factor({Tensor::zeros({0, 2}), none}, 3, 1).probs.shape() == Shape{0, 2});
}

TEST_CASE("expert_capacity: only kept slots get a gradient") {
  const auto f = [](const TensorList& in) {
    const Routing r = route(in[0], {}, {.topk = 2});
    return limit_capacity(r, 4, 3).probs;
  };
  // Differences of this size change neither choice nor order.
  CHECK(gradcheck(f, {random({9, 4}, 5)}) == "");
  const auto first = [](const TensorList& in) {
    const Routing r = route(in[0], {}, {.topk = 2, .score = RouterScore::sigmoid});
    return limit_capacity(r, 4, 2, DropPolicy::position).probs;
  };
  CHECK(gradcheck(first, {random({9, 4}, 6)}) == "");
  const auto factor = [](const TensorList& in) {
    return limit_capacity_factor(route(in[0], {}, {.topk = 2}), 4, 0.6).probs;
  };
  CHECK(gradcheck(factor, {random({9, 4}, 5)}) == "");
}

TEST_CASE("expert_capacity: zero tokens, threads and meta device") {
  const RouterOptions o{.topk = 2};
  CHECK(limit_capacity(route(Tensor::zeros({0, 4}), {}, o), 4, 0).probs.shape() == Shape{0, 2});
  const Routing meta =
      limit_capacity(route(Tensor::zeros({6, 4}, DType::bf16, kMeta), {}, o), 4, 1);
  CHECK(meta.probs.dtype() == DType::f32);
  CHECK(meta.experts.shape() == Shape{6, 2});
  const Routing some = route(random({6, 4}), {}, o, Tensor::ones({6}, DType::boolean));
  CHECK(max(limit_capacity_factor(some, 4, 1).experts).item_int() == -1);
  const Routing r = route(random({4000, 16}, 3, DType::f32), {}, o);
  const test::RestoreThreads restore;
  set_num_threads(1);
  const Routing one = limit_capacity(r, 16, 300);
  set_num_threads(3);
  const Routing three = limit_capacity(r, 16, 300);
  CHECK(different_bits(one.probs, three.probs) == "");
  CHECK(different_bits(one.experts, three.experts) == "");
}

TEST_CASE("expert_capacity: errors name the rule") {
  const Tensor p = Tensor::zeros({4, 2}), e = Tensor::zeros({4, 2}, DType::i64);
  CHECK(error_of([&] {
          limit_capacity({{}, e}, 4, 1);
        }) == "limit_capacity: probs must be a tensor, got a null handle");
  CHECK(error_of([&] {
          limit_capacity({p, {}}, 4, 1);
        }) == "limit_capacity: experts must be a tensor, got a null handle");
  CHECK(error_of([&] {
          limit_capacity({p, e}, 0, 1);
        }) == "limit_capacity: experts must be in [1, 1024], got 0");
  CHECK(error_of([&] {
          limit_capacity({p, e}, 4, -1);
        }) == "limit_capacity: capacity must be at least 0, got -1");
  CHECK(error_of([&] {
          limit_capacity({p, e.view({8})}, 4, 1);
        }) ==
        "limit_capacity: probs and experts must have one shape [tokens, k], got [4, 2] and [8]");
  CHECK(error_of([&] {
          limit_capacity({p.to(DType::bf16), e}, 4, 1);
        }) == "limit_capacity: probs must have dtype f32 or f64, got bf16");
  CHECK(error_of([&] {
          limit_capacity({p, p}, 4, 1);
        }) == "limit_capacity: experts must have dtype i64, got f32");
  CHECK(error_of([] { expert_capacity(-1, 4, 2, 1); }) ==
        "expert_capacity: tokens must be at least 0, topk and experts at least 1, got -1, 2 and 4");
  CHECK(error_of([&] {
          limit_capacity_factor({p, e}, 4, 0);
        }) == "limit_capacity_factor: factor must be in (0, 1e+06], got 0");
  CHECK(error_of([&] {
          limit_capacity_factor({p, e}, 0, 1);
        }) == "limit_capacity_factor: experts must be in [1, 1024], got 0");
  CHECK(error_of([] { expert_capacity(4, 4, 2, 0); }) ==
        "expert_capacity: factor must be in (0, 1e+06], got 0");
}

}  // namespace weft::expert_capacity_test
