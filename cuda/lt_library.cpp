// Opens cuBLASLt. The values of cuda/lt.h are compared with its header where that is available.
#include <cuda_runtime.h>

#include <string>

#include "weft/core/error.h"
#include "weft/cuda/lt.h"
#include "weft/cuda/open_library.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace weft::cuda::lt {
namespace {

#ifdef CUBLAS_VER_MAJOR
// Both sides are enumerators of different types.
template <class A, class B>
constexpr bool same(A ours, B theirs) {
  return static_cast<long>(ours) == static_cast<long>(theirs);
}
static_assert(same(kF32, CUDA_R_32F) && same(kF64, CUDA_R_64F) && same(kBf16, CUDA_R_16BF) &&
              same(kF16, CUDA_R_16F) && same(kE4m3, CUDA_R_8F_E4M3) && same(kE5m2, CUDA_R_8F_E5M2));
static_assert(same(kCompute32, CUBLAS_COMPUTE_32F) && same(kCompute64, CUBLAS_COMPUTE_64F) &&
              same(kComputeTf32, CUBLAS_COMPUTE_32F_FAST_TF32));
static_assert(same(kPlain, CUBLAS_OP_N) && same(kTransposed, CUBLAS_OP_T));
static_assert(same(kTransposeA, CUBLASLT_MATMUL_DESC_TRANSA) &&
              same(kTransposeB, CUBLASLT_MATMUL_DESC_TRANSB) &&
              same(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE) &&
              same(kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER) &&
              same(kAuxPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) &&
              same(kAuxLd, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) &&
              same(kScaleA, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) &&
              same(kScaleB, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER));
static_assert(same(kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) &&
              same(kBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET));
static_assert(same(kMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) &&
              same(kReductionSchemes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) &&
              same(kAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) &&
              same(kAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) &&
              same(kAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) &&
              same(kAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
static_assert(kOrderedReductions ==
              (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
static_assert(same(Epilogue::none, CUBLASLT_EPILOGUE_DEFAULT) &&
              same(Epilogue::bias, CUBLASLT_EPILOGUE_BIAS) &&
              same(Epilogue::gelu_aux_bias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS) &&
              same(Epilogue::dgelu, CUBLASLT_EPILOGUE_DGELU) &&
              same(Epilogue::dgelu_bias_gradient, CUBLASLT_EPILOGUE_DGELU_BGRAD) &&
              same(Epilogue::gelu_bias, CUBLASLT_EPILOGUE_GELU_BIAS) &&
              same(Epilogue::bias_gradient_b, CUBLASLT_EPILOGUE_BGRADB));
static_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

static_assert(CUBLAS_VER_MAJOR == CUDART_VERSION / 1000);
#endif

// The version of the toolkit, which the library's file name carries.
constexpr int kMajor = CUDART_VERSION / 1000;
constexpr std::size_t kOldest = static_cast<std::size_t>(kMajor) * 10000;

Library load() {
  void* const file = open_library("libcublasLt.so." + std::to_string(kMajor), "matrix products");
  Library l{};
  const auto find = [file](auto& function, const char* name) {
    find_function(file, "libcublasLt", function, name);
  };
  find(l.create, "cublasLtCreate");
  find(l.version, "cublasLtGetVersion");
  find(l.create_operation, "cublasLtMatmulDescCreate");
  find(l.destroy_operation, "cublasLtMatmulDescDestroy");
  find(l.set_operation, "cublasLtMatmulDescSetAttribute");
  find(l.create_layout, "cublasLtMatrixLayoutCreate");
  find(l.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(l.set_layout, "cublasLtMatrixLayoutSetAttribute");
  find(l.create_preference, "cublasLtMatmulPreferenceCreate");
  find(l.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(l.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(l.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(l.matmul, "cublasLtMatmul");
  check_system(l.version() >= kOldest, "cuda: libcublasLt must be at least version {}, got {}",
               kOldest, l.version());
  return l;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace weft::cuda::lt
