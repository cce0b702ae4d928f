#pragma once
#include <array>
#include <cstdint>
#include <type_traits>

#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

namespace weft::cpu {

/// One number per operand of a loop: element offsets, or steps along an axis.
template <int N>
using PerOperand = std::array<std::int64_t, N>;

/// Receives one run: element offsets and steps of the operands, and its length.
template <int N>
using RunFn = void (*)(void* context, const PerOperand<N>& offsets, const PerOperand<N>& steps,
                       std::int64_t n);

/// Walks tensors of one shape and any strides. Compiled once per number of operands, not per op and
/// dtype.
template <int N>
void walk_runs(const std::array<const Tensor*, N>& tensors, std::int64_t work, RunFn<N> run,
               void* context);

/// Calls f(offsets, steps, n) for runs of n elements that cover tensors of one shape and any
/// strides. The run of operand k starts at element offsets[k] and advances by steps[k]. `work` is
/// the cost of one element for parallel_for.
template <int N, class F>
void each_run(const std::array<const Tensor*, N>& tensors, std::int64_t work, F&& f) {
  using Fn = std::remove_reference_t<F>;
  walk_runs<N>(
      tensors, work,
      [](void* context, const PerOperand<N>& at, const PerOperand<N>& step, std::int64_t n) {
        (*static_cast<Fn*>(context))(at, step, n);
      },
      &f);
}

}  // namespace weft::cpu
