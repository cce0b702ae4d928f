#pragma once
#include <optional>
#include <string>

namespace weft {

/// What one thread reaches, in FLOP/s.
struct GemmCheck {
  double product = 0;       ///< a matrix product by the library
  double multiply_add = 0;  ///< a loop of multiply-adds on registers, the widest of this CPU
};

/// Measures both, in f32, a few times in turns, and takes the best. BLAS libraries choose their
/// kernels by the name of the processor; one that they do not know can get those of an ancestor,
/// and all products are then four to five times slower without a word. Takes about 10 ms, touches
/// no counter of the allocator. Nothing where products are Weft's own loops (sanitizer builds).
std::optional<GemmCheck> check_gemm_speed();

/// One line on what is slow and what to do when the product stays below half of the multiply-adds;
/// empty when all is well.
std::string gemm_warning(const GemmCheck& rates);

}  // namespace weft
