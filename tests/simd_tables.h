#pragma once
#include <vector>

#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"

namespace weft::test {

/// The tables of every instruction set that this processor has. The test isa_avx512_simd is skipped
/// on a processor without all of them.
inline std::vector<const SimdTable*> simd_tables() {
  std::vector<const SimdTable*> found;
  for (const char* name : {"scalar", "avx2", "avx512"})
    if (const SimdTable* table = find_simd(name)) found.push_back(table);
  return found;
}

/// Restores the engine of products that WEFT_GEMM names, and the instruction set, at the end of its
/// scope, also after an exception.
class RestoreKernels {
 public:
  RestoreKernels() = default;
  ~RestoreKernels() {
    set_simd(simd_);
    cpu::set_gemm_engine("");
  }
  RestoreKernels(const RestoreKernels&) = delete;

 private:
  const char* simd_ = simd().name;
};

}  // namespace weft::test
