#pragma once
#include <cstddef>
#include <cstdint>

/// The part of cuBLASLt's C interface that Weft uses. Declared here and opened at first use:
/// linking a library of half a gigabyte would cost a quarter of a second and 200 MB at every
/// program start. cuda/lt_library.cpp compares the values with NVIDIA's header.
namespace weft::cuda::lt {

using Handle = struct HandleTag*;
using Operation = struct OperationTag*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutTag*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceTag*;  // cublasLtMatmulPreference_t
using Status = int;                        // 0 is success

enum DataType : int { kF32 = 0, kF64 = 1, kF16 = 2, kBf16 = 14, kE4m3 = 28, kE5m2 = 29 };
enum ComputeType : int { kCompute32 = 68, kCompute64 = 70, kComputeTf32 = 77 };
enum Transpose : std::int32_t { kPlain = 0, kTransposed = 1 };

enum OperationAttribute : int {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kAuxPointer = 11,
  kAuxLd = 12,
  kScaleA = 17,  ///< device pointers to one f32 each, for FP8 operands
  kScaleB = 18
};
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int {
  kMaxWorkspace = 1,
  kReductionSchemes = 3,
  kAlignmentA = 5,
  kAlignmentB = 6,
  kAlignmentC = 7,
  kAlignmentD = 8
};
/// Split sums that are combined in workspace memory, in a fixed order; excludes those in place,
/// which use atomics.
constexpr std::uint32_t kOrderedReductions = 2 | 4;

/// The operation on a result before it is stored. "aux": the value before GELU (tanh form) is
/// stored too, or read for the gradient. "bias gradient": the sum over the rows of the result.
enum class Epilogue : std::uint32_t {
  none = 1,
  bias = 4,
  gelu_bias = 32 | 4,
  gelu_aux_bias = 32 | 128 | 4,
  dgelu = 64 | 128,
  dgelu_bias_gradient = 64 | 128 | 16,
  bias_gradient_b = 512  ///< the sum of op(B) over the inner axis, one number per column of D
};

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace;
  Status status;
  float waves;
  int reserved[4];
};

/// The functions of the library, with the types of cublasLt.h.
struct Library {
  Status (*create)(Handle*);
  std::size_t (*version)();
  Status (*create_operation)(Operation*, int compute_type, int scale_type);
  Status (*destroy_operation)(Operation);
  Status (*set_operation)(Operation, int attribute, const void* value, std::size_t size);
  Status (*create_layout)(Layout*, int type, std::uint64_t rows, std::uint64_t cols,
                          std::int64_t ld);
  Status (*destroy_layout)(Layout);
  Status (*set_layout)(Layout, int attribute, const void* value, std::size_t size);
  Status (*create_preference)(Preference*);
  Status (*destroy_preference)(Preference);
  Status (*set_preference)(Preference, int attribute, const void* value, std::size_t size);
  Status (*heuristic)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                      int wanted, Heuristic* results, int* found);
  Status (*matmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b,
                   Layout, const void* beta, const void* c, Layout, void* d, Layout,
                   const Algorithm*, void* workspace, std::size_t workspace_bytes, void* stream);
};

/// The opened library.
/// Throws Error (Fault::system) naming the searched locations when it is missing or too old.
const Library& library();

}  // namespace weft::cuda::lt
