#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

namespace weft::train {

/// The progress line: on a terminal one line that is written over, elsewhere one line each time.
class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every);

  /// Of one step. NaN where there is no such number (on the meta device, without experts).
  struct Numbers {
    double loss;
    const std::vector<double>& mtp;  ///< the loss of each depth of multi-token prediction
    double load;  ///< the busiest expert's tokens over the mean, in the worst layer
    double norm, lr;
    std::int64_t tokens;
  };
  void step(std::int64_t step, const Numbers& n);
  void evaluation(std::int64_t step, double val_loss);
  /// Ends the line that is being written over.
  void finish();

 private:
  void flush();

  using Clock = std::chrono::steady_clock;
  std::int64_t first_step_, steps_, log_every_;
  std::int64_t tokens_since_ = 0;
  bool terminal_, open_line_ = false, gone_ = false;
  Clock::time_point start_, since_;
};

/// "35 s", "4 min 10 s", "2 h 5 min".
const char* format_duration(double seconds);

}  // namespace weft::train
