#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "weft/data/loader.h"
#include "weft/train/run_folder.h"
#include "weft/train/run_log.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// Trains a module on a dataset, with all that a run needs: accumulation over micro-batches, ranks,
/// sharded optimizer states, graphs, evaluation, metrics.jsonl, a progress line and a plot,
/// checkpoints, exact resume, Ctrl-C, and an end before a loss that is not finite does harm.
///
///   Classifier model;
///   train::Trainer trainer(model, {.out = "runs/mine", .steps = 1000, .batch = 32},
///                          [&](const data::Batch& b) {
///                            return train::classify(model(b.inputs), b.targets);
///                          });
///   return trainer.fit(training, validation);
///
/// On several ranks, each makes its own model and Trainer inside run_on_ranks().
class Trainer {
 public:
  /// Opens the run's folder. The model has to outlive it and is moved to the device and dtype of
  /// the options, by default the CPU and f32. Throws Error on options that do not fit together, and
  /// where RunFolder and TrainStep do.
  Trainer(nn::Module& model, const Options& options, LossFunction loss);
  Trainer(nn::Module& model, const Options& options, LossFunction loss, const Ranks& ranks);
  Trainer(const Task& task, const Options& options, const Ranks& ranks);
  ~Trainer();
  Trainer(const Trainer&) = delete;

  /// Called once. Trains to step options.steps, from the last checkpoint with options.run.resume.
  /// The validation set may be null. Returns the status that a program exits with: 0, 130 after an
  /// interrupt, or that of Fault::non_finite.
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
  void make_up();
  void write_plot() const;
  int one_step();
  data::Batch read_rows();
  void save(bool evaluates);
  double steps_per_evaluation() const;
  void evaluate();
  void keep_if_best(double val_loss);
  void sample();
  bool is_finite(const Pending& p) const;
  int stop_non_finite(const Pending& p);
  std::optional<std::string> first_non_finite() const;
  bool any_rank(bool own) const;

  std::unique_ptr<Alone> alone_;
  Task task_;
  const Options options_;
  const Ranks& ranks_;
  RunFolder folder_;  // before anything is done: another run may have it
  TrainStep step_;
  RunLog log_;
  RunState state_;
  std::int64_t saved_step_ = 0;                            ///< or where the run begins
  double best_ = std::numeric_limits<double>::infinity();  ///< validation loss so far
  std::optional<data::Loader> loader_;
  std::optional<data::EvalLoader> validation_;
  std::optional<Pending> pending_;
};

}  // namespace weft::train
