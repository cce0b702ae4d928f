// Gradients accumulated in place, in the buffer that already holds them.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/function.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/tests/support.h"

namespace weft::accumulate_test {

namespace {

// Larger than everything else in these tests, so that a second buffer shows in the peak.
constexpr std::int64_t kVocab = 4000, kWidth = 16;

Tensor table(DType dtype = DType::f64) {
  return test::random({kVocab, kWidth}, 1, dtype).set_requires_grad();
}
Tensor ids() { return Tensor::of({7, 3999, 7, 0}, {4}, DType::i64); }

// One tensor used as embedding and as head, or a separate leaf for each use.
Tensor tied_loss(const Tensor& embed, const Tensor& head) {
  return linear_cross_entropy(embedding(embed, ids()), head, ids(), {.reduction = Reduction::sum});
}

Tensor gradient_of_parts(DType dtype) {
  const Tensor embed = table(dtype), head = table(dtype);
  Tape tape;
  tied_loss(embed, head).backward();
  NoGradGuard off;
  return embed.grad().to(DType::f64) + head.grad().to(DType::f64);
}

template <class F>
std::int64_t peak_of(F&& f) {
  const std::int64_t before = memory_stats().live_bytes;
  reset_peak();
  f();
  return memory_stats().peak_bytes - before;
}

}  // namespace

TEST_CASE("accumulate: a tied table's gradient is one buffer over several passes") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CAPTURE(name(dtype));
    const Tensor w = table(dtype), want = gradient_of_parts(dtype);
    const std::int64_t whole = w.numel() * static_cast<std::int64_t>(size_of(dtype));
    for (int pass = 1; pass <= 3; ++pass) {
      const std::int64_t peak = peak_of([&] {
        Tape tape;
        tied_loss(w, w).backward();
      });
      // The head computes its gradient during the forward pass: grad() and one more buffer.
      if (!is_half(dtype)) CHECK(peak < 3 * whole / 2);
      NoGradGuard off;
      CHECK(test::mismatch(w.grad().to(DType::f64), want * static_cast<double>(pass),
                           4 * test::tolerance(dtype)) == "");
    }
  }
}

TEST_CASE("accumulate: linear adds to an existing grad()") {
  const Tensor x = test::random({1, kWidth}, 2);
  Tensor w = table();
  const auto pass = [&] {
    Tape tape;
    sum(square(linear(x, w))).backward();
  };
  pass();
  const Tensor once = w.grad().clone();
  const Storage* const buffer = w.grad().storage();
  const std::int64_t whole = 8 * w.numel();
  CHECK(peak_of(pass) < whole / 2);
  CHECK(w.grad().storage() == buffer);
  NoGradGuard off;
  CHECK(test::mismatch(w.grad(), once * 2.0, 1e-13) == "");
}

TEST_CASE("accumulate: a shared or unsuitable grad() is not written in place") {
  const Tensor x = test::random({3, 4}, 2);
  Tensor w = test::random({5, 4}, 1).set_requires_grad();
  const auto pass = [&] {
    Tape tape;
    sum(square(linear(x, w)) + linear(x, w)).backward();
  };
  pass();
  const Tensor once = w.grad().clone();
  {
    const Tensor view = w.grad().select(0, 1);  // the sum is right for every reader
    pass();
    NoGradGuard off;
    CHECK(test::mismatch(w.grad(), once * 2.0, 1e-13) == "");
  }
  const Tensor transposed_sum = once.t().clone().t();
  CHECK_FALSE(transposed_sum.is_contiguous());
  w.set_grad(transposed_sum.detach());
  pass();
  NoGradGuard off;
  CHECK(test::mismatch(w.grad(), once * 2.0, 1e-13) == "");
}

TEST_CASE("accumulate: a hook that keeps a partial gradient does not spoil the sum") {
  const Tensor x = test::random({3, 4}, 2);
  Tensor w = test::random({4, 4}, 1).set_requires_grad(), b = test::random({4}, 3);
  b.set_requires_grad();
  const auto pass = [&](bool keep) {
    std::vector<Tensor> kept;
    Tape tape;
    if (keep) tape.on_grad_ready([&](const Tensor&) { kept.push_back(w.grad()); });
    // b is ready between the two uses of w.
    sum(square(linear(linear(x, w) * b, w))).backward();
  };
  pass(false);
  const Tensor once = w.grad().clone();
  pass(true);
  NoGradGuard off;
  CHECK(test::mismatch(w.grad(), once * 2.0, 1e-13) == "");
}

TEST_CASE("accumulate: Tape::gradients leaves the grad() of the leaf unchanged") {
  const Tensor x = test::random({3, 4}, 2);
  Tensor w = test::random({5, 4}, 1).set_requires_grad();
  w.set_grad(Tensor::full({5, 4}, 7, DType::f64));
  Tape tape;
  const TensorList g = tape.gradients(sum(linear(x, w)), {w});
  CHECK(test::mismatch(w.grad(), Tensor::full({5, 4}, 7, DType::f64), 0) == "");
  NoGradGuard off;
  CHECK(test::mismatch(g[0].select(0, 0), sum(x, {0}), 1e-13) == "");
}

TEST_CASE("accumulate: main_grad and recomputed regions add up") {
  const Tensor x = test::random({3, 4}, 2);
  Tensor w = test::random({4, 4}, 1).set_requires_grad();
  const auto net = [&](const Tensor& in) { return linear(square(linear(in, w)), w); };
  const auto pass = [&](bool again) {
    Tape tape;
    const Tensor start = x.detach().set_requires_grad();
    sum(again ? recompute(net, start) : net(start)).backward();
  };
  pass(false);
  const Tensor once = w.grad().clone();
  pass(true);
  {
    NoGradGuard off;
    CHECK(test::mismatch(w.grad(), once * 2.0, 1e-13) == "");
  }
  const Tensor kept = w.grad().clone();
  w.set_main_grad(Tensor::zeros({4, 4}, DType::f64));
  pass(false);
  CHECK(test::mismatch(w.main_grad(), once, 1e-13) == "");
  CHECK(test::different_bits(w.grad(), kept) == "");
}

TEST_CASE("accumulate: a bf16 weight's gradient is added to its f32 main_grad directly") {
  const Tensor x = test::random({64, 8}, 2, DType::bf16),
               dy = test::random({64, 6}, 3, DType::bf16);
  Tensor w = test::random({6, 8}, 1, DType::bf16).set_requires_grad();
  w.set_main_grad(Tensor::zeros({6, 8}, DType::f32));
  int ready = 0;
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    tape.on_grad_ready([&](const Tensor& leaf) { ready += leaf.same(w); });
    linear(x, w).backward(dy);
  }
  const Tensor want = matmul(dy.to(DType::f64).t(), x.to(DType::f64)) * 2.0;
  CHECK(test::mismatch(w.main_grad(), want, 1e-5) == "");
  CHECK(ready == 2);
  CHECK(!w.grad().defined());
  // With a second use by an op without such a kernel, the sum contains both contributions.
  w.main_grad().zero_();
  Tape tape;
  (sum(linear(x, w)) + sum(w)).backward();
  const Tensor both = sum(x.to(DType::f64), {0}).expand({6, 8}) + 1.0;
  CHECK(test::mismatch(w.main_grad(), both, 1e-2) == "");
}

TEST_CASE("accumulate: an f64 weight may have an f32 main_grad") {
  const Tensor x = test::random({5, 4}, 1);
  Tensor w = test::random({3, 4}, 2).set_requires_grad();
  w.set_main_grad(Tensor::zeros({3, 4}, DType::f32));
  Tape tape;
  sum(linear(x, w)).backward();
  CHECK(test::mismatch(w.main_grad(), sum(x, {0}).expand({3, 4}), 1e-6) == "");
}

TEST_CASE("accumulate: under an outer tape the sum keeps its history") {
  const auto penalty = [](const TensorList& in) {
    Tape inner;
    const Tensor y = sum(square(linear(linear(in[0], in[1]), in[1])));
    const TensorList g = inner.gradients(y, {in[1]});
    return sum(square(g[0]));
  };
  CHECK(gradcheck(penalty, {test::random({2, 3}, 1), test::random({3, 3}, 2)}) == "");
}

TEST_CASE("accumulate: the grad() of a leaf as upstream gradient") {
  const Tensor w = test::random({3}, 1, DType::f32).set_requires_grad();
  const Tensor b = test::random({3}, 2, DType::f32).set_requires_grad();
  w.set_grad(Tensor::of({1, 2, 3}, {3}));
  Tape tape;
  (w + b).backward(w.grad());
  CHECK(test::values(w.grad()) == std::vector<double>{2, 4, 6});
  CHECK(test::values(b.grad()) == std::vector<double>{1, 2, 3});
}

TEST_CASE("accumulate: a gradient of the wrong shape is refused") {
  // The penalty is recorded last, so its gradient is the first in the buffer.
  const auto penalty = [](const Tensor& w) {
    const Tensor y = sum(w.detach());
    Tape::record("penalty", {&w}, {&y},
                 [](Backward& b) { b.add(0, Tensor::ones({1}, DType::f64)); });
    return y;
  };
  const Tensor w = test::random({3, 2}).set_requires_grad();
  const std::string want = "{}: gradient must have shape [1] and dtype f64, got [3, 2] and f64";
  {
    Tape tape;
    const Tensor y = sum(linear(test::random({4, 2}, 2), w));
    CHECK(test::error_of([&] { add(y, penalty(w)).backward(); }) ==
          message(want.c_str(), "linear"));
  }
  {
    Tape tape;
    const Tensor y = sum(embedding(w, Tensor::of({0, 2}, {2}, DType::i64)));
    CHECK(test::error_of([&] { add(y, penalty(w)).backward(); }) ==
          message(want.c_str(), "embedding"));
  }
}

}  // namespace weft::accumulate_test
