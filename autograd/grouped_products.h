#pragma once
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/grouped_linear.h"

namespace weft::detail {

/// Throws Error "op: ..." unless `rows`, contiguous, are the rows of groups of an x with `total`.
inline void check_group_rows(const char* op, const Tensor& rows, std::int64_t total) {
  std::int64_t sum = 0;
  const std::int64_t* n = rows.data<std::int64_t>();
  for (std::int64_t e = 0; e < rows.numel(); ++e) {
    check(n[e] >= 0, "{}: rows must be at least 0, got {} for group {}", op, n[e], e);
    sum += n[e];
  }
  check(sum == total, "{}: rows must sum to the {} rows of x, got {}", op, total, sum);
}

/// Products per group of rows (contiguous) with their scratch. Records nothing.
inline void grouped_product(const Tensor& a, const Tensor& b, GroupedProduct kind,
                            const Tensor& rows, const Tensor& out, bool accumulate = false) {
  Tensor scratch;
  if (const std::int64_t n = grouped_scratch(a, b, kind))
    scratch = Tensor::empty({n}, DType::f32, a.device());
  if (kind == GroupedProduct::weight_grad)
    count_product(a.numel(), b.dim(1));
  else
    count_product(out.numel(), a.dim(1));
  dispatch<cpu::grouped_gemm, cuda::grouped_gemm>(a, b, kind, rows, accumulate, scratch, out);
}

/// The weight gradients (E, O, I) of groups without rows, which grouped_product() leaves out.
inline void clear_empty_groups(const Tensor& rows, const Tensor& dw) {
  const std::int64_t o = dw.dim(1), i = dw.dim(2);
  for (std::int64_t e = 0; e < rows.numel(); ++e)
    if (rows.data<std::int64_t>()[e] == 0)
      dispatch<cpu::fill, cuda::fill>(dw.alias({o, i}, {i, 1}, e * o * i), 0.0);
}

}  // namespace weft::detail
