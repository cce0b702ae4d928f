#include "weft/core/cpu/elementwise_loop.h"

#include <algorithm>

#include "weft/core/cpu/merged_axes.h"

namespace weft::cpu {

template <int N>
void walk_runs(const std::array<const Tensor*, N>& tensors, std::int64_t work, RunFn<N> run,
               const void* context) {
  const std::int64_t total = tensors[0]->numel();
  if (total == 0) return;
  bool dense = true;
  for (const Tensor* t : tensors) dense = dense && t->is_contiguous();
  if (dense) {
    PerOperand<N> ones;
    ones.fill(1);
    parallel_for(total, work, [&](std::int64_t begin, std::int64_t end) {
      PerOperand<N> at;
      at.fill(begin);
      run(context, at, ones, end - begin);
    });
    return;
  }
  const MergedAxes<N> axes(tensors);
  const int last = axes.shape.size() - 1;
  constexpr std::int64_t kLongestRun = 1 << 14;  // splits a long row among threads
  const std::int64_t inner = axes.shape[last], pieces = (inner + kLongestRun - 1) / kLongestRun;
  PerOperand<N> steps;
  for (int k = 0; k < N; ++k) steps[k] = axes.steps[k][last];

  parallel_for(total / inner * pieces, work * std::min(inner, kLongestRun),
               [&](std::int64_t begin, std::int64_t end) {
                 Shape index = Shape::filled(last, 0);
                 PerOperand<N> row{};
                 std::int64_t rest = begin / pieces, piece = begin % pieces;
                 for (int i = last - 1; i >= 0; --i) {
                   index[i] = rest % axes.shape[i];
                   rest /= axes.shape[i];
                   for (int k = 0; k < N; ++k) row[k] += index[i] * axes.steps[k][i];
                 }
                 for (std::int64_t item = begin; item < end; ++item) {
                   PerOperand<N> at = row;
                   const std::int64_t start = piece * kLongestRun;
                   for (int k = 0; k < N; ++k) at[k] += start * steps[k];
                   run(context, at, steps, std::min(kLongestRun, inner - start));
                   if (++piece < pieces) continue;
                   piece = 0;
                   for (int i = last - 1; i >= 0; --i) {  // advance to the next row, like an
                                                          // odometer
                     for (int k = 0; k < N; ++k) row[k] += axes.steps[k][i];
                     if (++index[i] < axes.shape[i]) break;
                     for (int k = 0; k < N; ++k) row[k] -= index[i] * axes.steps[k][i];
                     index[i] = 0;
                   }
                 }
               });
}

template void walk_runs<1>(const std::array<const Tensor*, 1>&, std::int64_t, RunFn<1>,
                           const void*);
template void walk_runs<2>(const std::array<const Tensor*, 2>&, std::int64_t, RunFn<2>,
                           const void*);
template void walk_runs<3>(const std::array<const Tensor*, 3>&, std::int64_t, RunFn<3>,
                           const void*);
template void walk_runs<4>(const std::array<const Tensor*, 4>&, std::int64_t, RunFn<4>,
                           const void*);

}  // namespace weft::cpu
