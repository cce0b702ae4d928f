#include <doctest/doctest.h>

#include "weft/core/allocator.h"
#include "weft/core/parallel.h"
#include "weft/tests/poisoned_memory.h"
#include "weft/tests/support.h"

namespace weft::debug_allocator_test {
namespace {

// Accesses that AddressSanitizer would report and that the guard zones must detect.
__attribute__((noinline, no_sanitize("address"))) float peek(const float* p) { return *p; }
__attribute__((noinline, no_sanitize("address"))) void poke(float* p) { *p = 1; }

std::string last_line;

// The number of broken guard zones that f adds.
long broken_by(auto&& f) {
  const auto count = [] {
    const std::string text = test::error_of([] { check_guard_zones(); });
    const std::string head = "allocator: guard zones were overwritten, got ";
    if (text == "no error") return 0l;
    REQUIRE(text.substr(0, head.size()) == head);
    CHECK(text.substr(text.rfind(' ')) == " them");
    return std::stol(text.substr(head.size()));
  };
  const long before = count();
  f();
  return count() - before;
}

}  // namespace

TEST_CASE("debug allocator: is off by default") {
  CHECK_FALSE(debug_allocator());
  {
    test::PoisonedMemory on;
    CHECK(debug_allocator());
  }
  CHECK_FALSE(debug_allocator());
}

TEST_CASE("debug allocator: fresh floating memory is NaN and integers are unchanged") {
  test::PoisonedMemory on;
  for (const DType t :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
    CAPTURE(name(t));
    { const Tensor dirty = Tensor::zeros({33}, t); }
    const Tensor x = Tensor::empty({33}, t);
    std::vector<double> v(33);
    x.copy_to(v);
    for (const double d : v) CHECK(std::isnan(d));
  }
}

TEST_CASE("debug allocator: freed memory is poisoned") {
  test::PoisonedMemory on;
  for (const std::int64_t n : {10, 10000, 1000000}) {
    Tensor x = Tensor::ones({n});
    const float* p = x.data<float>();
    CHECK(p[0] == 1);
    x = {};
    CHECK(std::isnan(peek(p)));
    CHECK(std::isnan(peek(p + n - 1)));
  }
}

TEST_CASE("debug allocator: freeing detects a write on either side of the block") {
  test::PoisonedMemory on;
  set_log_handler([](std::string_view line) { last_line = line; });
  for (const std::int64_t n : {1, 15, 16, 1000, 600000}) {
    CAPTURE(n);
    for (const std::int64_t at : {std::int64_t{-1}, std::int64_t{-16}, n, n + 15}) {
      last_line.clear();
      CHECK(broken_by([&] {
              const Tensor x = Tensor::zeros({n});
              poke(x.data<float>() + at);
            }) == 1);
      CHECK(last_line ==
            message("allocator: a guard zone of a block of {} bytes was overwritten", 4 * n));
    }
    CHECK(broken_by([&] {
            const Tensor x = Tensor::zeros({n});
            x.data<float>()[0] = x.data<float>()[n - 1] = 1;
          }) == 0);
  }
  set_log_handler(nullptr);
}

TEST_CASE("debug allocator: early release checks the guard zones too") {
  test::PoisonedMemory on;
  CHECK(broken_by([] {
          const Tensor x = Tensor::zeros({8});
          poke(x.data<float>() + 8);
          release_storage(x);
        }) == 1);
}

TEST_CASE("debug allocator: blocks from before and after the switch coexist") {
  Tensor plain = Tensor::ones({100});
  Tensor guarded;
  {
    test::PoisonedMemory on;
    guarded = Tensor::ones({100});
    CHECK(reinterpret_cast<std::uintptr_t>(guarded.raw()) % 64 == 0);
    CHECK(broken_by([&] { plain = {}; }) == 0);
  }
  CHECK(broken_by([&] { guarded = {}; }) == 0);
  const Tensor again = Tensor::ones({100});
  CHECK(test::mismatch(again, Tensor::ones({100}), 0) == "");
}

}  // namespace weft::debug_allocator_test
