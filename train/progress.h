#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/train/step_result.h"
#include "weft/train/terminal.h"
#include "weft/train/time_left.h"

namespace weft::train {

/// The progress of a run on standard output. On a terminal a line of at most its width stays every
/// `log_every` steps, and one below it is written over in between; elsewhere lines are whole.
class Progress {
 public:
  struct Plan {
    std::int64_t first_step = 1, log_every = 1;
    std::string unit;
    TimeLeft::Plan time;
  };
  explicit Progress(const Plan& plan);

  /// The numbers of one step that are to be shown; it took so long, for about so many targets.
  void step(std::int64_t step, const StepResult& result, std::int64_t targets, double seconds);
  /// An evaluation or a save after that step begins, and has ended.
  void begin(Aside aside, std::int64_t step);
  void end(Aside aside);
  /// The result of an evaluation. Where the loss is in nats per token its perplexity stands beside
  /// it, and bits per byte where a token's mean number of bytes is known.
  void evaluation(std::int64_t step, double val_loss, const std::string& unit,
                  double bytes_per_token);
  /// Text that the model has written, in lines that fit a terminal. Bytes that are no UTF-8, and
  /// control characters, are shown as '?'.
  void sample(std::int64_t step, const std::string& text);
  /// Removes the line that is being written over.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string step_text(std::int64_t step) const;
  /// A line that stays.
  void print(const std::vector<LinePart>& parts);
  /// One that is written over, on a terminal.
  void show(const std::vector<LinePart>& parts);
  void flush();

  Plan plan_;
  TimeLeft left_;
  std::int64_t targets_since_ = 0;
  double seconds_since_ = 0;
  bool terminal_, open_line_ = false, gone_ = false;
  Clock::time_point shown_, aside_begins_;
};

/// "35 s", "4 min 10 s", "2 h 5 min".
const char* format_duration(double seconds);
/// " text", or "".
inline std::string with_space(const std::string& text) { return text.empty() ? text : ' ' + text; }

}  // namespace weft::train
