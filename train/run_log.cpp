#include "weft/train/run_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "weft/io/file.h"

namespace weft::train {
namespace {

// Test aid: WEFT_TEST_POWERCAP names the folder in the place of Linux's power zones.
EnergyMonitor energy_of(Device device) {
  const char* const zones = std::getenv("WEFT_TEST_POWERCAP");
  return EnergyMonitor(zones ? energy_counters(device, zones) : energy_counters(device));
}

}  // namespace

RunLog::RunLog(const Task& task, const Options& options, Device device, bool is_first)
    : task_(task),
      options_(options),
      device_(device),
      is_first_(is_first),
      energy_(energy_of(device)) {}

void RunLog::open(const std::string& metrics_path, bool resumes, std::int64_t step) {
  if (!is_first_) return;
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

void RunLog::start_progress(std::int64_t first_step) {
  if (is_first_) progress_.emplace(first_step, options_.steps, options_.run.log_every, task_.unit);
}

void RunLog::start_clock() { since_ = Clock::now(); }

void RunLog::resume_clock() {
  start_clock();
  energy_.resume();
}

void RunLog::settle(const Pending& p) {
  const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
  start_clock();
  const double joules = energy_.lap();
  peak_bytes_ = std::max(peak_bytes_, p.result.peak_bytes);
  row_ = io::Json::object();
  row_.set("step", p.step);
  loads_.clear();
  for (const StepResult::Number& n : p.result.numbers) {
    if (n.name == "layer_loads") loads_ = n.list();
    if (!n.is_list) {
      row_.set(n.name, n.value());
      continue;
    }
    io::Json list;
    for (const double v : n.list()) list.push_back(v);
    row_.set(n.name, std::move(list));
  }
  row_.set("lr", p.result.lr).set(task_.unit, p.all_targets);
  row_.set(task_.unit + "_per_s", static_cast<double>(p.targets) / seconds);
  row_.set("step_ms", seconds * 1e3);
  row_.set("live_bytes", p.result.live_bytes).set("peak_bytes", peak_bytes_);
  row_.set("system_allocs", memory_stats(device_).system_allocs);
  if (energy_.available()) row_.set("joules", joules);
  if (progress_) progress_->step(p.step, p.result, p.targets);
}

void RunLog::add(std::int64_t step, const std::vector<Value>& evaluation) {
  for (const Value& v : evaluation) row_.set("val_" + v.name, v.value);
  val_loss_ = evaluation.at(0).value;
  if (progress_) progress_->evaluation(step, val_loss_, task_.loss_unit);
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
  if (!is_first_) return;
  if (device_.is_meta()) {
    std::printf("peak %.1f MB on the meta device\n", static_cast<double>(peak_bytes_) * 1e-6);
    return;
  }
  if (std::isfinite(val_loss_))
    std::printf("validation loss  %.4f%s\n", val_loss_, with_space(task_.loss_unit).c_str());
  if (!loads_.empty()) {
    std::printf("load by layer   ");
    for (const double l : loads_) std::printf(" %.2f", l);
    std::printf("  (busiest expert over the mean, last step)\n");
  }
  std::printf("checkpoint       %s/checkpoints\n", options_.out.c_str());
  std::printf("metrics          %s\n", metrics_path.c_str());
  std::printf("plot             %s\n", plot_path.c_str());
}

}  // namespace weft::train
