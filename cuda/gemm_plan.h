#pragma once
#include <cstdint>
#include <optional>

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
  std::int32_t align_bias = 0, align_aux = 0;
  lt::DataType type_b = lt::kF32;  ///< that of A, but for two formats of FP8
};

/// Weft stores matrices by row, cuBLASLt by column: the library reads the transpose, and out^T =
/// op(b)^T op(a)^T. So b comes first, and the transposition flags are unchanged.
Product by_column(const GemmShape& shape, const Tensor& a, const Tensor& out);

/// How to compute a product, where it was measured.
struct GemmChoice {
  static constexpr int kParts = -1;
  int algorithm = 0;  ///< its place in the heuristic's list; kParts: not in one call
  double ms = 0;
};

struct ProductData {
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;  ///< or the output for the bias gradient
  const void* aux = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  ///< of FP8 operands, on the device
};

/// Runs the product on the current stream. The algorithm is the first of cuBLASLt's heuristic,
/// queried once per description, unless a file of measured choices names another
/// (cuda/gemm_choices.h). A launch takes no lock that another device uses.
/// Throws Error (Fault::system) when the library refuses.
void run_product(const Product& p, const ProductData& data);

/// The same, but returns false, without running anything, when the library has no algorithm, when
/// it refuses an epilogue only at the launch (it is not asked again), or when the choice is to run
/// the parts. The supported epilogues depend on its version, the GPU, dtypes and layouts.
bool try_product(Product p, const ProductData& data);

/// Whether an epilogue may use the bias and the second result: the heuristic cannot be told how
/// they are aligned, and may choose a kernel that fails below 16 bytes. `p`: aligned().
bool fits_epilogue(const Product& p, const ProductData& data);

/// Times each algorithm that the heuristic offers, on the current stream, and selects the fastest.
/// Waits for the GPU and writes D.
/// Returns nothing when the library has no algorithm, or when the product has run before: its
/// algorithm must not change within a process.
std::optional<GemmChoice> measure_product(Product p, const ProductData& data);
/// Whether the product has not run yet, on its device. `p` must be aligned().
bool is_new_product(const Product& p);
/// From now on try_product() returns false for it.
void forbid_product(Product p, const ProductData& data);
/// Destroys all plans, so that the choices are made again.
void forget_plans();

/// The product with the alignments of these pointers, which its plan depends on.
Product aligned(Product p, const ProductData& data);

/// Alignment of a pointer in bytes, capped at 256, the alignment that cuBLASLt assumes.
std::int32_t alignment_of(const void* p);

}  // namespace weft::cuda
