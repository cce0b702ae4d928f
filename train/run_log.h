#pragma once
#include <chrono>
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

/// A step whose numbers may still be on their way.
struct Pending {
  std::int64_t step, targets, all_targets;
  StepResult result;
};

/// What a run says of its steps: rows of metrics.jsonl, the progress line, and the report at its
/// end. All ranks make every call together; the first one writes.
class RunLog {
 public:
  RunLog(const Task& task, const Options& options, const Ranks& ranks);

  /// Opens metrics.jsonl. From here on the rows of steps after `step` are its own.
  void open(const std::string& metrics_path, bool resumes, std::int64_t step);
  /// The row of the last step before a run was resumed: what is left to be written of it. Returns
  /// whether its evaluation is still due.
  bool make_up(const std::string& metrics_path, std::int64_t step, const io::Json& saved_row,
               bool evaluates);
  /// An evaluation costs about as much as so many steps; 0: there is none.
  void start_progress(std::int64_t first_step, double steps_per_evaluation);
  /// Time and energy from here on belong to the next step.
  void start_clock();
  void resume_clock();
  void pause_clock() { energy_.pause(); }

  /// The numbers of a step, which is over: they become the row in hand, and the progress line.
  void settle(const Pending& p);
  /// An evaluation or a save after that step begins, and has ended: the time left counts them.
  void begin(Aside aside, std::int64_t step);
  void end(Aside aside);
  /// Adds an evaluation to the row in hand.
  void add(std::int64_t step, const std::vector<Value>& evaluation);
  /// Prints what the model has written after a step.
  void sample(std::int64_t step, const std::string& text);
  /// Of the step that was settled last; null when it has been written.
  const io::Json& row() const { return row_; }
  /// Writes it, once.
  void write_row();
  /// From here on a power cut loses none of the rows.
  void sync();
  void end_progress();
  void report(const std::string& metrics_path, const std::string& plot_path) const;

 private:
  using Clock = std::chrono::steady_clock;

  const Task& task_;
  const Options& options_;
  const Ranks& ranks_;
  std::optional<io::MetricsWriter> metrics_;
  std::optional<Progress> progress_;
  EnergyMonitor energy_;     ///< of what this rank counts for the run
  bool has_energy_ = false;  ///< on some rank
  io::Json row_;
  Clock::time_point since_ = Clock::now();
  std::int64_t peak_bytes_ = 0;
  std::vector<double> loads_;  ///< of the last step, by layer with experts
};

}  // namespace weft::train
