#pragma once
#include <array>
#include <cstdint>

#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

namespace weft::cpu {

/// One number per operand of a loop: element offsets, or steps along an axis.
template <int N>
using PerOperand = std::array<std::int64_t, N>;

/// Receives one run: element offsets and steps of the operands, and its length.
template <int N>
using RunFn = void (*)(const void* context, const PerOperand<N>& offsets,
                       const PerOperand<N>& steps, std::int64_t n);

/// Walks tensors of one shape and any strides. Compiled once per number of operands, not per op and
/// dtype.
template <int N>
void walk_runs(const std::array<const Tensor*, N>& tensors, std::int64_t work, RunFn<N> run,
               const void* context);

template <int N, class F>
void call_run(const void* f, const PerOperand<N>& offsets, const PerOperand<N>& steps,
              std::int64_t n) {
  (*static_cast<const F*>(f))(offsets, steps, n);
}

/// Calls f(offsets, steps, n) for runs of n elements that cover tensors of one shape and any
/// strides. The run of operand k starts at element offsets[k] and advances by steps[k]. `work` is
/// the cost of one element for parallel_for.
template <int N, class F>
void each_run(const std::array<const Tensor*, N>& tensors, std::int64_t work, const F& f) {
  walk_runs<N>(tensors, work, &call_run<N, F>, &f);
}

}  // namespace weft::cpu
