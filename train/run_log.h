#pragma once
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/energy.h"
#include "weft/io/json.h"
#include "weft/io/metrics.h"
#include "weft/train/options.h"
#include "weft/train/progress.h"
#include "weft/train/task.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// A step whose numbers may still be in transit from the GPU.
struct Pending {
  std::int64_t step, targets, all_targets;
  StepResult result;
};

/// Reports the steps of a run: rows of metrics.jsonl, the progress line, and the final report. All
/// ranks make every call together; the first one writes.
class RunLog {
 public:
  RunLog(const Task& task, const Options& options, const Ranks& ranks);

  /// Opens metrics.jsonl. When resuming, drops the rows of steps after `step`.
  void open(const std::string& metrics_path, bool resumes, std::int64_t step);
  /// Completes the row of the step that the run resumes from. True if its evaluation is due.
  bool make_up(const std::string& metrics_path, std::int64_t step, const io::Json& saved_row,
               bool evaluates);
  void start_progress(std::int64_t first_step);
  /// Time and energy from here on count for the next step.
  void start_clock();
  void resume_clock();
  void pause_clock() { energy_.pause(); }

  /// Takes the numbers of a finished step: they become the current row, and are shown as progress.
  void settle(const Pending& p);
  /// Adds an evaluation to the current row.
  void add(std::int64_t step, const std::vector<Value>& evaluation);
  /// The row of the step settled last; null once it is written.
  const io::Json& row() const { return row_; }
  /// Writes the current row, once.
  void write_row();
  /// Flushes the rows to disk, so that a power failure loses none.
  void sync();
  void end_progress();
  void report(const std::string& metrics_path, const std::string& plot_path) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  const Task& task_;
  const Options& options_;
  const Ranks& ranks_;
  std::optional<io::MetricsWriter> metrics_;
  std::optional<Progress> progress_;
  EnergyMonitor energy_;     ///< the counters that this rank reads for the run
  bool has_energy_ = false;  ///< true if some rank has counters
  io::Json row_;
  Clock::time_point since_ = Clock::now();
  std::int64_t peak_bytes_ = 0;
  double val_loss_ = kNan;
  std::vector<double> loads_;  ///< of the last step, for each layer with experts
};

}  // namespace weft::train
