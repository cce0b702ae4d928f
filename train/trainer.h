#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "weft/data/loader.h"
#include "weft/train/run_folder.h"
#include "weft/train/run_log.h"
#include "weft/train/step_profile.h"
#include "weft/train/test_aids.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// Trains a module on a dataset, with everything that a run needs: gradient accumulation over
/// micro-batches, ranks, sharded optimizer state, graphs, evaluation, metrics.jsonl, a progress
/// line and a plot, checkpoints, exact resume, Ctrl-C, and a stop on non-finite losses.
///
///   Classifier model;
///   train::Trainer trainer(model, {.out = "runs/mine", .steps = 1000, .batch = 32},
///                          [&](const data::Batch& b) {
///                            return train::classify(model(b.inputs), b.targets);
///                          });
///   return trainer.fit(training, validation);
///
/// On several ranks, each creates its own model and Trainer inside run_on_ranks().
class Trainer {
 public:
  /// Opens the run's folder. The model must outlive the Trainer and is moved to the device and
  /// dtype of the options, by default the CPU and f32. Throws Error on options that contradict each
  /// other, and as RunFolder and TrainStep do.
  Trainer(nn::Module& model, const Options& options, LossFunction loss);
  Trainer(nn::Module& model, const Options& options, LossFunction loss, const Ranks& ranks);
  Trainer(const Task& task, const Options& options, const Ranks& ranks);
  ~Trainer();
  Trainer(const Trainer&) = delete;

  /// Call it once. Trains to step options.steps, or to that in which task.after_step stops, with
  /// options.run.resume from the last checkpoint.
  /// The validation set may be null. Returns the program's exit status: 0, 130 after an interrupt,
  /// or that of Fault::non_finite.
  /// Throws Error on data that cannot be read and files that cannot be written.
  int fit(const data::Dataset& training, const data::Dataset* validation = nullptr);
  int fit(const data::Dataset& training, const data::Dataset& validation) {
    return fit(training, &validation);
  }

 private:
  struct Alone;
  Trainer(std::unique_ptr<Alone> alone, nn::Module& model, const Options& options,
          LossFunction loss);
  void restore();
  void load_weights();
  bool make_up();
  void write_plot() const;
  int one_step();
  data::Batch read_rows();
  void save(bool evaluates, bool ends);
  void advance_save();
  void finish_save();
  double steps_per_evaluation() const;
  bool evaluate(bool ends);
  void keep_if_best(double val_loss, bool ends);
  void sample();
  bool is_finite(const Pending& p) const;
  int stop_non_finite(const Pending& p);
  int stop_ruined();
  int stop_unmeasured();
  std::optional<std::string> first_non_finite() const;
  bool any_rank(bool own) const;
  bool asks_to_stop(const Pending& p);
  bool prints() const { return ranks_.is_first() && !options_.quiet; }

  std::unique_ptr<Alone> alone_;
  Task task_;
  const Options options_;
  const Ranks& ranks_;
  RunFolder folder_;  // first: another run may hold the folder
  TrainStep step_;
  StepProfile profile_;
  RunLog log_;
  RunState state_;
  std::int64_t saved_step_ = 0;                            ///< or the step at which the run begins
  double best_ = std::numeric_limits<double>::infinity();  ///< lowest validation loss so far
  std::optional<data::Loader> loader_;
  std::optional<data::EvalLoader> validation_;
  std::optional<Pending> pending_;
  std::optional<KillInSave> kill_;
  RunFolder::Save saving_;  ///< in the background; null: none
  bool ends_early_ = false;
};

}  // namespace weft::train
