#pragma once
#include <string>
#include <vector>

#include "weft/core/profile.h"
#include "weft/core/tensor.h"

namespace weft {

/// What bounds the time of a kernel on a device: the rate of large matrix products, and that of
/// copies, by the bytes that they read and write.
struct DeviceRates {
  struct Copy {
    double bytes = 0, rate = 0;
  };
  double product = 0;        ///< FLOP/s
  std::vector<Copy> copies;  ///< ascending

  /// The time of a large product with as many operations, or of copies with as many bytes each,
  /// whichever is longer, in seconds. Kernels that read more than they write can be faster.
  double floor(const KernelWork& work) const;
};

/// Measures them in about half a second. On the meta device all are 0.
/// Dtypes  f32, f64, bf16, f16: of the products
/// Throws  Error if this thread has a running profiler
DeviceRates measure_rates(Device device, DType dtype);

/// The ops of a profile in lines of at most 80 columns, each with its calls and milliseconds
/// between start() and stop(), share of all time, rates, and what part of its time the floor would
/// take. By phase, the longest op first; ops below 0.5 % are summed.
std::string profile_table(const std::vector<Profiler::Entry>& entries, double seconds,
                          std::int64_t spans, const DeviceRates& rates);
inline std::string profile_table(const Profiler& profile, const DeviceRates& rates) {
  return profile_table(profile.entries(), profile.seconds(), profile.spans(), rates);
}

}  // namespace weft
