#include "weft/core/kernels/sort.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// a before b in ascending order; NaN comes last.
template <class T>
bool less(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return a < b;
  else
    return a < b || (std::isnan(b) && !std::isnan(a));
}

// Merges the sorted runs [left, middle) and [middle, right) of `from` into `to`. The left run wins
// ties, which makes the sort stable.
template <class Before>
void merge(const std::int64_t* from, std::int64_t left, std::int64_t middle, std::int64_t right,
           std::int64_t* to, Before before) {
  std::int64_t a = left, b = middle;
  for (std::int64_t i = left; i < right; ++i)
    to[i] = b == right || (a < middle && !before(from[b], from[a])) ? from[a++] : from[b++];
}

// Bottom-up merge sort of the positions 0 .. n-1, from runs sorted by insertion.
template <class Before>
void merge_sort(std::int64_t n, std::int64_t* order, std::int64_t* scratch, Before before) {
  constexpr std::int64_t kRun = 16;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t at = i;
    for (; at % kRun != 0 && before(i, order[at - 1]); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  std::int64_t *from = order, *to = scratch;
  for (std::int64_t run = kRun; run < n; run *= 2) {
    for (std::int64_t left = 0; left < n; left += 2 * run)
      merge(from, left, std::min(left + run, n), std::min(left + 2 * run, n), to, before);
    std::swap(from, to);
  }
  if (from != order) std::copy_n(from, n, order);
}

// Keeps the k first elements by `before` in a heap whose root is the last of them, then sorts it.
template <class Before>
void select_first(std::int64_t n, std::int64_t k, std::int64_t* heap, Before before) {
  for (std::int64_t i = 0; i < k; ++i) heap[i] = i;
  std::make_heap(heap, heap + k, before);
  for (std::int64_t i = k; i < n; ++i) {
    if (!before(i, heap[0])) continue;
    std::pop_heap(heap, heap + k, before);
    heap[k - 1] = i;
    std::push_heap(heap, heap + k, before);
  }
  std::sort_heap(heap, heap + k, before);
}

}  // namespace

void sort(const Tensor& x, bool descending, const Tensor& scratch, const Tensor& indices) {
  if (x.numel() == 0) return;
  const std::int64_t n = x.dim(-1), rows = x.numel() / n;
  const auto rounds = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
  std::int64_t* out = indices.data<std::int64_t>();
  std::int64_t* spare = scratch.data<std::int64_t>();
  dispatch_numeric(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    parallel_for(rows, 4 * n * rounds, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* v = px + r * n;
        const auto up = [v](std::int64_t a, std::int64_t b) { return less(v[a], v[b]); };
        const auto down = [v](std::int64_t a, std::int64_t b) { return less(v[b], v[a]); };
        if (descending)
          merge_sort(n, out + r * n, spare + r * n, down);
        else
          merge_sort(n, out + r * n, spare + r * n, up);
      }
    });
  });
}

void topk(const Tensor& x, const Tensor& indices) {
  if (x.numel() == 0) return;
  const std::int64_t n = x.dim(-1), rows = x.numel() / n, k = indices.dim(-1);
  std::int64_t* out = indices.data<std::int64_t>();
  dispatch_numeric(x.dtype(), [&]<class T>() {
    const T* px = x.data<T>();
    parallel_for(rows, 4 * n, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* v = px + r * n;
        select_first(n, k, out + r * k, [v](std::int64_t a, std::int64_t b) {
          return less(v[b], v[a]) || (!less(v[a], v[b]) && a < b);
        });
      }
    });
  });
}

}  // namespace weft::cpu
