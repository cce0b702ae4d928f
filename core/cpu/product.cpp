#include "weft/core/cpu/product.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "weft/core/error.h"

namespace weft::cpu {
namespace {

struct Engines {
  ProductEngine f32;
  bool library_bf16;
};

// Without a name by instruction set, not by a measurement at run time: two runs on one machine have
// the same bits. Without fused multiply-adds the packed product is slow.
Engines engines_of(std::string_view name) {
  check(name == "weft" || name == "onednn" || name.empty(),
        "WEFT_GEMM: must be weft or onednn, got {}", name);
  check(name != "onednn" || WEFT_USE_ONEDNN, "WEFT_GEMM: this build has no oneDNN, got {}", name);
  const auto own = simd().panels<float>().fast ? ProductEngine::packed : ProductEngine::loops;
  const bool wanted = WEFT_USE_ONEDNN && name != "weft", always = name == "onednn";
  const bool slow = own == ProductEngine::loops;
  return {wanted && (always || slow) ? ProductEngine::library : own,
          wanted && (always || std::string_view(simd().name) != "avx2")};
}

// Both in one number, 0 before the first use: the engine plus 1, and whether bf16 is the library's.
constexpr int kLibraryBf16 = 8;
std::atomic<int> chosen{0};

int choose(std::string_view name) {
  const Engines e = engines_of(name);
  const int found = (static_cast<int>(e.f32) + 1) | (e.library_bf16 ? kLibraryBf16 : 0);
  chosen = found;
  return found;
}

int choose_by_environment() {
  const char* const wanted = std::getenv("WEFT_GEMM");
  return choose(wanted ? wanted : "");
}

Engines engines() {
  int found = chosen.load(std::memory_order_relaxed);
  if (found == 0) [[unlikely]]
    found = choose_by_environment();
  return {static_cast<ProductEngine>((found & ~kLibraryBf16) - 1), (found & kLibraryBf16) != 0};
}

}  // namespace

ProductEngine gemm_engine() { return engines().f32; }

bool library_has_bf16() { return engines().library_bf16; }

void set_gemm_engine(const char* name) {
  if (*name)
    choose(name);
  else
    choose_by_environment();
}

}  // namespace weft::cpu
