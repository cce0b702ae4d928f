#include "weft/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace weft::train {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

const char* format_duration(double seconds) {
  static thread_local char text[48];
  const auto s = static_cast<long long>(std::max(0.0, seconds) + 0.5);
  if (s < 60)
    std::snprintf(text, sizeof text, "%lld s", s);
  else if (s < 3600)
    std::snprintf(text, sizeof text, "%lld min %lld s", s / 60, s % 60);
  else
    std::snprintf(text, sizeof text, "%lld h %lld min", s / 3600, s % 3600 / 60);
  return text;
}

// Tokens are abbreviated: "tok/s".
Progress::Progress(std::int64_t first_step, std::int64_t steps, std::int64_t log_every,
                   const std::string& unit)
    : first_step_(first_step),
      steps_(steps),
      log_every_(log_every),
      rate_unit_(unit == "tokens" ? "tok" : unit),
      terminal_(isatty(STDOUT_FILENO)),
      start_(Clock::now()),
      since_(start_) {}

void Progress::step(std::int64_t step, const StepResult& result, std::int64_t targets) {
  targets_since_ += targets;
  const bool due = step % log_every_ == 0 || step == steps_ || step == first_step_;
  const Clock::time_point now = Clock::now();
  if (!due && !(terminal_ && seconds_between(since_, now) > 1)) return;
  const double rate =
      static_cast<double>(targets_since_) / std::max(1e-9, seconds_between(since_, now));
  const double per_step = seconds_between(start_, now) /
                          static_cast<double>(std::max<std::int64_t>(1, step - first_step_ + 1));
  std::printf("%sstep %5lld/%lld", terminal_ ? "\r\033[K" : "", static_cast<long long>(step),
              static_cast<long long>(steps_));
  for (const StepResult::Number& n : result.numbers)
    if (!n.shown.empty()) std::printf("  %s %.*f", n.shown.c_str(), n.decimals, n.value());
  std::printf("  lr %.2e  %.0f %s/s  left %s%s", result.lr, rate, rate_unit_.c_str(),
              format_duration(per_step * static_cast<double>(steps_ - step)),
              terminal_ ? "" : "\n");
  flush();
  open_line_ = terminal_;
  since_ = now;
  targets_since_ = 0;
}

void Progress::evaluation(std::int64_t step, double val_loss, const std::string& unit) {
  finish();
  std::printf("step %5lld/%lld  validation loss %.4f%s\n", static_cast<long long>(step),
              static_cast<long long>(steps_), val_loss, with_space(unit).c_str());
  flush();
  since_ = Clock::now();
  targets_since_ = 0;
}

// If the reader exits (a pipe into `head`), the output is lost but the run continues.
void Progress::flush() {
  if (std::fflush(stdout) == 0 || gone_) return;
  std::fprintf(stderr, "standard output cannot be written (%s); the run goes on without it\n",
               std::strerror(errno));
  gone_ = true;
}

void Progress::finish() {
  if (open_line_) std::printf("\n");
  open_line_ = false;
}

}  // namespace weft::train
