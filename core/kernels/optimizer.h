#pragma once
#include "weft/core/tensor.h"

namespace weft {

// One call updates many tensors: a model has hundreds of small ones. All of them are cut into
// chunks of this many elements, so that threads share the work evenly and results do not depend on
// how many threads there are.
inline constexpr std::int64_t kOptimizerChunk = 65536;
/// A GPU has more to share: a chunk is one block of threads.
inline constexpr std::int64_t kOptimizerGpuChunk = 16384;

/// What every optimizer kernel needs to know about one parameter. Pointers are to contiguous memory
/// on one device. lr_scale and weight_decay differ between parameter groups.
struct ParamSlot {
  void* param = nullptr;       ///< f32, f64, bf16
  const void* grad = nullptr;  ///< f32, f64, bf16; f64 exactly when param is
  void* bf16_copy = nullptr;   ///< receives the new f32 param rounded to bf16; null: none
  /// Null, or 16 bits for each element of a bf16 param: what is updated then is the f32 number that
  /// both make together (core/kernels/remainder.h), and neither is rounded.
  void* remainder = nullptr;
  /// On a GPU: null, or one double there; where it is 0 nothing of this parameter is touched.
  const double* reached = nullptr;
  std::int64_t n = 0;
  DType param_dtype = DType::f32, grad_dtype = DType::f32;
  double lr_scale = 1, weight_decay = 0;
};

/// A state is f32, bf16 (rounded to nearest even), or f16 with one f32 scale a tensor:
/// value = stored * scale, scale = absmax / 32752 anew in each step (0 for an all-zero state).
/// The states of an f64 param are f64.
struct AdamSlot : ParamSlot {
  void* m = nullptr;
  void* v = nullptr;
  float* m_scale = nullptr;  ///< f16 only; starts at 0
  float* v_scale = nullptr;
  DType m_dtype = DType::f32, v_dtype = DType::f32;
};

/// What differs from one step to the next.
struct StepNumbers {
  double lr = 0;                                      ///< times a slot's lr_scale
  double bias_correction1 = 1, bias_correction2 = 1;  ///< Adam: 1 - beta^t, or 1 for no correction
};

/// f32 params and states compute in f32, each operation rounded (nothing is contracted to an fma):
///   g *= grad_scale;                  L2 (not decoupled): g += weight_decay * p
///   m = beta1 m + (1 - beta1) g;      v = beta2 v + (1 - beta2) g g
///   u = (m / bc1) / (sqrt(v / bc2) + eps);   decoupled: u += weight_decay * p
///   p -= lr u
struct AdamStep {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decoupled = true;  ///< AdamW; false: Adam with L2
  StepNumbers now;
  /// Where a GPU finds them instead, null for none: a captured step reads new ones each time.
  const StepNumbers* on_device = nullptr;
  /// One double on the slots' device (see clip_scale); null means 1. When it is not finite, params
  /// and states stay untouched.
  const double* grad_scale = nullptr;
};

/// A gradient whose norm is wanted.
struct GradSlot {
  const void* grad = nullptr;  ///< f32, f64, bf16
  std::int64_t n = 0;
  DType grad_dtype = DType::f32;
};

/// momentum is f32 (f64 for an f64 param), starts at 0; null when the step has no momentum.
struct SgdSlot : ParamSlot {
  void* momentum = nullptr;
};

///   g = g * grad_scale + weight_decay * p;   buf = momentum buf + g
///   p -= lr (nesterov ? g + momentum buf : buf)        (without momentum: p -= lr g)
struct SgdStep {
  double momentum = 0;
  bool nesterov = false;
  StepNumbers now;  ///< these three as in AdamStep
  const StepNumbers* on_device = nullptr;
  const double* grad_scale = nullptr;
};

/// How many chunks the tensors make: ceil(n / chunk) each.
template <class Slot>
std::int64_t optimizer_chunks(const Slot* slots, std::int64_t count, bool gpu = false) {
  const std::int64_t size = gpu ? kOptimizerGpuChunk : kOptimizerChunk;
  std::int64_t chunks = 0;
  for (std::int64_t i = 0; i < count; ++i) chunks += (slots[i].n + size - 1) / size;
  return chunks;
}

/// A slot as a GPU finds it, in device memory.
template <class Slot>
struct PlacedSlot {
  Slot slot;
  std::int64_t first_chunk;  ///< number of its first chunk over all slots
  bool packs;                ///< may four elements be accessed at once, in all of its tensors?
};
/// Bytes in front of a GPU's scratch: the slots, copied there in the order of the stream, since
/// they lie in host memory. 0 on the CPU.
template <class Slot>
constexpr std::int64_t slot_table_bytes(std::int64_t count, bool gpu) {
  return gpu ? count * static_cast<std::int64_t>(sizeof(PlacedSlot<Slot>)) : 0;
}

// The first argument tells dispatch() the device. In front of what is said here a GPU's has
// slot_table_bytes() more.

/// scratch (f32, 2 * chunks) is written only when a state is f16.
using AdamKernel = void(const Tensor& scratch, const AdamSlot* slots, std::int64_t count,
                        const AdamStep& step);
/// scratch may be any tensor on the CPU; of u8 on a GPU, which needs no more than the table.
using SgdKernel = void(const Tensor& scratch, const SgdSlot* slots, std::int64_t count,
                       const SgdStep& step);
/// Sums of squares of the gradients, in double: sums (f64, count + 1) gets one for each slot and,
/// last, the total. An entry is NaN or infinite when the gradient has a value that is.
/// partials is f64, (chunks).
using GradSquaresKernel = void(const Tensor& partials, const GradSlot* slots, std::int64_t count,
                               const Tensor& sums);
/// scale (f64, one element) = min(1, max_norm / (norm + 1e-6)) for norm = sqrt(last of sums), NaN
/// when the norm is not finite. An infinite max_norm never clips.
using ClipScaleKernel = void(const Tensor& sums, double max_norm, const Tensor& scale);

namespace cpu {
AdamKernel adam_step;
SgdKernel sgd_step;
GradSquaresKernel grad_squares;
ClipScaleKernel clip_scale;
}  // namespace cpu
namespace cuda {
AdamKernel adam_step;
SgdKernel sgd_step;
GradSquaresKernel grad_squares;
ClipScaleKernel clip_scale;
}  // namespace cuda

}  // namespace weft
