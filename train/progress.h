#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "weft/train/step_result.h"

namespace weft::train {

/// The progress line: on a terminal one line that is overwritten, otherwise a new line each time.
class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every,
           const std::string& unit);

  /// Shows the numbers of a step that had `targets` targets.
  void step(std::int64_t step, const StepResult& result, std::int64_t targets);
  void evaluation(std::int64_t step, double val_loss, const std::string& unit);
  /// Ends the line that is being overwritten.
  void finish();

 private:
  void flush();

  using Clock = std::chrono::steady_clock;
  std::int64_t first_step_, steps_, log_every_;
  std::string rate_unit_;
  std::int64_t targets_since_ = 0;
  bool terminal_, open_line_ = false, gone_ = false;
  Clock::time_point start_, since_;
};

/// "35 s", "4 min 10 s", "2 h 5 min".
const char* format_duration(double seconds);
/// " text", or "".
inline std::string with_space(const std::string& text) { return text.empty() ? text : ' ' + text; }

}  // namespace weft::train
