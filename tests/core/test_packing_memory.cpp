// Products on a thread that gets no memory for packed operands.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "weft/core/cpu/packed_product.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/support.h"

namespace weft::packing_memory_test {
namespace {

// Takes all memory that malloc() has or could get, in pieces that no packed operands fit into.
class NoMemory {
 public:
  static constexpr std::size_t kPiece = 16 << 10;

  NoMemory() {
    held_.reserve(1 << 14);
    getrlimit(RLIMIT_AS, &before_);
    const rlimit none{1, before_.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    while (held_.size() < held_.capacity()) {
      void* const piece = std::malloc(kPiece);
      if (piece == nullptr) break;
      held_.push_back(piece);
    }
  }
  ~NoMemory() {
    setrlimit(RLIMIT_AS, &before_);
    for (void* piece : held_) std::free(piece);
  }
  NoMemory(const NoMemory&) = delete;
  // False where the system does not limit a process's memory.
  bool is_complete() const { return held_.size() < held_.capacity(); }

 private:
  rlimit before_{};
  std::vector<void*> held_;
};

// Runs f on a thread that has no buffer yet and gets none. Returns false if it got one.
bool without_memory(const std::function<void()>& f) {
  bool refused = false, complete = false;
  std::thread([&] {
    const NoMemory none;
    complete = none.is_complete();
    f();
    refused = cpu::packing_buffer(2 * NoMemory::kPiece) == nullptr;
  }).join();
  if (!complete) MESSAGE("skipped: without memory: the system does not limit it");
  return refused || !complete;
}

struct Kind {
  std::int64_t rows;
  bool trans_a, trans_b;
};

template <class T>
void keeps_its_bits(const Kind& kind, bool with_bias) {
  const std::int64_t m = kind.rows, n = 1100, k = 700;
  const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::f64;
  const Tensor a = test::random({m * k}, 1, dtype), b = test::random({n * k}, 2, dtype);
  const Tensor bias = test::random({n}, 3, dtype);
  const auto into = [&](const Tensor& c) {
    const cpu::Product<T> p{a.data<T>(),
                            b.data<T>(),
                            c.data<T>(),
                            m,
                            n,
                            k,
                            kind.trans_a ? m : k,
                            kind.trans_b ? k : n,
                            n,
                            kind.trans_a,
                            kind.trans_b,
                            !with_bias};
    cpu::packed_product(p, with_bias ? bias.data<T>() : nullptr, [](auto...) {});
  };
  const Tensor want = test::random({m, n}, 4, dtype), got = want.clone();
  into(want);
  CHECK(without_memory([&] { into(got); }));
  CHECK(test::different_bits(got, want) == "");
}

}  // namespace

TEST_CASE("packed product: without memory for packed operands it has the same bits") {
  if (test::sanitized) return;  // their allocators end the process
  for (const Kind& kind : {Kind{40, false, false},
                           {40, true, false},
                           {40, false, true},
                           {41, true, true},
                           {300, false, true}})
    for (const bool with_bias : {false, true}) {
      CAPTURE(kind.rows);
      CAPTURE(kind.trans_a);
      CAPTURE(kind.trans_b);
      keeps_its_bits<float>(kind, with_bias);
      keeps_its_bits<double>(kind, with_bias);
    }
}

TEST_CASE("small bf16 product: without memory for f32 operands it agrees with f64") {
  if (test::sanitized) return;
  const std::int64_t m = 40, n = 70, k = 90;
  const Tensor a = test::random({m, k}, 1, DType::bf16), b = test::random({k, n}, 2, DType::bf16);
  const Tensor c = test::random({m, n}, 3, DType::f32);
  Tensor want = Tensor::zeros({m, n}, DType::f64);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = static_cast<double>(c.data<float>()[i * n + j]);
      for (std::int64_t l = 0; l < k; ++l)
        sum += static_cast<double>(a.data<bf16>()[i * k + l]) *
               static_cast<double>(b.data<bf16>()[l * n + j]);
      want.data<double>()[i * n + j] = sum;
    }
  const cpu::Product<bf16, float> p{
      a.data<bf16>(), b.data<bf16>(), c.data<float>(), m, n, k, k, n, n, false, false, true};
  CHECK(without_memory([&] { cpu::widened_small_product(p); }));
  CHECK(test::mismatch(c, want, 1e-5) == "");
}

}  // namespace weft::packing_memory_test
