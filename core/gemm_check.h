#pragma once
#include <optional>
#include <string>

namespace weft {

/// Rates of one thread, in FLOP/s.
struct GemmCheck {
  double product = 0;       ///< a matrix product of the BLAS library
  double multiply_add = 0;  ///< a loop of multiply-adds on registers, with the widest vectors of
                            ///< this CPU
};

/// Measures both rates in f32, alternating a few times, and returns the best of each. BLAS
/// libraries choose kernels by processor name. For an unknown name they may choose those of an
/// older processor, which makes every product four to five times slower without any notice. Takes
/// about 10 ms and touches no allocator counter. Returns nullopt where Weft's own loops compute
/// products (sanitizer builds).
std::optional<GemmCheck> check_gemm_speed();

/// A one-line warning with a remedy when the product runs below half the rate of the multiply-adds;
/// otherwise empty.
std::string gemm_warning(const GemmCheck& rates);

}  // namespace weft
