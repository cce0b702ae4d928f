// Gradients of weights that are computed later in the pass are the same, and ready later.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/mlp.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::delay_gradients_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Recompute;
using test::different_bits;

namespace {

Tensor weight(const Shape& shape, std::uint64_t seed, DType dtype = DType::f64) {
  return test::random(shape, seed, dtype).set_requires_grad();
}

// x as it is; `f` runs when its gradient comes by.
Tensor watched(const Tensor& x, const std::function<void()>& f) {
  return custom_function(
      "watch", {x}, [](const TensorList& in) { return in[0] * 1.0; },
      [f](const TensorList&, const Tensor&, const Tensor& dy) {
        f();
        return TensorList{dy};
      });
}

enum class When { at_once, delayed, flushed };

struct Pass {
  std::vector<Tensor> grads;
  std::vector<std::string> ready;  // in this order
};

// Two passes, so that the second one adds to what is there.
Pass gradients(Gpt& model, const Tensor& ids, When when, bool with_main_grad) {
  Pass out;
  const NamedTensors parameters = model.named_parameters();
  for (const NamedTensor& p : parameters) {
    p.tensor.set_grad({});
    if (with_main_grad)
      Tensor(p.tensor).set_main_grad(test::random(p.tensor.shape(), 9, p.tensor.dtype()));
  }
  for (int i = 0; i < 2; ++i) {
    const RandomScope random({.seed = 1, .step = 7});
    Tape tape;
    tape.on_grad_ready([&](const Tensor& leaf) {
      for (const NamedTensor& p : parameters)
        if (p.tensor.same(leaf)) out.ready.push_back(p.name);
      if (when == When::flushed) DelayWeightGradients::flush();
    });
    const Tensor loss = model.losses(ids, ids).total();
    if (when == When::at_once) {
      loss.backward();
    } else {
      const DelayWeightGradients later;
      loss.backward();
    }
  }
  for (const NamedTensor& p : parameters)
    out.grads.push_back((with_main_grad ? p.tensor.main_grad() : p.tensor.grad()).clone());
  return out;
}

void check_model(const GptConfig& c) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const bool with_main_grad : {false, true}) {
      Gpt model(c);
      nn::init(model, 3);
      model.to(dtype);
      const Tensor ids = test::random({2, c.seq}, 4, DType::i32);
      const Pass want = gradients(model, ids, When::at_once, with_main_grad);
      for (const When when : {When::delayed, When::flushed}) {
        const Pass got = gradients(model, ids, when, with_main_grad);
        const NamedTensors parameters = model.named_parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          CAPTURE(parameters[i].name);
          CHECK(different_bits(got.grads[i], want.grads[i]) == "");
        }
        // Each once a pass.
        CHECK(got.ready.size() == want.ready.size());
        auto a = got.ready, b = want.ready;
        std::sort(a.begin(), a.end());
        std::sort(b.begin(), b.end());
        CHECK(a == b);
      }
    }
}

GptConfig tiny(Arch arch, Recompute recompute) {
  return {.arch = arch,
          .layers = 2,
          .heads = 2,
          .dim = 16,
          .seq = 8,
          .vocab = 13,
          .dropout = 0.1,
          .recompute = recompute};
}

}  // namespace

TEST_CASE("G3: gated delta nets, experts and drafts get the same gradients, to the bit") {
  for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full})
    for (const char* kind : {"gpt2", "llama", "delta", "experts", "repeated"}) {
      CAPTURE(kind);
      CAPTURE(static_cast<int>(r));
      const std::string name = kind;
      GptConfig c = tiny(name == "gpt2" ? Arch::gpt2 : Arch::llama, r);
      if (name == "delta") c.pattern = "da";
      if (name == "experts") c.moe = {.experts = 4, .ffn = 8, .shared_ffn = 6, .shared_gate = true};
      if (name == "repeated") c.mtp = {.depths = 2, .repeated = true};
      check_model(c);
    }
}

TEST_CASE("delayed gradients: a weight is ready when all of its parts are there, and only then") {
  const Tensor x = weight({3, 4}, 1), first = weight({4, 4}, 2), last = weight({4, 4}, 3),
               bias = weight({4}, 4);
  for (const bool delayed : {false, true}) {
    for (const Tensor& t : {x, first, last, bias}) t.set_grad({});
    bool seen = false, flushed = false;
    std::vector<Tensor> ready;
    const auto is_ready = [&](const Tensor& t) {
      return std::any_of(ready.begin(), ready.end(), [&](const Tensor& r) { return r.same(t); });
    };
    Tape tape;
    tape.on_grad_ready([&](const Tensor& leaf) {
      CHECK(leaf.grad());
      ready.push_back(leaf);
    });
    // Backward comes by `last`, then by the second use of `first`, then by its first use.
    Tensor h = watched(x * 1.0, [&] { CHECK(is_ready(first) == !delayed); });
    h = watched(linear(h, first, bias), [&] {
      CHECK(is_ready(last) == !delayed);
      CHECK(static_cast<bool>(last.grad()) == !delayed);
      CHECK_FALSE(is_ready(first));
      CHECK_FALSE(is_ready(bias));
      seen = true;
      DelayWeightGradients::flush();
      CHECK(is_ready(last));
      CHECK_FALSE(is_ready(first));  // one use is still to come
      flushed = true;
    });
    h = linear(linear(h, first, bias), last);
    const Tensor loss = sum(h * h);
    if (delayed) {
      const DelayWeightGradients later;
      loss.backward();
    } else {
      loss.backward();
    }
    CHECK(seen);
    CHECK(flushed);
    CHECK(ready.size() == 4);
    CHECK(ready.front().same(last));
    CHECK(ready.back().same(delayed ? bias : x));
  }
}

TEST_CASE("delayed gradients: parts that are not put off keep their place in the sum") {
  // 1e16 + 1 - 1e16 is 0 in this order only.
  const Tensor big = Tensor::full({1, 1}, 1e16, DType::f64), one = Tensor::ones({1, 1}, DType::f64);
  const auto run = [&](bool delayed) {
    const Tensor w = Tensor::full({1, 1}, 2, DType::f64).set_requires_grad();
    Tape tape;
    // Backward goes from the last op to the first: two products, then one that is not put off.
    Tensor y = w * (one * -1e16);
    y = y + linear(one, w);
    y = y + linear(big, w);
    if (delayed) {
      const DelayWeightGradients later;
      y.backward();
    } else {
      y.backward();
    }
    return w.grad().item();
  };
  CHECK(run(true) == run(false));
  CHECK(run(true) == 0);
}

TEST_CASE("delayed gradients: grouped_linear and mlp, with biases") {
  const Tensor rows = Tensor::of({2, 0, 3}, {3}, DType::i64);
  const auto run = [&](bool delayed, bool again, Activation activation) {
    const std::int64_t wide = activation == Activation::swiglu ? 12 : 6;
    const TensorList leaves = {weight({5, 4}, 1), weight({3, 4, 4}, 2), weight({3, 4}, 3),
                               weight({5}, 4),    weight({wide, 4}, 5), weight({wide}, 6),
                               weight({4, 6}, 7), weight({4}, 8)};
    Tape tape;
    Tensor y = grouped_linear(leaves[0], leaves[1], leaves[2], rows, leaves[3]);
    for (int i = 0; i < 2; ++i)
      y = mlp(y, leaves[4], leaves[5], leaves[6], leaves[7],
              {.activation = activation, .recompute = again});
    const Tensor loss = sum(y * y);
    TensorList grads;
    if (delayed) {
      const DelayWeightGradients later;
      grads = tape.gradients(loss, leaves);
    } else {
      grads = tape.gradients(loss, leaves);
    }
    return grads;
  };
  for (const bool again : {false, true})
    for (const Activation a : {Activation::gelu_tanh, Activation::gelu_erf, Activation::swiglu}) {
      const TensorList want = run(false, again, a), got = run(true, again, a);
      for (int i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        REQUIRE(want[i]);
        CHECK(different_bits(got[i], want[i]) == "");
      }
    }
}

TEST_CASE("delayed gradients: of a weight that was computed, the gradient is needed at once") {
  const auto run = [](bool delayed) {
    const Tensor w = weight({3, 2}, 1), x = weight({4, 2}, 2);
    Tape tape;
    const Tensor loss = sum(linear(x, tanh(w)));
    if (delayed) {
      const DelayWeightGradients later;
      loss.backward();
    } else {
      loss.backward();
    }
    return w.grad();
  };
  CHECK(different_bits(run(true), run(false)) == "");
}

TEST_CASE("delayed gradients: regions inside regions, and a gradient of a gradient") {
  const auto f = [](const TensorList& in) {
    const DelayWeightGradients later;
    return recompute(
        [](const TensorList& xs) {
          const Tensor h = recompute([&xs](const Tensor& v) { return tanh(linear(v, xs[1])); },
                                     linear(xs[0], xs[1]));
          return TensorList{h * xs[0]};
        },
        in)[0];
  };
  // The scope holds in forward only: what counts is where backward runs.
  const DelayWeightGradients later;
  CHECK(gradcheck(f, {test::random({3, 3}, 1), test::random({3, 3}, 2)}) == "");
  const Tensor x = weight({2, 2}, 1), w = weight({2, 2}, 2);
  const auto second = [&] {
    Tape outer;
    Tensor slope;
    {
      Tape inner;
      slope = grad(sum(square(linear(x, w))), {w})[0];
    }
    return grad(sum(square(slope)), {w})[0];
  };
  const Tensor got = second();
  // The slope is 2 w x'x, and d/dw of its squares 8 w (x'x)^2.
  const Tensor xx = matmul(x.detach().t(), x.detach());
  CHECK(test::mismatch(got, matmul(w.detach(), matmul(xx, xx)) * 8.0, 1e-12) == "");
}

TEST_CASE("delayed gradients: a pass that fails drops what waits, and the next one is sound") {
  const Tensor x = weight({2, 2}, 1), w = weight({2, 2}, 2);
  const std::int64_t live = memory_stats().live_bytes;
  const DelayWeightGradients later;
  {
    Tape tape;
    const Tensor loss = sum(linear(watched(x * 1.0, [] { throw Error("no"); }), w));
    CHECK(test::error_of([&] { loss.backward(); }) == "no");
    CHECK_FALSE(w.grad());
  }
  CHECK(memory_stats().live_bytes == live);
  Tape tape;
  sum(linear(x, w)).backward();
  CHECK(w.grad());
}

TEST_CASE("delayed gradients: what they are computed from must not change meanwhile") {
  const auto run = [](bool delayed) {
    const Tensor x = Tensor::ones({2, 2}, DType::f64), w = weight({2, 2}, 2), z = weight({2, 2}, 3);
    Tape tape;
    const Tensor early = watched(z * 1.0, [&] { x.mul_(2); });
    const Tensor loss = sum(linear(x, w) + early);
    if (!delayed) return test::error_of([&] { loss.backward(); });
    const DelayWeightGradients later;
    return test::error_of([&] { loss.backward(); });
  };
  CHECK(run(false) == "no error");
  CHECK(run(true) == "linear: saved x was changed in place (version 2, saved at 1)");
}

}  // namespace weft::delay_gradients_test
