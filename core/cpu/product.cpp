#include "weft/core/cpu/product.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "weft/core/error.h"

namespace weft::cpu {
namespace {

constexpr int kUnknown = -1;
std::atomic<int> engine{kUnknown};

ProductEngine engine_of(std::string_view name) {
  check(name == "weft" || name == "onednn", "WEFT_GEMM: must be weft or onednn, got {}", name);
  check(name != "onednn" || WEFT_USE_ONEDNN, "WEFT_GEMM: this build has no oneDNN, got {}", name);
  if (name == "onednn") return ProductEngine::library;
  return simd().panels<float>().fast ? ProductEngine::packed : ProductEngine::loops;
}

// By instruction set, not by a measurement at run time: two runs on one machine have the same bits.
// With AVX2 the packed product is faster than oneDNN; with AVX-512 it is not (docs/decisions.md),
// and without fused multiply-adds it is slow.
ProductEngine standard_engine() {
  if (const char* const wanted = std::getenv("WEFT_GEMM"); wanted && *wanted)
    return engine_of(wanted);
  const bool own = !WEFT_USE_ONEDNN || std::string_view(simd().name) == "avx2";
  return engine_of(own ? "weft" : "onednn");
}

}  // namespace

ProductEngine gemm_engine() {
  int found = engine.load(std::memory_order_relaxed);
  if (found == kUnknown) [[unlikely]]
    engine = found = static_cast<int>(standard_engine());
  return static_cast<ProductEngine>(found);
}

void set_gemm_engine(const char* name) { engine = static_cast<int>(engine_of(name)); }

}  // namespace weft::cpu
