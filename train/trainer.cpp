#include "weft/train/trainer.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/hf_folder.h"
#include "weft/io/file.h"
#include "weft/io/plot.h"
#include "weft/train/agreement.h"
#include "weft/train/flags.h"
#include "weft/train/interrupt.h"
#include "weft/train/terminal.h"

namespace weft::train {

struct Trainer::Alone {
  Ranks ranks;
};

namespace {

void check_sample(const Task& task, const Options& options) {
  check(options.run.sample_every == 0 || task.sample,
        "--sample-every: needs a model that writes text, which this one does not");
}

}  // namespace

Trainer::Trainer(nn::Module& model, const Options& options, LossFunction loss)
    : Trainer(std::unique_ptr<Alone>(new Alone{Ranks::alone(options)}), model, options,
              std::move(loss)) {}

Trainer::Trainer(std::unique_ptr<Alone> alone, nn::Module& model, const Options& options,
                 LossFunction loss)
    : Trainer(model, options, std::move(loss), alone->ranks) {
  alone_ = std::move(alone);
  apply(options.machine);
}

Trainer::Trainer(nn::Module& model, const Options& options, LossFunction loss, const Ranks& ranks)
    : Trainer(Task{.model = model, .loss = std::move(loss)}, options, ranks) {}

Trainer::Trainer(const Task& task, const Options& options, const Ranks& ranks)
    : task_(task),
      options_((check_options(options), check_sample(task, options), options)),
      ranks_(ranks),
      folder_(options_.out, options_.run.resume, ranks),
      step_(task_, options_, ranks),
      profile_(step_, options_, ranks),
      log_(task_, options_, ranks) {}

Trainer::~Trainer() = default;

int Trainer::fit(const data::Dataset& training, const data::Dataset* validation) {
  check(!loader_, "fit: may be called once; a Trainer is one run");
  check(!options_.run.keep_best || validation,
        "--keep-best: needs held-out data, got none; see --val-fraction and --val-data");
  if (ranks_.size() > 1 && !ranks_.device().is_meta()) {
    check_same_data(ranks_.host(), training, "training data");
    if (validation) check_same_data(ranks_.host(), *validation, "validation data");
  }
  loader_.emplace(training,
                  data::Loader::Options{.batch = options_.batch,
                                        .seed = static_cast<std::uint64_t>(options_.machine.seed)});
  // As many rows at once as in training, so that evaluation needs no more memory than a step.
  if (validation && !ranks_.device().is_meta())
    validation_.emplace(*validation, options_.micro_batch ? options_.micro_batch : ranks_.rows());
  restore();
  const InterruptScope interrupts;
  if (options_.run.resume && !make_up()) return stop_unmeasured();
  if (state_.step >= options_.steps) {
    if (prints())
      std::printf("already at step %lld of %lld\n", static_cast<long long>(state_.step),
                  static_cast<long long>(options_.steps));
    return 0;
  }
  log_.resume_clock();
  log_.start_progress(state_.step + 1, steps_per_evaluation());
  while (state_.step < options_.steps && !ends_early_)
    if (const int status = one_step()) return status;
  finish_save();
  log_.end_progress();
  if (ends_early_ && prints())
    print_fact("stopped", message("after step {} of {}", state_.step, options_.steps));
  log_.report(folder_.metrics(), folder_.plot());
  profile_.report(folder_.profile());
  return 0;
}

void Trainer::restore() {
  std::vector<std::string> changes;
  if (options_.run.resume)
    ranks_.on_first(
        [&] { changes = folder_.changes(config_of(options_), task_.saves_trained_only); });
  // Also without a checkpoint: --save-every 0 leaves the best weights alone.
  if (options_.run.resume && options_.run.keep_best) best_ = folder_.best_loss();
  // A checkpoint of trained parameters alone has no others.
  const bool whole = !task_.saves_trained_only;
  if (!whole && !options_.run.weights.empty()) load_weights();
  const std::optional<RunState> saved =
      options_.run.resume ? folder_.restore(step_, task_) : std::nullopt;
  if (saved) {
    state_ = *saved;
    saved_step_ = state_.step;
    loader_->set_state(state_.loader);
  } else if (whole && !options_.run.weights.empty()) {
    load_weights();
  }
  if (!saved && task_.start) step_.load_trained(task_.start());
  log_.open(folder_.metrics(), options_.run.resume, state_.step);
  if (options_.run.resume && prints()) {
    if (!saved)
      print_fact("resume", message("no checkpoint in '{}': from the beginning", options_.out));
    else if (state_.step < options_.steps)
      print_fact("resume", message("after step {}", state_.step));
    for (const std::string& change : changes) print_fact("changed", change);
  }
  if (ranks_.is_first()) folder_.write_config(config_of(options_));  // only after all checks
}

void Trainer::load_weights() {
  const distributed::ShardFiles files = distributed::open_weights(options_.run.weights);
  check_same_weights(ranks_.host(), options_.run.weights, files);
  step_.load_weights(files);
}

/// Completes what the interrupted run still had to do after its last save: the row of that step,
/// its evaluation, the plot. Returns false if the loss of the evaluation is NaN.
bool Trainer::make_up() {
  bool evaluates = false, measures = true;
  if (ranks_.is_first())
    evaluates =
        log_.make_up(folder_.metrics(), state_.step, state_.row, state_.evaluates && validation_);
  if (ranks_.of_first(evaluates)) {
    log_.start_progress(state_.step, steps_per_evaluation());
    measures = evaluate(true);
  }
  log_.write_row();
  if (ranks_.is_first() && io::exists(folder_.metrics())) write_plot();
  return measures;
}

// The title is the name of the run's folder.
void Trainer::write_plot() const {
  std::filesystem::path folder = std::filesystem::absolute(options_.out).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  io::write_loss_svg(folder_.metrics(), folder_.plot(), "Loss of " + folder.filename().string());
}

int Trainer::one_step() {
  const Device device = ranks_.device();
  const std::int64_t number = state_.step + 1;
  inject_nan(step_, number);
  kill_in_step(step_, ranks_, number);
  if (!device.is_cuda()) log_.start_clock();
  const data::Batch rows = read_rows();
  const std::int64_t targets = rows.targets_per_row() * options_.batch;
  // A GPU step's numbers are read while the next step runs, unless something needs them now.
  std::optional<Pending> earlier = std::exchange(
      pending_, Pending{number, targets, state_.targets + targets, profile_.run(number, rows)});
  // All ranks must decide together, also when the data files were modified.
  ends_early_ = task_.after_step && any_rank(asks_to_stop(*pending_));
  const bool stop = any_rank(interrupted() || loader_->dataset().changed()),
             last = number == options_.steps || ends_early_;
  advance_save();
  const auto due = [&](std::int64_t every) { return last || (every && number % every == 0); };
  const bool saves = !device.is_meta() && (stop || due(options_.run.save_every)),
             evaluates = validation_ && due(options_.run.eval_every),
             samples = options_.run.sample_every && number % options_.run.sample_every == 0 &&
                       !device.is_meta();
  const auto settled = [&](const Pending& p) {
    if (!device.is_meta()) p.result.loss();  // waits: an aborted collective gives wrong numbers
    ranks_.world().check_well();
    if (!is_finite(p)) {
      finish_save();
      return stop_non_finite(p);
    }
    log_.settle(p);
    return 0;
  };
  if (earlier) {
    if (const int status = settled(*earlier)) return status;
    log_.write_row();
  }
  if (saves || evaluates || samples || !device.is_cuda())
    if (const int status = settled(*std::exchange(pending_, {}))) return status;
  loader_->advance();
  state_.step = number;
  state_.targets += targets;
  if (saves || evaluates || samples) log_.pause_clock();
  // Save first: an evaluation may run out of memory or be interrupted.
  if (saves || (evaluates && options_.run.keep_best))
    if (const int status = stop_ruined()) return status;
  if (saves) save(evaluates, stop || last);
  const bool measures = !evaluates || evaluate(stop || last);
  log_.write_row();
  if (!measures) return stop_unmeasured();
  if (samples) sample();
  if (saves && ranks_.is_first()) write_plot();
  if (saves || evaluates || samples) log_.resume_clock();
  if (!stop || last) return 0;
  finish_save();
  log_.end_progress();
  const bool modified = any_rank(loader_->dataset().changed());
  loader_->dataset().check_unchanged();
  check_system(!modified,
               "data: must not change while it is read, but another rank's was written to");
  if (prints())
    std::printf("interrupted: saved step %lld; --resume goes on from it\n",
                static_cast<long long>(number));
  profile_.report(folder_.profile());
  return 130;
}

bool Trainer::asks_to_stop(const Pending& p) {
  const Device device = ranks_.device();
  if (device.is_meta() || (device.is_cpu() && !is_finite(p))) return false;
  distributed::ParallelOptimizer& optimizer = step_.optimizer();
  const Next next = task_.after_step({p.step, p.result, [&]() -> const nn::Module& {
                                        optimizer.wait();
                                        optimizer.restore_values();
                                        return task_.model;
                                      }});
  optimizer.release_values();
  return next == Next::stop;
}

/// If data cannot be read, saves the steps done so far. Several ranks, of which only some may fail,
/// cannot save together.
data::Batch Trainer::read_rows() {
  try {
    return loader_->rows(ranks_.first_row(), ranks_.rows());
  } catch (...) {
    if (ranks_.size() > 1 || state_.step == saved_step_) throw;
    if (pending_) {
      if (!is_finite(*pending_)) throw;
      log_.settle(*std::exchange(pending_, {}));
    }
    if (step_.first_non_finite_parameter().is_parameter) throw;
    save(false, true);
    log_.write_row();
    throw;
  }
}

/// At the end there is nothing to hide the writing behind, and what follows may fail.
void Trainer::save(bool evaluates, bool ends) {
  log_.begin(Aside::save, state_.step);
  finish_save();
  state_.loader = loader_->state();
  state_.row = log_.row();
  state_.evaluates = evaluates;
  log_.sync();
  kill_.emplace(ranks_, state_.step);
  const bool background = options_.run.async_save == AsyncSave::on && !ends;
  saving_ = folder_.save(step_, task_, state_, options_.run.keep, background);
  saved_step_ = state_.step;
  if (!background) finish_save();
  log_.end(Aside::save);
}

void Trainer::advance_save() {
  if (!saving_ || !saving_->advance()) return;
  saving_.reset();
  kill_.reset();
}

void Trainer::finish_save() {
  if (saving_) saving_->finish();
  saving_.reset();
  kill_.reset();
}

// A forward pass takes about a third of a step.
double Trainer::steps_per_evaluation() const {
  return validation_
             ? static_cast<double>(validation_->rows()) / (3 * static_cast<double>(options_.batch))
             : 0;
}

/// Returns false if the loss is NaN.
bool Trainer::evaluate(bool ends) {
  try {
    log_.begin(Aside::evaluation, state_.step);
    const std::vector<Value> values = step_.evaluate(*validation_);
    ranks_.world().check_well();
    log_.end(Aside::evaluation);
    log_.add(state_.step, values);
    keep_if_best(values.at(0).value, ends);
    return !std::isnan(values.at(0).value);
  } catch (...) {
    log_.write_row();
    throw;
  }
}

// A resumed run reads the best loss from the saved row.
void Trainer::keep_if_best(double val_loss, bool ends) {
  if (!options_.run.keep_best || !(val_loss < best_)) return;
  best_ = val_loss;
  state_.loader = loader_->state();
  state_.row = log_.row();
  state_.evaluates = false;
  finish_save();
  const bool background = options_.run.async_save == AsyncSave::on && !ends;
  saving_ = folder_.save_best(step_, task_, state_, background);
  if (!background) finish_save();
}

void Trainer::sample() {
  step_.optimizer().wait();
  step_.optimizer().restore_values();
  if (!ranks_.is_first()) return;
  log_.begin(Aside::sample, state_.step);
  const std::string text = task_.sample();
  log_.end(Aside::sample);
  log_.sample(state_.step, text);
}

bool Trainer::is_finite(const Pending& p) const {
  if (ranks_.device().is_meta()) return true;
  if (!std::isfinite(p.result.loss())) return false;
  const StepResult::Number* const scale = p.result.find("loss_scale");
  return std::isfinite(p.result.grad_norm()) || (scale && scale->value() > LossScale::kLeast);
}

/// A learning rate that is too high, for example, ruins weights in a step whose loss and gradients
/// were finite. Checked before a save, which may delete the last checkpoint with finite ones.
int Trainer::stop_ruined() {
  const bool ruined = step_.first_non_finite_parameter().is_parameter;
  if (!any_rank(ruined)) return 0;
  finish_save();
  log_.end_progress();
  if (const std::optional<std::string> what = first_non_finite())
    std::fprintf(stderr,
                 "%s: step %lld: %s is not finite after the update; checkpoints are as "
                 "before this step\n",
                 options_.program.c_str(), static_cast<long long>(state_.step), what->c_str());
  return static_cast<int>(Fault::non_finite);
}

/// Weights may be finite and too large for a forward pass.
int Trainer::stop_unmeasured() {
  finish_save();
  log_.end_progress();
  if (ranks_.is_first())
    std::fprintf(stderr, "%s: step %lld: the validation loss is not a number\n",
                 options_.program.c_str(), static_cast<long long>(state_.step));
  return static_cast<int>(Fault::non_finite);
}

/// Reports what is not finite, before it is written anywhere.
int Trainer::stop_non_finite(const Pending& p) {
  const double loss = p.result.loss(), norm = p.result.grad_norm();
  log_.end_progress();
  if (const std::optional<std::string> what = first_non_finite())
    std::fprintf(stderr,
                 "%s: step %lld: %s is not finite (loss %g, gradient norm %g); "
                 "%s as before this step\n",
                 options_.program.c_str(), static_cast<long long>(p.step), what->c_str(), loss,
                 norm,
                 ranks_.device().is_cuda() ? "checkpoints are" : "weights and checkpoints are");
  return static_cast<int>(Fault::non_finite);
}

/// The text is returned on the first rank with a non-finite parameter; without one on the first
/// rank, since gradients are sums over ranks. Empty on all others.
std::optional<std::string> Trainer::first_non_finite() const {
  const TrainStep::NonFinite own = step_.first_non_finite();
  const std::string text = own.what.empty() ? "the loss" : own.what;
  if (ranks_.size() == 1) return text;
  const Tensor first =
      Tensor::full({1}, own.is_parameter ? ranks_.rank() : ranks_.size(), DType::i64);
  ranks_.host().all().all_reduce(first, distributed::Reduce::min).wait();
  const std::int64_t finder = first.item_int();
  if (finder == ranks_.rank()) return message("{} of rank {}", text, finder);
  return finder == ranks_.size() && ranks_.is_first() ? std::optional(text) : std::nullopt;
}

/// Ctrl-C reaches ranks at different steps; they must stop together.
bool Trainer::any_rank(bool own) const {
  if (ranks_.size() == 1 || ranks_.device().is_meta()) return own;
  const Tensor stops = Tensor::full({1}, own ? 1 : 0, DType::f64);
  ranks_.add_up(stops);
  return stops.item() > 0;
}

}  // namespace weft::train
