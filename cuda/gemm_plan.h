#pragma once
#include <cstdint>

#include "weft/core/kernels/gemm.h"
#include "weft/cuda/lt.h"

namespace weft::cuda {

/// One product as cuBLASLt sees it: matrices stored by column, D (rows, cols) = A B (+ D), over a
/// batch with fixed steps. Equal descriptions share a plan: no padding, it is compared as bytes.
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

/// Our matrices are stored by row, cuBLASLt's by column: what it reads there is the transpose, and
/// out^T = op(b)^T op(a)^T. So b comes first, and the transposition flags stay as they are.
Product by_column(const GemmShape& shape, const Tensor& a, const Tensor& out);

struct ProductData {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;  ///< or where the bias gradient goes
  const void* aux = nullptr;
};

/// Puts the product into the current stream. The algorithm is the first of cuBLASLt's heuristic,
/// asked once for each description.
/// Throws Error (Fault::system) when the library refuses.
void run_product(const Product& p, const ProductData& data);

/// The same, but false, with nothing done, when the library has no algorithm for it: what epilogues
/// it knows depends on its version, the GPU, dtypes and layouts.
bool try_product(Product p, const ProductData& data);

/// What a pointer is aligned to, in bytes, up to the 256 that cuBLASLt takes for granted.
std::int32_t alignment_of(const void* p);

}  // namespace weft::cuda
