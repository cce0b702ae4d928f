#pragma once
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft::detail {

/// Checks cu_seqlens of a packed row and returns it as the kernels read it: contiguous, on the
/// device of x. `tokens` is the token axis of x; `known` skips the check of the values.
/// Throws Error unless it is i32 (n + 1), starts at 0, never decreases and ends at the token count.
inline Tensor checked_cu_seqlens(const char* op, const Tensor& given, const char* name,
                                 const Tensor& x, bool known = false, int tokens = 1) {
  check(given.dtype() == DType::i32 && given.ndim() == 1 && given.dim(0) >= 1,
        "{}: cu_seqlens must be i32 with shape [n + 1], got {} {}", op, given.dtype(),
        given.shape());
  check(given.device() == x.device() || given.device() == kCpu,
        "{}: cu_seqlens must be on the CPU or with {} on {}, got {}", op, name, x.device(),
        given.device());
  const Tensor cu = contiguous(given);
  if (!known && !cu.is_meta()) {
    const Tensor on_host = cu.to(kCpu);
    const std::int32_t* p = on_host.data<std::int32_t>();
    const std::int64_t n = cu.dim(0);
    check(p[0] == 0, "{}: cu_seqlens must start at 0, got {}", op, p[0]);
    for (std::int64_t i = 1; i < n; ++i)
      check(p[i] >= p[i - 1], "{}: cu_seqlens must not decrease, got {} after {}", op, p[i],
            p[i - 1]);
    check(p[n - 1] == x.dim(tokens), "{}: cu_seqlens must end at the number of tokens {}, got {}",
          op, x.dim(tokens), p[n - 1]);
  }
  return x.device().is_gpu() ? cu.to(x.device()) : cu;
}

}  // namespace weft::detail
