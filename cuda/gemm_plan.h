#pragma once
#include <cstdint>

#include "weft/core/kernels/gemm.h"
#include "weft/cuda/lt.h"

namespace weft::cuda {

/// One product in cuBLASLt's terms: matrices stored by column, D (rows, cols) = A B (+ D), over a
/// batch with fixed steps. Equal descriptions share a plan. No padding, since plans are compared as
/// bytes.
struct Product {
  std::int64_t rows = 0, cols = 0, inner = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0, ld_aux = 0;
  std::int64_t batch = 1, step_a = 0, step_b = 0, step_d = 0;
  std::int32_t trans_a = 0, trans_b = 0, accumulate = 0, device = 0;
  lt::DataType type = lt::kF32, result_type = lt::kF32;
  lt::ComputeType compute = lt::kCompute32;
  lt::Epilogue epilogue = lt::Epilogue::none;
  std::int32_t align_a = 0, align_b = 0, align_d = 0;  ///< bytes
  std::int32_t align_bias = 0, align_aux = 0, spare = 0;
};

/// Weft stores matrices by row, cuBLASLt by column: the library reads the transpose, and out^T =
/// op(b)^T op(a)^T. So b comes first, and the transposition flags are unchanged.
Product by_column(const GemmShape& shape, const Tensor& a, const Tensor& out);

struct ProductData {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;  ///< or the output for the bias gradient
  const void* aux = nullptr;
};

/// Runs the product on the current stream. The algorithm is the first of cuBLASLt's heuristic,
/// queried once per description.
/// Throws Error (Fault::system) when the library refuses.
void run_product(const Product& p, const ProductData& data);

/// The same, but returns false, without running anything, when the library has no algorithm. The
/// supported epilogues depend on its version, the GPU, dtypes and layouts.
bool try_product(Product p, const ProductData& data);

/// Alignment of a pointer in bytes, capped at 256, the alignment that cuBLASLt assumes.
std::int32_t alignment_of(const void* p);

}  // namespace weft::cuda
