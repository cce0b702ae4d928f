#include "weft/train/run_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/random.h"
#include "weft/distributed/agree.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/io/file.h"
#include "weft/train/terminal.h"

namespace weft::train {
namespace {

// Test aid: WEFT_TEST_POWERCAP names a folder that replaces Linux's power zones. A folder rank_<N>
// in it has those of rank N, as if it were on a machine of its own. Empty: no test.
std::string test_zones(int rank) {
  const char* const zones = std::getenv("WEFT_TEST_POWERCAP");
  if (!zones) return {};
  const std::string own = message("{}/rank_{}", zones, rank);
  return io::exists(own) ? own : zones;
}

// Among ranks that share a meter the first one reads it.
EnergyCounters counters_of(const Options& options, const Ranks& ranks) {
  if (options.run.energy == Energy::off || ranks.device().is_meta()) return {};
  const std::string zones = test_zones(ranks.rank());
  const std::vector<std::array<std::int64_t, 1>> meters = distributed::from_all(
      ranks.host(),
      std::array{static_cast<std::int64_t>(stream_of(meter_of(ranks.device()) + " " + zones))});
  const auto own = meters[static_cast<std::size_t>(ranks.rank())];
  if (std::find(meters.begin(), meters.end(), own) - meters.begin() != ranks.rank()) return {};
  EnergyCounters counters =
      zones.empty() ? energy_counters(ranks.device()) : energy_counters(ranks.device(), zones);
  check(options.run.energy != Energy::on || !counters.empty(),
        "--energy: no counter of {} can be read here", ranks.device());
  return counters;
}

}  // namespace

std::string meter_of(Device device) {
  std::string name = distributed::machine_name();
  if constexpr (kWithCuda)
    if (device.is_cuda()) name += " " + cuda::rt::pci_address(device.index);
  return name;
}

RunLog::RunLog(const Task& task, const Options& options, const Ranks& ranks)
    : task_(task), options_(options), ranks_(ranks), energy_(counters_of(options, ranks)) {
  const Tensor counting = Tensor::full({1}, energy_.available() ? 1 : 0, DType::f64);
  if (!ranks.device().is_meta()) ranks.add_up(counting);
  has_energy_ = counting.item() > 0;
}

void RunLog::open(const std::string& metrics_path, bool resumes, std::int64_t step) {
  if (!ranks_.is_first()) return;
  if (resumes) io::truncate_to_step(metrics_path, step);
  metrics_.emplace(metrics_path);
}

bool RunLog::make_up(const std::string& metrics_path, std::int64_t step, const io::Json& saved_row,
                     bool evaluates) {
  std::vector<io::Json> rows;
  if (io::exists(metrics_path)) rows = io::read_metrics(metrics_path);
  const auto of_this_step = [&](const io::Json& row) {
    const io::Json* const number = row.find("step");
    return number && number->is_int() && number->as_int() == step;
  };
  const bool written = !rows.empty() && of_this_step(rows.back());
  row_ = written ? rows.back() : saved_row;
  evaluates = evaluates && !row_.find("val_loss");
  if (written && evaluates) io::truncate_to_step(metrics_path, step - 1);
  if (written && !evaluates) row_ = {};
  for (const io::Json& row : {rows.empty() ? io::Json() : rows.back(), saved_row})
    if (const io::Json* const peak = row.find("peak_bytes"); peak && peak->is_int())
      peak_bytes_ = std::max(peak_bytes_, peak->as_int());
  return evaluates;
}

void RunLog::start_progress(std::int64_t first_step, double steps_per_evaluation) {
  if (!ranks_.is_first() || options_.quiet) return;
  const RunOptions& run = options_.run;
  progress_.emplace(Progress::Plan{.first_step = first_step,
                                   .log_every = run.log_every,
                                   .unit = task_.unit,
                                   .time = {.steps = options_.steps,
                                            .eval_every = run.eval_every,
                                            .save_every = run.save_every,
                                            .saves = !ranks_.device().is_meta(),
                                            .sample_every = run.sample_every,
                                            .steps_per_evaluation = steps_per_evaluation}});
}

void RunLog::begin(Aside aside, std::int64_t step) {
  if (progress_) progress_->begin(aside, step);
}

void RunLog::end(Aside aside) {
  if (progress_) progress_->end(aside);
}

void RunLog::start_clock() { since_ = Clock::now(); }

void RunLog::resume_clock() {
  start_clock();
  energy_.resume();
}

void RunLog::settle(const Pending& p) {
  const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
  start_clock();
  const Tensor joules = Tensor::full({1}, has_energy_ ? energy_.lap() : 0, DType::f64);
  if (has_energy_) ranks_.add_up(joules);
  peak_bytes_ = std::max(peak_bytes_, p.result.peak_bytes);
  row_ = io::Json::object();
  const auto set = [this](const std::string& name, io::Json value) {
    check(!row_.find(name), "metrics: two numbers are called '{}'", name);
    row_.set(name, std::move(value));
  };
  set("step", p.step);
  loads_.clear();
  for (const StepResult::Number& n : p.result.numbers) {
    if (n.name == "layer_loads") loads_ = n.list();
    if (!n.is_list) {
      set(n.name, n.value());
      continue;
    }
    io::Json list;
    for (const double v : n.list()) list.push_back(v);
    set(n.name, std::move(list));
  }
  set("lr", p.result.lr);
  set(task_.unit, p.all_targets);
  set(task_.unit + "_per_s", static_cast<double>(p.targets) / seconds);
  set("step_ms", seconds * 1e3);
  set("live_bytes", p.result.live_bytes);
  set("peak_bytes", peak_bytes_);
  set("system_allocs", memory_stats(ranks_.device()).system_allocs);
  if (has_energy_) {
    const double used = joules.item();
    joules_ += used;
    measured_targets_ += p.targets;
    set("joules", used);
    if (used > 0) set(task_.unit + "_per_joule", static_cast<double>(p.targets) / used);
  }
  const double given = 1e12 * options_.machine.peak_tflops,
               peak = given > 0 ? given : task_.peak_flops;
  if (task_.flops_per_target > 0 && peak > 0) {
    set("mfu", task_.flops_per_target * static_cast<double>(p.targets) / seconds / peak);
    set("peak_tflops", peak * 1e-12);
  }
  if (progress_) progress_->step(p.step, p.result, p.targets, seconds);
}

void RunLog::add(std::int64_t step, const std::vector<Value>& evaluation) {
  for (const Value& v : evaluation) row_.set("val_" + v.name, v.value);
  if (progress_)
    progress_->evaluation(step, evaluation.at(0).value, task_.loss_unit, task_.bytes_per_token);
}

void RunLog::sample(std::int64_t step, const std::string& text) {
  if (progress_) progress_->sample(step, text);
}

void RunLog::write_row() {
  if (metrics_ && !row_.is_null()) metrics_->write(row_);
  row_ = {};
}

void RunLog::sync() {
  if (metrics_) metrics_->sync();
}

void RunLog::end_progress() {
  if (progress_) progress_->finish();
}

void RunLog::report(const std::string& metrics_path, const std::string& plot_path) const {
  if (!ranks_.is_first() || options_.quiet) return;
  if (ranks_.device().is_meta()) {
    std::printf("peak %.1f MB on the meta device\n", static_cast<double>(peak_bytes_) * 1e-6);
    return;
  }
  if (!loads_.empty()) {
    std::string loads;
    for (const double l : loads_) loads += formatted("%.2f ", l);
    print_fact("load by layer", loads + "(busiest expert over the mean, last step)");
  }
  if (joules_ > 0)
    print_fact(
        "energy",
        message("{} J, {} {} per joule", formatted("%.6g", joules_),
                formatted("%.4g", static_cast<double>(measured_targets_) / joules_), task_.unit));
  print_fact("checkpoint", options_.out + "/checkpoints");
  if (options_.run.keep_best) print_fact("best checkpoint", options_.out + "/best");
  print_fact("metrics", metrics_path);
  print_fact("plot", plot_path);
}

}  // namespace weft::train
