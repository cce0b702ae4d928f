#include "weft/core/cpu/elementwise_loop.h"

#include <algorithm>

#include "weft/core/cpu/blocks.h"
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
  const std::int64_t inner = axes.shape[last];
  PerOperand<N> steps;
  bool strided = false;
  for (int k = 0; k < N; ++k) {
    steps[k] = axes.steps[k][last];
    strided = strided || (steps[k] != 0 && steps[k] != 1);
  }
  // Long rows are cut, so that threads share them. With a stride each element may be a cache line
  // of its own: then pieces are short, and the same piece of the next row finds its lines cached.
  const std::int64_t longest = strided ? kRunBlock : std::int64_t{1} << 14;
  // Pieces are an axis around the rows.
  Shape outer;
  std::array<Shape, N> outer_steps;
  const int piece = std::max(last - 1, 0);
  for (int i = 0; i <= last; ++i) {
    if (i == piece) {
      outer.push_back((inner + longest - 1) / longest);
      for (int k = 0; k < N; ++k) outer_steps[k].push_back(longest * steps[k]);
    }
    if (i == last) break;
    outer.push_back(axes.shape[i]);
    for (int k = 0; k < N; ++k) outer_steps[k].push_back(axes.steps[k][i]);
  }
  parallel_for(total / inner * outer[piece], work * std::min(inner, longest),
               [&](std::int64_t begin, std::int64_t end) {
                 Shape index = Shape::filled(last + 1, 0);
                 PerOperand<N> at{};
                 std::int64_t rest = begin;
                 for (int i = last; i >= 0; --i) {
                   index[i] = rest % outer[i];
                   rest /= outer[i];
                   for (int k = 0; k < N; ++k) at[k] += index[i] * outer_steps[k][i];
                 }
                 for (std::int64_t item = begin; item < end; ++item) {
                   run(context, at, steps, std::min(longest, inner - index[piece] * longest));
                   for (int i = last; i >= 0; --i) {  // advance like an odometer
                     for (int k = 0; k < N; ++k) at[k] += outer_steps[k][i];
                     if (++index[i] < outer[i]) break;
                     for (int k = 0; k < N; ++k) at[k] -= index[i] * outer_steps[k][i];
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
