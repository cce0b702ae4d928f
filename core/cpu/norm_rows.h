#pragma once
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/norm_chunks.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

inline constexpr std::int64_t kNormWork = 4;

/// Calls row(r) for every row.
template <class F>
void norm_forward(std::int64_t rows, std::int64_t C, F row) {
  parallel_for(rows, kNormWork * C, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) row(r);
  });
}

/// Calls row(r, dweight, dbias) for every row, where the two are the partial sums of its chunk (or
/// null); then adds the chunks up in order.
template <class T, class F>
void norm_backward(std::int64_t rows, std::int64_t C, const Tensor& partials, const Tensor& dweight,
                   const Tensor& dbias, F row) {
  using R = Real<T>;
  const std::int64_t chunks = norm_chunks(rows);
  R* const for_weight = dweight ? partials.data<R>() : nullptr;
  R* const for_bias = dbias ? partials.data<R>() + (dweight ? chunks * C : 0) : nullptr;
  parallel_for(chunks, 2 * kNormWork * C * (rows / chunks + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t k = begin; k < end; ++k) {
                   R *dw = row_or_null(for_weight, k * C), *db = row_or_null(for_bias, k * C);
                   if (dw) std::fill(dw, dw + C, R(0));
                   if (db) std::fill(db, db + C, R(0));
                   for (std::int64_t r = rows * k / chunks; r < rows * (k + 1) / chunks; ++r)
                     row(r, dw, db);
                 }
               });
  const auto add_up = [&](const R* partial, const Tensor& out) {
    if (!out) return;
    T* po = out.data<T>();
    parallel_for(C, chunks, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        R total = 0;
        for (std::int64_t k = 0; k < chunks; ++k) total += partial[k * C + c];
        po[c] = T(total);
      }
    });
  };
  add_up(for_weight, dweight);
  add_up(for_bias, dbias);
}

}  // namespace weft::cpu
