#include <doctest/doctest.h>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/core/allocator.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"

namespace weft::memory_test {
namespace {

using test::different_bits;
using test::error_of;

std::int64_t live() { return memory_stats().live_bytes; }

// y = x^2 through a copy that the op owns. With `early` its backward frees the copy before it
// creates dx, so that the two never exist at the same time.
Tensor square_of_copy(const Tensor& x, bool early) {
  const Tensor copy = x.clone().detach();
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  {
    NoGradGuard off;
    y.copy_(mul(copy, copy));
  }
  if (recording(x))
    Tape::record("square_of_copy", {&x}, {&y}, [sc = save(copy, "copy"), early](Backward& b) {
      Tensor slope = mul(sc.get(), 2.0);
      if (early) release_storage(sc.get());
      b.add(0, mul(slope, b.dy()));
    });
  return y;
}

struct Net {
  Tensor w1, b1, w2, b2;

  explicit Net(Device device) {
    const auto parameter = [&](const Shape& shape, std::uint64_t seed) {
      return Tensor(test::random(shape, seed, DType::f32).to(device)).set_requires_grad();
    };
    w1 = parameter({8, 6}, 1);
    b1 = parameter({8}, 2);
    w2 = parameter({5, 8}, 3);
    b2 = parameter({5}, 4);
  }

  // One training step: forward, backward, a plain update.
  void step(const Tensor& x, const Tensor& target) {
    {
      Tape tape;
      const Tensor h = dropout(gelu(linear(x, w1, b1)), 0.1, {1, 2, 0});
      const Tensor logits = linear(h * h + h, w2, b2);
      cross_entropy(logits, target, {.label_smoothing = 0.1}).backward();
    }
    NoGradGuard off;
    for (Tensor* p : {&w1, &b1, &w2, &b2}) {
      p->add_(p->grad(), -0.01);
      p->set_grad({});
    }
  }
};

Tensor targets() { return Tensor::of({0, 1, 4}, {3}, DType::i64); }

}  // namespace

TEST_CASE("memory: each device has one shared empty storage") {
  const std::int64_t before = live();
  const Tensor a = Tensor::empty({0}), b = Tensor::empty({3, 0, 2}, DType::bf16);
  CHECK(a.storage() == b.storage());
  CHECK(empty_operand(DType::i64).storage() == a.storage());
  CHECK(empty_operand().numel() == 0);
  CHECK(empty_operand(DType::f32, kMeta).storage() != a.storage());
  CHECK(empty_operand(DType::f32, kMeta).storage() ==
        Tensor::empty({0}, DType::i32, kMeta).storage());
  CHECK(b.shape() == Shape{3, 0, 2});
  CHECK(b.dtype() == DType::bf16);
  CHECK(live() == before);
}

TEST_CASE("memory: the shared empty storage has no version and cannot be released") {
  const Tensor a = Tensor::empty({0});
  const std::uint32_t version = a.version();
  Tensor::empty({0, 4}).fill_(1);
  CHECK(a.version() == version);
  release_storage(Tensor::empty({0, 4}), 1 << 20);
  CHECK_FALSE(a.storage()->released);
  CHECK(Tensor::zeros({0}).numel() == 0);
}

TEST_CASE("release_storage: frees the block for every handle and keeps shape and dtype") {
  const std::int64_t before = live();
  Tensor x = Tensor::ones({100, 7}, DType::bf16);
  const Tensor view = x.slice(0, 10, 20);
  CHECK(live() == before + size_class_bytes(1400));
  release_storage(x, 2);
  CHECK(live() == before);
  CHECK(x.shape() == Shape{100, 7});
  CHECK(view.shape() == Shape{10, 7});
  CHECK(x.dtype() == DType::bf16);
  CHECK(error_of([&] { x.data<bf16>(); }) ==
        "data: the storage of this tensor [100, 7] was released");
  CHECK(error_of([&] { view.data<bf16>(); }) ==
        "data: the storage of this tensor [10, 7] was released");
  release_storage(x, 2);  // a second call changes nothing
  CHECK(live() == before);
}

TEST_CASE("release_storage: refuses if another owner exists and changes nothing") {
  const Tensor x = test::random({50}, 1, DType::f32);
  const Tensor keep = x.clone();
  {
    const Tensor handle = x;
    CHECK(error_of([&] { release_storage(x); }) ==
          "release_storage: the storage must have no other owner than the 1 declared, got 2");
  }
  {
    const Tensor view = x.slice(0, 3, 9);  // for example a scale that another tensor shares
    CHECK(error_of([&] { release_storage(x); }) ==
          "release_storage: the storage must have no other owner than the 1 declared, got 2");
    const Tensor third = view;
    CHECK(error_of([&] { release_storage(view, 2); }) ==
          "release_storage: the storage must have no other owner than the 2 declared, got 3");
  }
  CHECK(different_bits(x, keep) == "");
  release_storage(x);
}

TEST_CASE("release_storage: lowers the peak by exactly the bytes released") {
  const auto peak = [](bool early) {
    reset_peak();
    const std::int64_t before = live();
    std::vector<Tensor> handles;  // handles held by an op, a context or a user
    for (int i = 0; i < 5; ++i) {
      handles.push_back(Tensor::empty({1000 + i}));
      if (early) release_storage(handles.back());
    }
    return memory_stats().peak_bytes - before;
  };
  std::int64_t sum = 0;
  for (int i = 0; i < 5; ++i) sum += size_class_bytes(4 * (1000 + i));
  CHECK(peak(false) == sum);
  CHECK(peak(true) == size_class_bytes(4 * 1004));
}

TEST_CASE("release_storage: early release in backward keeps gradients and x and lowers the peak") {
  const Shape shape{300, 11};
  const Tensor data = test::random(shape, 2, DType::f32);
  const auto run = [&](bool early, std::int64_t& peak) {
    Tensor x = data.detach();
    x.set_requires_grad();
    const Tensor dy = test::random(shape, 3, DType::f32);
    Tape tape;
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = square_of_copy(y, early);
    const std::int64_t start = live();
    reset_peak();
    const TensorList g = tape.gradients(y, {x}, dy);
    peak = memory_stats().peak_bytes - start;
    return g[0];
  };
  const Tensor before = data.clone();
  std::int64_t late_peak = 0, early_peak = 0;
  const Tensor late = run(false, late_peak), early = run(true, early_peak);
  CHECK(different_bits(early, late) == "");
  CHECK(different_bits(data, before) == "");
  CHECK(late_peak - early_peak == size_class_bytes(4 * shape.numel()));
}

TEST_CASE("release_storage: backward reports a saved tensor that was released") {
  Tensor x = test::random({4}, 4, DType::f32);
  x.set_requires_grad();
  Tape tape;
  Tensor h = x + 1.0;
  const Tensor y = h * h;
  release_storage(h, 1 << 10);
  CHECK(error_of([&] { tape.gradients(y, {x}, Tensor::ones({4})); }) ==
        "data: the storage of this tensor [4] was released");
}

TEST_CASE("memory: after the first step a step of fixed shape allocates no system memory") {
  Net net(kCpu);
  const Tensor x = test::random({3, 6}, 5, DType::f32), t = targets();
  release_cached_memory();
  net.step(x, t);
  const MemoryStats first = memory_stats();
  for (int i = 0; i < 3; ++i) net.step(x, t);
  const MemoryStats last = memory_stats();
  CHECK(last.system_allocs == first.system_allocs);
  CHECK(last.misses == first.misses);
  CHECK(last.hits > first.hits);
  CHECK(last.live_bytes == first.live_bytes);
  CHECK(last.peak_bytes == first.peak_bytes);
}

TEST_CASE("memory: the third step does not call operator new") {
  Net net(kCpu);
  const Tensor x = test::random({3, 6}, 5, DType::f32), t = targets();
  net.step(x, t);
  net.step(x, t);
  const long news = test::news;
  net.step(x, t);
  CHECK(test::news == news);
}

TEST_CASE("memory: a step on the meta device predicts the CPU's peak exactly") {
  const auto peak = [](Device device) {
    Net net(device);
    const Tensor x = test::random({3, 6}, 5, DType::f32).to(device), t = targets().to(device);
    const std::int64_t start = memory_stats(device).live_bytes;
    reset_peak(device);
    net.step(x, t);
    return memory_stats(device).peak_bytes - start;
  };
  const std::int64_t want = peak(kCpu);
  CHECK(want > 0);
  CHECK(peak(kMeta) == want);
}

}  // namespace weft::memory_test
