#include "weft/core/kernels/token_permute.h"

#include <algorithm>

#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kBlock = 256;  // columns summed at a time, which stay in the L1 cache

// y = the sum of the given rows of x, in order.
template <class T>
void sum_rows(const T* x, const std::int64_t* rows, std::int64_t k, std::int64_t width, T* y) {
  using C = Compute<T>;
  for (std::int64_t at = 0; at < width; at += kBlock) {
    const std::int64_t n = std::min(kBlock, width - at);
    C sum[kBlock] = {};
    for (std::int64_t j = 0; j < k; ++j) {
      if (rows[j] < 0) continue;
      const T* row = x + rows[j] * width + at;
      for (std::int64_t i = 0; i < n; ++i) sum[i] += static_cast<C>(row[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) y[at + i] = T(sum[i]);
  }
}

}  // namespace

void sort_by_expert(const Tensor& experts, const RowLayout& layout, const Tensor&,
                    const Tensor& row_of, const Tensor& slot_of, const Tensor& rows) {
  const std::int64_t slots = experts.numel(), count = layout.experts;
  std::int64_t *n = rows.data<std::int64_t>(), *row = row_of.data<std::int64_t>();
  std::int64_t* slot = slot_of.data<std::int64_t>();
  std::fill_n(n, count, 0);
  std::fill_n(slot, slot_of.numel(), -1);
  dispatch_index(experts.dtype(), [&]<class I>() {
    const I* id = experts.data<I>();
    const auto is_expert = [&](std::int64_t i) { return id[i] >= 0 && id[i] < count; };
    // Computes the position of each slot within its expert, then adds the start of that expert.
    for (std::int64_t i = 0; i < slots; ++i) {
      row[i] = is_expert(i) ? n[id[i]]++ : -1;
      if (layout.capacity && row[i] >= layout.capacity) row[i] = -1;
    }
    std::int64_t first = 0;
    for (std::int64_t e = 0; e < count; ++e) {
      const std::int64_t own = padded_rows(n[e], layout);
      n[e] = first;
      first += own;
    }
    for (std::int64_t i = 0; i < slots; ++i) {
      if (row[i] < 0) continue;
      row[i] += n[id[i]];
      slot[row[i]] = i;
    }
    for (std::int64_t e = 0; e < count; ++e) n[e] = (e + 1 < count ? n[e + 1] : first) - n[e];
  });
}

void place_chunks(const Tensor& chunks, const Tensor& row_of, const Tensor& slot_of) {
  const std::int64_t* chunk = chunks.data<std::int64_t>();
  std::int64_t *row = row_of.data<std::int64_t>(), *slot = slot_of.data<std::int64_t>();
  const std::int64_t n = chunks.dim(0);
  parallel_for(n, 1 + 2 * slot_of.numel() / std::max<std::int64_t>(n, 1),
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t c = begin; c < end; ++c) {
                   const std::int64_t from = chunk[3 * c], to = chunk[3 * c + 1];
                   for (std::int64_t i = 0; i < chunk[3 * c + 2]; ++i) {
                     slot[to + i] = from < 0 ? -1 : from + i;
                     if (from >= 0) row[from + i] = to + i;
                   }
                 }
               });
}

void permute_tokens(const Tensor& x, const Tensor& slot_of, std::int64_t k, const Tensor& y) {
  const std::int64_t width = y.dim(1);
  const std::int64_t* slot = slot_of.data<std::int64_t>();
  const auto move = [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(y.dim(0), 2 * width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        if (slot[i] < 0)
          std::fill_n(to + i * width, width, T{});
        else
          std::copy_n(from + slot[i] / k * width, width, to + i * width);
    });
  };
  y.dtype() == DType::e4m3 ? move.operator()<e4m3>() : dispatch_floating(y.dtype(), move);
}

void combine_tokens(const Tensor& x, const Tensor& row_of, const Tensor& y) {
  const std::int64_t width = y.dim(1), k = row_of.dim(1);
  const std::int64_t* rows = row_of.data<std::int64_t>();
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(y.dim(0), (k + 1) * width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        sum_rows(from, rows + t * k, k, width, to + t * width);
    });
  });
}

}  // namespace weft::cpu
