#include "weft/examples/common/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "weft/core/energy.h"
#include "weft/core/error.h"
#include "weft/core/gemm_check.h"
#include "weft/core/parallel.h"
#include "weft/data/loader.h"
#include "weft/data/text.h"
#include "weft/data/token_file.h"
#include "weft/data/tokenizer.h"
#include "weft/distributed/mpi_world.h"
#include "weft/examples/common/check_memory.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/interrupt.h"
#include "weft/examples/common/progress.h"
#include "weft/examples/common/run_folder.h"
#include "weft/examples/common/session.h"
#include "weft/examples/common/test_aids.h"
#include "weft/io/metrics.h"
#include "weft/io/plot.h"

namespace weft::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Test aid: WEFT_TEST_POWERCAP names the folder in the place of Linux's power zones.
EnergyMonitor energy_of(Device device) {
  const char* const zones = std::getenv("WEFT_TEST_POWERCAP");
  return EnergyMonitor(zones ? energy_counters(device, zones) : energy_counters(device));
}

// Text files are bytes to the tokenizer; a .bin file holds token ids already.
data::TokenStream read_tokens(const std::vector<std::string>& paths) {
  const auto is_tokens = [](const std::string& p) { return p.ends_with(".bin"); };
  if (std::none_of(paths.begin(), paths.end(), is_tokens))
    return data::TokenStream::of_bytes(data::read_text(paths));
  check(paths.size() == 1, "--data: a .bin file must be the only one, got {} files", paths.size());
  return data::open_token_file(paths[0]);
}

// Throws Error when the data are too short.
data::TokenLoader loader_of(const data::TokenStream& tokens, const Options& o) {
  return {tokens,
          {.batch = o.step.batch,
           .seq = o.model.seq,
           .seed = static_cast<std::uint64_t>(o.machine.seed)}};
}

/// The loop over steps, with all that happens between them.
class Run {
 public:
  Run(const Options& options, const data::TokenStream& training, data::TokenStream validation,
      const Ranks* ranks)
      : options_(options),
        ranks_(ranks),
        device_(ranks ? ranks->device() : Device::parse(options.machine.device)),
        folder_(options.run.out, options.run.resume, ranks),
        session_(options, device_, ranks),
        train_(loader_of(training, options)),
        validation_(std::move(validation)),
        energy_(energy_of(device_)) {
    const std::optional<RunState> saved =
        options.run.resume ? folder_.restore(session_) : std::optional<RunState>();
    if (saved) {
      state_ = *saved;
      saved_step_ = state_.step;
      train_.set_state(state_.loader);
    } else if (!options.run.weights.empty()) {
      session_.load_weights(distributed::PieceFiles({options.run.weights}));
    }
    if (!is_first()) return;
    if (options.run.resume) io::truncate_to_step(folder_.metrics(), state_.step);
    metrics_.emplace(folder_.metrics());
    folder_.write_config(to_toml(options));  // of what has been accepted
  }

  int loop() {
    catch_interrupts();
    if (options_.run.resume) make_up();
    if (state_.step >= options_.step.steps) {
      if (is_first())
        std::printf("already at step %lld of %lld\n", static_cast<long long>(state_.step),
                    static_cast<long long>(options_.step.steps));
      return 0;
    }
    since_ = Clock::now();
    energy_.resume();
    if (is_first()) progress_.emplace(state_.step + 1, options_.step.steps, options_.run.log_every);
    while (state_.step < options_.step.steps) {
      const int status = one_step();
      if (status != 0) return status;
    }
    end_progress();
    if (is_first()) report();
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// A step whose numbers have not been read yet.
  struct Pending {
    std::int64_t step, tokens, all_tokens;
    StepResult result;
  };

  /// What the run before still had to do after its last save: the row of that step, the evaluation
  /// that belongs to it, the plot.
  void make_up() {
    bool evaluates = false;
    if (is_first()) {
      std::vector<io::Json> rows;
      if (io::exists(folder_.metrics())) rows = io::read_metrics(folder_.metrics());
      const auto of_this_step = [&](const io::Json& row) {
        const io::Json* const step = row.find("step");
        return step && step->is_int() && step->as_int() == state_.step;
      };
      const bool written = !rows.empty() && of_this_step(rows.back());
      row_ = written ? rows.back() : state_.row;
      evaluates = state_.evaluates && validation_.size() > 1 && !row_.find("val_loss");
      if (written && evaluates) io::truncate_to_step(folder_.metrics(), state_.step - 1);
      if (written && !evaluates) row_ = {};
      for (const io::Json& row : {rows.empty() ? io::Json() : rows.back(), state_.row})
        if (const io::Json* const peak = row.find("peak_bytes"); peak && peak->is_int())
          peak_bytes_ = std::max(peak_bytes_, peak->as_int());
    }
    if (ranks_) evaluates = ranks_->of_first(evaluates) != 0;
    if (evaluates) {
      if (is_first()) progress_.emplace(state_.step, options_.step.steps, options_.run.log_every);
      evaluate(state_.step);
    }
    write_row();
    if (is_first() && io::exists(folder_.metrics()))
      io::write_loss_svg(folder_.metrics(), folder_.plot());
  }

  int one_step() {
    const std::int64_t step = state_.step + 1, tokens = options_.step.batch * options_.model.seq;
    inject_nan(session_, step);
    kill_in_step(session_, rank(), step);
    if (!device_.is_cuda()) since_ = Clock::now();
    StepResult result = step_or_save(step);
    // The numbers of a GPU's step are read while the next one runs, unless something needs them.
    std::optional<Pending> earlier =
        std::exchange(pending_, Pending{step, tokens, state_.tokens + tokens, std::move(result)});
    // Data that have been written to are noticed here by all ranks together.
    const bool stop = all_stop(interrupted() || train_.changed()),
               last = step == options_.step.steps;
    const bool saves =
        !device_.is_meta() &&
        (last || stop || (options_.run.save_every && step % options_.run.save_every == 0));
    const bool evaluates =
        validation_.size() > 1 && !device_.is_meta() &&
        (last || (options_.run.eval_every && step % options_.run.eval_every == 0));
    if (earlier) {
      if (const int status = settle(*earlier)) return status;
      write_row();
    }
    if (saves || evaluates || !device_.is_cuda())
      if (const int status = settle(*std::exchange(pending_, {}))) return status;
    train_.advance();
    state_.step = step;
    state_.tokens += tokens;
    state_.loader = train_.state();
    const bool pauses = saves || evaluates;
    if (pauses) energy_.pause();
    // First what must not be lost: an evaluation may run out of memory, or be what is interrupted.
    if (saves) {
      state_.row = row_;
      state_.evaluates = evaluates;
      if (metrics_) metrics_->sync();
      const KillInSave aid(rank(), step);
      folder_.save(session_, state_, options_.run.keep);
      saved_step_ = step;
    }
    if (evaluates) evaluate(step);
    write_row();
    if (saves && is_first()) io::write_loss_svg(folder_.metrics(), folder_.plot());
    if (pauses) {
      since_ = Clock::now();
      energy_.resume();
    }
    if (stop && !last) {
      end_progress();
      train_.check_unchanged();
      if (is_first())
        std::printf("interrupted: saved step %lld; --resume goes on from it\n",
                    static_cast<long long>(step));
      return 130;
    }
    return 0;
  }

  /// When data cannot be read in the middle of a step, what there is from the steps before is
  /// saved: weights change at a step's end. Ranks, which may fail one by one, cannot save together.
  StepResult step_or_save(std::int64_t step) {
    bool reading = false;
    try {
      return session_.step(step, [&](std::int64_t first, std::int64_t rows) {
        if (device_.is_meta()) return meta_batch(rows);
        reading = true;
        data::Batch batch = train_.rows(first, rows);
        reading = false;
        return batch;
      });
    } catch (const Error&) {
      if (!reading || ranks_ || state_.step == saved_step_) throw;
      if (pending_)
        if (settle(*std::exchange(pending_, {})) != 0) throw;
      state_.row = row_;
      state_.evaluates = false;
      if (metrics_) metrics_->sync();
      folder_.save(session_, state_, options_.run.keep);
      write_row();
      throw;
    }
  }

  /// Reads the numbers of a step, reports them, and stops the run when they are not finite.
  int settle(const Pending& p) {
    const double loss = p.result.loss_sum ? p.result.loss() : kNan;
    const double norm = p.result.grad_norm ? p.result.grad_norm->value() : kNan;
    const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    since_ = Clock::now();
    const double joules = energy_.lap();
    if (p.result.loss_sum && !(std::isfinite(loss) && std::isfinite(norm))) {
      say_non_finite(p.step, loss, norm);
      return static_cast<int>(Fault::non_finite);
    }
    peak_bytes_ = std::max(peak_bytes_, p.result.peak_bytes);
    std::vector<double> mtp_losses;
    for (const StepResult::Depth& d : p.result.mtp) mtp_losses.push_back(d.loss.value());
    load_.clear();
    for (const cuda::Readback& l : p.result.load) load_.push_back(l.value());
    const double busiest = load_.empty() ? kNan : *std::max_element(load_.begin(), load_.end());
    if (progress_)
      progress_->step(p.step, {loss, mtp_losses, busiest, norm, p.result.lr, p.tokens});
    row_ = io::Json::object();
    row_.set("step", p.step).set("loss", loss).set("grad_norm", norm).set("lr", p.result.lr);
    row_.set("tokens", p.all_tokens);
    add_parts(p, mtp_losses, busiest);
    row_.set("tokens_per_s", static_cast<double>(p.tokens) / seconds);
    row_.set("step_ms", seconds * 1e3);
    row_.set("live_bytes", p.result.live_bytes).set("peak_bytes", peak_bytes_);
    row_.set("system_allocs", memory_stats(device_).system_allocs);
    if (energy_.available()) row_.set("joules", joules);
    return 0;
  }

  /// What models with more than one loss, or with experts, have in a row.
  void add_parts(const Pending& p, const std::vector<double>& mtp_losses, double busiest) {
    for (std::size_t d = 0; d < static_cast<std::size_t>(options_.model.mtp.depths); ++d) {
      const bool known = d < mtp_losses.size();
      row_.set(message("mtp_{}_loss", d + 1), known ? mtp_losses[d] : kNan);
      row_.set(message("mtp_{}_acceptance", d + 1),
               known ? p.result.mtp[d].acceptance.value() : kNan);
    }
    if (p.result.balance_loss) row_.set("aux_loss", p.result.balance_loss->value());
    if (p.result.z_loss) row_.set("z_loss", p.result.z_loss->value());
    if (load_.empty()) return;
    io::Json layers;
    for (const double l : load_) layers.push_back(l);
    row_.set("load_max_over_mean", busiest).set("layer_loads", std::move(layers));
  }

  /// Of the step that was settled last, once.
  void write_row() {
    if (metrics_ && !row_.is_null()) metrics_->write(row_);
    row_ = {};
  }

  void say_non_finite(std::int64_t step, double loss, double norm) {
    end_progress();
    if (const std::optional<std::string> what = first_non_finite())
      std::fprintf(stderr,
                   "%s: step %lld: %s is not finite (loss %g, gradient norm %g); "
                   "%s as before this step\n",
                   options_.program.c_str(), static_cast<long long>(step), what->c_str(), loss,
                   norm, device_.is_cuda() ? "checkpoints are" : "weights and checkpoints are");
  }

  void end_progress() {
    if (progress_) progress_->finish();
  }

  int rank() const { return ranks_ ? ranks_->world().rank() : 0; }
  bool is_first() const { return !ranks_ || ranks_->is_first(); }

  /// Ctrl-C reaches ranks at different steps: they stop together.
  bool all_stop(bool own) const {
    if (!ranks_ || device_.is_meta()) return own;
    const Tensor stops = Tensor::full({1}, own ? 1 : 0, DType::f64);
    ranks_->add_up(stops);
    return stops.item() > 0;
  }

  /// What is not finite: on the first rank with such a parameter, else, since gradients are sums
  /// over ranks, on the first one. Empty on all others.
  std::optional<std::string> first_non_finite() const {
    const Session::NonFinite own = session_.first_non_finite();
    const std::string text = own.what.empty() ? "the loss" : own.what;
    if (!ranks_) return text;
    const int size = ranks_->world().size(), rank = ranks_->world().rank();
    const Tensor first = Tensor::full({1}, own.is_parameter ? rank : size, DType::i64);
    ranks_->host().all().all_reduce(first, distributed::Reduce::min).wait();
    const std::int64_t finder = first.item_int();
    if (finder == rank) return message("{} of rank {}", text, rank);
    return finder == size && is_first() ? std::optional(text) : std::nullopt;
  }

  data::Batch meta_batch(std::int64_t rows) const {
    const Shape shape{rows, options_.model.seq};
    return {Tensor::empty(shape, DType::i32, device_), Tensor::empty(shape, DType::i32, device_)};
  }

  void evaluate(std::int64_t step) {
    // As many rows at once as in training, so that it needs no more memory than a step.
    const std::int64_t own = options_.step.batch / (ranks_ ? ranks_->data_ranks() : 1);
    const std::int64_t rows = options_.step.micro_batch ? options_.step.micro_batch : own;
    const data::EvalLoader loader(validation_, rows, options_.model.seq);
    try {
      val_loss_ =
          session_.evaluate(loader.batches(), [&](std::int64_t i) { return loader.batch(i); });
    } catch (...) {
      write_row();
      throw;
    }
    row_.set("val_loss", val_loss_);
    if (progress_) progress_->evaluation(step, val_loss_);
  }

  void report() const {
    if (device_.is_meta()) {
      std::printf("peak %.1f MB on the meta device\n", static_cast<double>(peak_bytes_) * 1e-6);
      return;
    }
    if (std::isfinite(val_loss_)) std::printf("validation loss  %.4f nats per token\n", val_loss_);
    if (!load_.empty()) {
      std::printf("load by layer   ");
      for (const double l : load_) std::printf(" %.2f", l);
      std::printf("  (busiest expert over the mean, last step)\n");
    }
    std::printf("checkpoint       %s/checkpoints\n", options_.run.out.c_str());
    std::printf("metrics          %s\n", folder_.metrics().c_str());
    std::printf("plot             %s\n", folder_.plot().c_str());
  }

  const Options& options_;
  const Ranks* ranks_;
  Device device_;
  RunFolder folder_;  // before anything is done: it may be somebody else's
  Session session_;
  data::TokenLoader train_;
  data::TokenStream validation_;
  // Of the first rank only.
  std::optional<io::MetricsWriter> metrics_;
  std::optional<Progress> progress_;
  EnergyMonitor energy_;
  RunState state_;
  std::int64_t saved_step_ = 0;  ///< or where the run begins
  std::optional<Pending> pending_;
  io::Json row_;  ///< of metrics.jsonl, until it is written
  Clock::time_point since_ = Clock::now();
  std::int64_t peak_bytes_ = 0;
  double val_loss_ = kNan;
  std::vector<double> load_;  ///< of the last step that was read, by layer with experts
};

void print_plan(const Options& o, std::int64_t data_tokens, const Ranks* ranks) {
  const nn::GptConfig model = o.gpt();
  std::printf("parameters       %lld\n", static_cast<long long>(model.parameter_count()));
  std::printf("data             %lld tokens\n", static_cast<long long>(data_tokens));
  std::printf("training         %lld steps of %lld tokens, %.1f million in all\n",
              static_cast<long long>(o.step.steps),
              static_cast<long long>(o.step.batch * o.model.seq),
              static_cast<double>(o.step.steps * o.step.batch * o.model.seq) * 1e-6);
  const int size = ranks ? ranks->world().size() : 0, rank = ranks ? ranks->world().rank() : 0;
  std::printf("peak memory      %.1f MB of tensors\n",
              static_cast<double>(predict_peak_bytes(o, size, rank)) * 1e-6);
}

// Only where the products of this run are the library's: f32 on the CPU.
void warn_of_slow_products(const Options& o) {
  if (!Device::parse(o.machine.device).is_cpu() || o.machine.dtype != DType::f32) return;
  if (const std::optional<GemmCheck> rates = check_gemm_speed())
    if (const std::string warning = gemm_warning(*rates); !warning.empty())
      std::fprintf(stderr, "%s: %s\n", o.program.c_str(), warning.c_str());
}

/// The last line of the log; ranks that are threads log at once.
class LastLogged {
 public:
  void set(std::string_view line) {
    const std::lock_guard lock(mutex_);
    line_ = line;
  }
  bool is(std::string_view line) {
    const std::lock_guard lock(mutex_);
    return line_ == line;
  }

 private:
  std::mutex mutex_;
  std::string line_;
};

LastLogged& last_logged() {
  static LastLogged line;
  return line;
}

}  // namespace

int train(const Options& given) {
  Options options = given;
  check(!options.data.files.empty(), "--data: name at least one file");
  if (options.model.vocab == 0) options.model.vocab = data::ByteTokenizer().vocab();
  // Every rule, from the cheapest on, before anything is allocated by the size of a flag.
  options.gpt().validate();
  check_ranks(options);
  for (const std::string& path : options.data.files)
    check(distributed::launched_ranks() <= 1 || !std::filesystem::is_fifo(path),
          "--data: processes cannot share the pipe '{}'; give a file", path);
  if (options.machine.threads) set_num_threads(static_cast<int>(options.machine.threads));
  set_deterministic(options.machine.deterministic);
  const data::TokenStream tokens = read_tokens(options.data.files);
  const auto [training, validation] = data::split_tokens(tokens, options.data.val_fraction);
  static_cast<void>(loader_of(training, options));
  if (!options.run.dry_run) check_least_memory(options);
  if (!options.run.weights.empty())
    check_weights(options.gpt(), distributed::PieceFiles({options.run.weights}));
  data::check_vocab(tokens, options.model.vocab);
  if (!options.run.dry_run) check_peak_memory(options);
  return run_on_ranks(options, [&](const Ranks* ranks) {
    const bool first = !ranks || ranks->is_first();
    if (first) print_plan(options, tokens.size(), ranks);
    if (options.run.dry_run) return 0;
    if (first) warn_of_slow_products(options);
    return Run(options, training, validation, ranks).loop();
  });
}

int train_main(const Options& defaults, int argc, char** argv) try {
  outlive_readers();
  set_log_handler([](std::string_view line) {
    // What stops one of several ranks is said at once: the others may take a while to notice.
    last_logged().set(line);
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  const Parsed parsed = parse_options(defaults, argc, argv);
  return parsed.exit_status >= 0 ? parsed.exit_status : train(parsed.options);
} catch (const Error& e) {
  if (last_logged().is(e.what())) return static_cast<int>(e.fault());
  return end_process(defaults.program, nullptr, e);
} catch (const std::exception& e) {
  return end_process(defaults.program, nullptr, e);
}

}  // namespace weft::train
