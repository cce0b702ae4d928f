#pragma once
#include "weft/core/kernel_timer.h"
#include "weft/core/kernels/rounding.h"
#include "weft/core/tensor.h"

namespace weft {

// One call updates many tensors, since a model has hundreds of small ones. All of them are cut into
// chunks of this many elements, so that threads share the work evenly and results do not depend on
// the number of threads.
inline constexpr std::int64_t kOptimizerChunk = 65536;
/// Smaller on a GPU, which has more thread blocks to fill: one block per chunk.
inline constexpr std::int64_t kOptimizerGpuChunk = 16384;

/// The data of one parameter that every optimizer kernel needs. Pointers are to contiguous memory
/// on one device. lr_scale and weight_decay differ between parameter groups.
struct ParamSlot {
  void* param = nullptr;       ///< f32, f64, bf16, f16
  const void* grad = nullptr;  ///< f32, f64, bf16, f16; f64 if and only if param is f64
  void* half_copy = nullptr;   ///< receives the new f32 param rounded to copy_dtype, if not null
  /// Null, or 16 bits for each element of a bf16 param. Both together hold the f32 number that is
  /// updated (core/kernels/remainder.h), without rounding.
  void* remainder = nullptr;
  /// On a GPU: null, or a double in device memory; where it is 0, the parameter is skipped.
  const double* reached = nullptr;
  std::int64_t n = 0;
  DType param_dtype = DType::f32, grad_dtype = DType::f32;
  DType copy_dtype = DType::bf16;  ///< or f16
  /// bf16 and e4m3 states, and a bf16 param that is its own master weight, are rounded
  /// stochastically: by bits of the element's index in the whole parameter.
  bool stochastic = false;
  std::uint64_t stream = 0;           ///< of the parameter's name
  std::int64_t first = 0;             ///< index in the shard of the slot's first element
  const ShardPlace* place = nullptr;  ///< on the slots' device
  double lr_scale = 1, weight_decay = 0;

  /// Bytes of the parameter, its copies and its gradient that a step reads and writes.
  double moved_bytes() const {
    return static_cast<double>(n) *
           static_cast<double>(2 * size_of(param_dtype) + size_of(grad_dtype) +
                               (remainder ? 4 : 0) + (half_copy ? 2 : 0));
  }
};

/// A state is f32, bf16, f16 with one f32 scale per tensor, or e4m3 with an exponent for each
/// kScaleBlock elements. f16: value = stored * scale, where each step sets scale = absmax / 32752
/// (0 for an all-zero state). A v above 0 stays above 0 in f16 and e4m3, unless the scale is 0:
/// divided by the root of a v that has become 0, the smallest m would move its parameter by m /
/// eps. The states of an f64 param are f64.
struct AdamSlot : ParamSlot {
  void* m = nullptr;
  void* v = nullptr;
  void* m_scale = nullptr;  ///< f16: one f32; e4m3: u8 exponents. Starts at 0
  void* v_scale = nullptr;
  DType m_dtype = DType::f32, v_dtype = DType::f32;

  double moved_bytes() const {
    return ParamSlot::moved_bytes() +
           2.0 * static_cast<double>(n) * static_cast<double>(size_of(m_dtype) + size_of(v_dtype));
  }
};

/// The numbers that change between steps.
struct StepNumbers {
  double lr = 0;                                      ///< multiplied by a slot's lr_scale
  double bias_correction1 = 1, bias_correction2 = 1;  ///< Adam: 1 - beta^t, or 1 for no correction
  std::uint64_t step = 0;                             ///< keys stochastic rounding
};

/// f32 params and states compute in f32 with every operation rounded (no fma contraction):
///   g *= grad_scale;                  L2 (not decoupled): g += weight_decay * p
///   m = beta1 m + (1 - beta1) g;      v = beta2 v + (1 - beta2) g g
///   u = (m / bc1) / (sqrt(v / bc2) + eps);   decoupled: u += weight_decay * p
///   p -= lr u
struct AdamStep {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decoupled = true;   ///< AdamW; false: Adam with L2
  std::uint64_t seed = 0;  ///< of stochastic rounding
  StepNumbers now;
  /// If not null, a GPU reads them from this address, so that a captured step uses new numbers at
  /// each replay.
  const StepNumbers* on_device = nullptr;
  /// One double on the slots' device (see clip_scale); null means 1. When it is not finite, params
  /// and states are not changed.
  const double* grad_scale = nullptr;
};

/// A gradient whose norm is computed.
struct GradSlot {
  const void* grad = nullptr;  ///< f32, f64, bf16, f16
  std::int64_t n = 0;
  DType grad_dtype = DType::f32;

  double moved_bytes() const {
    return static_cast<double>(n) * static_cast<double>(size_of(grad_dtype));
  }
};

/// momentum is f32 (f64 for an f64 param) and starts at 0; null when the step has no momentum.
struct SgdSlot : ParamSlot {
  void* momentum = nullptr;

  double moved_bytes() const {
    return ParamSlot::moved_bytes() +
           (momentum ? 2.0 * static_cast<double>(n) * static_cast<double>(size_of(param_dtype))
                     : 0);
  }
};

///   g = g * grad_scale + weight_decay * p;   buf = momentum buf + g
///   p -= lr (nesterov ? g + momentum buf : buf)        (without momentum: p -= lr g)
struct SgdStep {
  double momentum = 0;
  bool nesterov = false;
  StepNumbers now;  ///< these four as in AdamStep
  const StepNumbers* on_device = nullptr;
  const double* grad_scale = nullptr;
  std::uint64_t seed = 0;
};

/// Adds the bytes of a step to the profile of its kernel.
template <class Slot>
void count_slots(const Slot* slots, std::int64_t count) {
  if (!detail::profiling()) return;
  for (std::int64_t i = 0; i < count; ++i) detail::add_kernel_work(0, slots[i].moved_bytes());
}

/// Number of chunks of all tensors: ceil(n / chunk) each.
template <class Slot>
std::int64_t optimizer_chunks(const Slot* slots, std::int64_t count, bool gpu = false) {
  const std::int64_t size = gpu ? kOptimizerGpuChunk : kOptimizerChunk;
  std::int64_t chunks = 0;
  for (std::int64_t i = 0; i < count; ++i) chunks += (slots[i].n + size - 1) / size;
  return chunks;
}

/// A slot in the table in GPU memory.
template <class Slot>
struct PlacedSlot {
  Slot slot;
  std::int64_t first_chunk;  ///< number of its first chunk over all slots
  bool packs;                ///< all of its tensors allow aligned accesses of four elements
};
/// Bytes before a GPU's scratch that hold the slot table, copied from host memory in stream order.
/// 0 on the CPU.
template <class Slot>
constexpr std::int64_t slot_table_bytes(std::int64_t count, bool gpu) {
  return gpu ? count * static_cast<std::int64_t>(sizeof(PlacedSlot<Slot>)) : 0;
}

// The first argument tells dispatch() the device. On a GPU the scratch sizes below grow by
// slot_table_bytes() at the front.

/// scratch (f32, 2 * chunks) is written only when a state is f16.
using AdamKernel = void(const Tensor& scratch, const AdamSlot* slots, std::int64_t count,
                        const AdamStep& step);
/// scratch may be any tensor on the CPU. On a GPU it is u8 and holds only the table.
using SgdKernel = void(const Tensor& scratch, const SgdSlot* slots, std::int64_t count,
                       const SgdStep& step);
/// Sums of squares of the gradients, in double: sums (f64, count + 1) receives one per slot and the
/// total last. An entry is NaN or infinite when its gradient contains such a value. partials is
/// f64, (chunks).
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
