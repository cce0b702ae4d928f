// Memory errors on CPU tensors that only AddressSanitizer detects, one per run:
// allocator_bugs NAME must end with its report. Blocks come from slabs and caches, so the sanitizer
// knows about them only what core/shared_cache.h reports to it.
#include <sanitizer/asan_interface.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/core/allocator.h"
#include "weft/tests/support.h"

namespace weft {
namespace {

constexpr std::int64_t kSmall = 100, kWholeClass = 256, kLarge = 1 << 20;  // 400 B, 1 KiB, 4 MiB

volatile float* elements(const Tensor& t) { return t.data<float>(); }
volatile float sink = 0;

void use(const Tensor& t) {
  elements(t)[0] = 1;
  elements(t)[t.numel() - 1] = sink;
}

float* freed(std::int64_t n) {
  const Tensor dropped = Tensor::zeros({n});
  return dropped.data<float>();
}

// Valid uses that cover every source and destination of a block.
void sound() {
  for (const bool debug : {false, true}) {
    set_debug_allocator(debug);
    for (const std::int64_t n : {std::int64_t{1}, kSmall, kWholeClass, 30000l, 200000l, kLarge})
      for (int pass = 0; pass < 2; ++pass) {
        use(Tensor::zeros({n}));
        use(Tensor::zeros({n - n / 3}));  // a large block also serves this request
        use(test::strided(Tensor::ones({n})));
        const Tensor early = Tensor::ones({n});
        release_storage(early);
        std::thread([n] { use(Tensor::zeros({n})); }).join();
        if (pass == 0) release_cached_memory();
      }
  }
  set_debug_allocator(false);
}

void run(const char* name) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  const Tensor small = Tensor::zeros({kSmall}), whole = Tensor::zeros({kWholeClass});
  const Tensor next = Tensor::zeros({kWholeClass}), large = Tensor::zeros({kLarge});
  if (is("past_request")) elements(small)[kSmall] = 1;  // within its block
  if (is("past_block")) elements(whole)[kWholeClass] = 1;
  if (is("past_large")) elements(large)[kLarge] = 1;
  if (is("before")) sink = elements(next)[-1];
  if (is("before_large")) sink = elements(large)[-1];
  if (is("read_past")) sink = elements(small)[kSmall + 2];
  if (is("freed_small")) *static_cast<volatile float*>(freed(kSmall)) = 1;
  if (is("freed_large")) sink = *static_cast<volatile float*>(freed(kLarge));
  if (is("released")) {
    auto* const p = elements(small);
    release_storage(small);
    sink = p[0];
  }
  if (is("shrunk")) {
    freed(2 * kLarge - 1000);
    const Tensor part = Tensor::zeros({kLarge + 1000});  // within the larger block
    elements(part)[kLarge + 1000] = 1;
  }
  if (is("loop") || is("product")) {  // compiled with fewer checks: see cmake/options.cmake
    const Tensor square = Tensor::zeros({128, 128});
    ASAN_POISON_MEMORY_REGION(square.data<float>() + 2000, 2 * sizeof(float));
    use(is("loop") ? add(square, square) : matmul(square, square));
  }
  if (is("guard")) {
    set_debug_allocator(true);
    sink = elements(Tensor::zeros({kSmall}))[kSmall];
  }
  if (is("sound")) sound();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  weft::run(argv[1]);
  std::puts("no report");
  return 0;
}
