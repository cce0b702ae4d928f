#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/core/tensor.h"

/// Measuring on a GPU, as bench/peers/gpu_ops.py measures PyTorch.
///
/// A row is named "op, dtype a x b x c"; gpu_ops.py parses the op and its shape from that name.
/// Samples are groups of calls between two CUDA events. The host waits only after the last group,
/// so that the GPU never waits for the host. Calls cycle through several sets of buffers, so that
/// no set is still in a cache when it is used again.
namespace weft::bench {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

struct Spread {
  double median = 0, p10 = 0, p90 = 0;  ///< seconds per call
};

/// Several copies of a buffer; call i uses copy i.
class Buffers {
 public:
  enum class Values : std::uint8_t { uniform, poison, zeros };
  /// Uniform numbers in [-1, 1], NaN, or zeros.
  Buffers(const Shape& shape, DType dtype, int sets, Values values);
  const Tensor& operator[](int call) const {
    return sets_[static_cast<std::size_t>(call) % sets_.size()];
  }
  int sets() const { return static_cast<int>(sets_.size()); }
  double bytes() const;  ///< of one set
  /// Fills them with NaN again, if they were.
  void poison() const;

 private:
  Values values_;
  std::vector<Tensor> sets_;
};

/// The number of sets of an array with twice the size of the L2 cache in total, at least two.
int cold_sets(const Shape& shape, DType dtype);

/// Uniform in [-1, 1].
Tensor uniform(const Shape& shape, DType dtype);
/// i32 numbers in [0, below), from a hash of their index.
Tensor spread_ids(std::int64_t n, std::int64_t below);

/// One row of the measurement.
struct Case {
  std::string name;
  double work;                           ///< bytes or FLOPs per call
  std::vector<Buffers> outputs;          ///< poisoned again before; every value must be written
  std::function<void(int call)> launch;  ///< submits the work to the GPU without waiting
};

class GpuBench {
 public:
  /// `quick`: a few calls on tiny shapes, to check that the program runs.
  GpuBench(Report& report, bool quick) : report_(report), quick_(quick) {}

  bool quick() const { return quick_; }
  Report& report() const { return report_; }

  /// Rows: microseconds, GB/s and percent of copy_rate(). Nothing that the run that this one
  /// resumes has measured.
  void memory_bound(const Case& c);
  /// Rows: microseconds and TFLOP/s.
  void arithmetic(const Case& c);
  Spread time(const std::function<void(int)>& launch) const;

  /// Bytes read and written per second when a large array is copied; measured at first use.
  double copy_rate();
  /// Runs products for three seconds, until clocks and temperature are stable.
  void warm_up() const;

 private:
  /// Whether the run that this one resumes has the rows.
  bool is_done(const Case& c) const;
  /// Also checks the outputs.
  Spread time(const Case& c) const;
  Report& report_;
  bool quick_;
  double copy_rate_ = 0;
};

/// "op, bf16 65536 x 768".
std::string row_name(const std::string& op, DType dtype, const Shape& shape);

// The parts of bench_gpu.
void norm_part(GpuBench& bench);
void rows_part(GpuBench& bench);
void elementwise_part(GpuBench& bench);
void optimizer_part(GpuBench& bench);
void attention_part(GpuBench& bench);
void products_part(GpuBench& bench);
void overhead_part(GpuBench& bench);

}  // namespace weft::bench
