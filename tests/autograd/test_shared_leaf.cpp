// Leaves that are recorded on the tapes of several threads at once: shared or frozen weights.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"

namespace weft::shared_leaf_test {
namespace {

constexpr int kThreads = 2, kPasses = 4000;

Tensor shared_leaf() { return Tensor::full({64}, 0.5, DType::f64).set_requires_grad(); }

// Runs pass(thread) repeatedly on all threads at the same time. Reports how often the gradient was
// missing or differed from `want(thread)` in any element.
std::string wrong_passes(const std::function<Tensor(int)>& pass,
                         const std::function<double(int)>& want) {
  std::atomic<int> ready{0}, missing{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k)
    threads.emplace_back([&, k] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      for (int i = 0; i < kPasses; ++i) {
        const Tensor g = pass(k);
        if (!g.defined())
          ++missing;
        else if (g.min().item() != want(k) || g.max().item() != want(k))
          ++wrong;
      }
    });
  for (std::thread& t : threads) t.join();
  if (missing == 0 && wrong == 0) return "";
  return message("{} missing and {} wrong of {}", missing.load(), wrong.load(), kThreads * kPasses);
}

}  // namespace

TEST_CASE("shared leaf: two threads get separate gradients") {
  const Tensor w = shared_leaf();
  CHECK(wrong_passes(
            [&](int k) {
              Tape tape;
              return tape.gradients(sum(w * w * (k + 1.0)), {w})[0];
            },
            [](int k) { return k + 1.0; }) == "");
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("shared leaf: on tapes that also have a leaf per thread") {
  const Tensor w = shared_leaf();
  CHECK(wrong_passes(
            [&](int k) {
              const Tensor x = Tensor::full({64}, k + 1.0, DType::f64).set_requires_grad();
              Tape tape;
              return tape.gradients(sum(w * x * x), {x})[0];
            },
            [](int k) { return k + 1.0; }) == "");
}

TEST_CASE("shared leaf: a frozen shared leaf does not disturb backward into a thread's own leaf") {
  const Tensor frozen = Tensor::full({64}, 0.5, DType::f64);
  CHECK(wrong_passes(
            [&](int k) {
              const Tensor x = Tensor::full({64}, k + 1.0, DType::f64).set_requires_grad();
              Tape tape;
              sum(frozen * x * x).backward();
              return x.grad();
            },
            [](int k) { return k + 1.0; }) == "");
}

TEST_CASE("shared leaf: gradients of gradients") {
  const Tensor w = shared_leaf();
  CHECK(wrong_passes(
            [&](int k) {
              Tape outer;
              Tensor g;
              {
                Tape inner;
                g = inner.gradients(sum(w * w * w * (k + 1.0)), {w})[0];
              }
              return outer.gradients(sum(g), {w})[0];  // 6 w (k + 1)
            },
            [](int k) { return 3 * (k + 1.0); }) == "");
}

TEST_CASE("shared leaf: inside and outside a recomputed region") {
  const Tensor w = shared_leaf();
  CHECK(wrong_passes(
            [&](int k) {
              Tape tape;
              const Tensor x = w * (k + 1.0);
              const Tensor y = recompute([&](const Tensor& in) { return in * w; }, x);
              return tape.gradients(sum(y), {w})[0];  // 2 w (k + 1)
            },
            [](int k) { return k + 1.0; }) == "");
}

TEST_CASE("shared leaf: a concurrent second backward() into the same grad() is refused") {
  const Tensor w = shared_leaf();
  const Tensor x = Tensor::full({64}, 3, DType::f64).set_requires_grad();
  std::string refused;
  Tensor second;
  {
    Tape tape;
    bool asked = false;
    tape.on_grad_ready([&](const Tensor&) {
      if (std::exchange(asked, true)) return;
      std::thread([&] {
        Tape theirs;
        const Tensor loss = sum(w * w);
        refused = test::error_of([&] { loss.backward(); });
        second = theirs.gradients(loss, {w})[0];  // does not touch grad()
      }).join();
    });
    sum(w * x).backward();
  }
  CHECK(refused ==
        "backward: one thread at a time may add to the grad() of a leaf, but another thread's "
        "backward() is adding to that of shape [64]; take turns, or use grad()");
  CHECK(test::different_bits(second, Tensor::ones({64}, DType::f64)) == "");
  // Afterwards it is allowed, and nothing was added twice.
  std::thread([&] {
    Tape theirs;
    sum(w * w).backward();
  }).join();
  CHECK(test::different_bits(w.grad(), Tensor::full({64}, 4, DType::f64)) == "");
}

TEST_CASE("shared leaf: an exception in backward() frees its leaves for other threads") {
  const Tensor w = shared_leaf();
  {
    Tape tape;
    tape.on_grad_ready([](const Tensor&) { throw Error("stop"); });
    CHECK(test::error_of([&] { sum(w * w).backward(); }) == "stop");
  }
  std::string error = "not run";
  std::thread([&] {
    error = test::error_of([&] {
      Tape theirs;
      sum(w * w).backward();
    });
  }).join();
  CHECK(error == "no error");
}

}  // namespace weft::shared_leaf_test
