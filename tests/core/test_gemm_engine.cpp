// The environment variable WEFT_GEMM: which engine multiplies, and that all of them agree.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/gemm.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::gemm_engine_test {

TEST_CASE("WEFT_GEMM: an engine that does not exist is refused") {
  CHECK(test::error_of([] { cpu::set_gemm_engine("mkl"); }) ==
        "WEFT_GEMM: must be weft or onednn, got mkl");
}

TEST_CASE("WEFT_GEMM: weft never uses oneDNN, the default for bf16 and without AVX2") {
  const test::RestoreKernels restore;
  const bool has_library = test::error_of([] { cpu::set_gemm_engine("onednn"); }) == "no error";
  for (const SimdTable* table : test::simd_tables()) {
    CAPTURE(table->name);
    set_simd(table->name);
    if (has_library) {
      cpu::set_gemm_engine("onednn");
      CHECK(cpu::gemm_engine() == cpu::ProductEngine::library);
      CHECK(cpu::library_has_bf16());
    }
    cpu::set_gemm_engine("weft");
    CHECK(cpu::gemm_engine() ==
          (simd().panels<float>().fast ? cpu::ProductEngine::packed : cpu::ProductEngine::loops));
    CHECK_FALSE(cpu::multiplies_bf16());
    cpu::set_gemm_engine("");
    if (std::getenv("WEFT_GEMM") != nullptr) continue;
    const std::string isa = simd().name;
    const bool packs = isa != "scalar";
    CHECK((cpu::gemm_engine() == cpu::ProductEngine::library) == (has_library && !packs));
    CHECK(cpu::library_has_bf16() == (has_library && isa != "avx2"));
  }
}

TEST_CASE("WEFT_GEMM: every engine of this build agrees with f64") {
  const Tensor a = test::random({130, 300}), b = test::random({300, 70}, 2);
  Tensor want = Tensor::empty({130, 70}, DType::f64);
  gemm(a, b, want);
  const test::RestoreKernels restore;
  for (const std::string engine : {"weft", "onednn"}) {
    CAPTURE(engine);
    if (const std::string error = test::error_of([&] { cpu::set_gemm_engine(engine.c_str()); });
        error != "no error") {
      CHECK(error == "WEFT_GEMM: this build has no oneDNN, got onednn");
      continue;
    }
    const Tensor out = Tensor::empty({130, 70});
    gemm(a.to(DType::f32), b.to(DType::f32), out);
    CHECK(test::mismatch(out, want, 4e-5) == "");
  }
}

}  // namespace weft::gemm_engine_test
