#include "weft/train/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "weft/train/task.h"

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

Progress::Progress(const Plan& plan)
    : plan_(plan), left_(plan.time), terminal_(isatty(STDOUT_FILENO)), shown_(Clock::now()) {}

std::string Progress::step_text(std::int64_t step) const {
  return formatted("step %5lld/%lld", static_cast<long long>(step),
                   static_cast<long long>(plan_.time.steps));
}

void Progress::step(std::int64_t step, const StepResult& result, std::int64_t targets,
                    double seconds) {
  targets_since_ += targets;
  seconds_since_ += seconds;
  left_.add_step(seconds);
  const bool due =
      step % plan_.log_every == 0 || step == plan_.time.steps || step == plan_.first_step;
  if (!due && !(terminal_ && seconds_between(shown_, Clock::now()) > 1)) return;
  std::vector<LinePart> parts{{step_text(step)}};
  // A narrow terminal keeps the step and the loss longest, then the time left, then the rate.
  int drop = 3;
  for (const StepResult::Number& n : result.numbers) {
    if (n.shown.empty()) continue;
    parts.push_back({formatted("  %s %.*f", n.shown.c_str(), n.decimals, n.value()),
                     parts.size() == 1 ? 0 : drop++});
  }
  parts.push_back({formatted("  lr %.2e", result.lr), drop});
  parts.push_back({formatted("  %.0f %s/s",
                             static_cast<double>(targets_since_) / std::max(1e-9, seconds_since_),
                             plan_.unit == "tokens" ? "tok" : plan_.unit.c_str()),
                   2});
  parts.push_back({formatted("  left %s", format_duration(left_.after(step))), 1});
  due ? print(parts) : show(parts);
  if (!due) return;
  targets_since_ = 0;
  seconds_since_ = 0;
}

void Progress::begin(Aside aside, std::int64_t step) {
  aside_begins_ = Clock::now();
  constexpr const char* kDoing[] = {"  evaluating", "  saving", "  sampling"};  // by Aside
  show({{step_text(step)}, {kDoing[static_cast<int>(aside)]}});
}

void Progress::end(Aside aside) {
  finish();
  left_.add(aside, seconds_between(aside_begins_, Clock::now()));
}

void Progress::evaluation(std::int64_t step, double val_loss, const std::string& unit,
                          double bytes_per_token) {
  std::vector<LinePart> parts{
      {step_text(step)}, {formatted("  validation loss %.4f", val_loss)}, {with_space(unit), 3}};
  if (unit == kNatsPerToken) {
    parts.push_back({formatted("  perplexity %.4g", std::exp(val_loss)), 2});
    if (bytes_per_token > 0)
      parts.push_back(
          {formatted("  %.3f bits per byte", val_loss / std::log(2.0) / bytes_per_token), 1});
  }
  print(parts);
}

void Progress::sample(std::int64_t step, const std::string& text) {
  print({{step_text(step)}, {"  a sample:"}});
  for (const std::string& line : sample_lines(text, terminal_ ? terminal_width() - 1 : INT_MAX))
    std::printf("  %s\n", line.c_str());
  flush();
}

void Progress::print(const std::vector<LinePart>& parts) {
  finish();
  // One column stays free: some terminals wrap a line of their full width.
  std::printf("%s\n", fit_line(parts, terminal_ ? terminal_width() - 1 : INT_MAX).c_str());
  flush();
  shown_ = Clock::now();
}

void Progress::show(const std::vector<LinePart>& parts) {
  if (!terminal_) return;
  std::printf("\r\033[K%s", fit_line(parts, terminal_width() - 1).c_str());
  flush();
  open_line_ = true;
  shown_ = Clock::now();
}

// If the reader exits (a pipe into `head`), the output is lost but the run continues.
void Progress::flush() {
  if (std::fflush(stdout) == 0 || gone_) return;
  std::fprintf(stderr, "standard output cannot be written (%s); the run goes on without it\n",
               std::strerror(errno));
  gone_ = true;
  // What follows is lost without another error.
  if (const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0) {
    dup2(nowhere, STDOUT_FILENO);
    close(nowhere);
  }
  std::clearerr(stdout);
}

void Progress::finish() {
  if (open_line_) std::printf("\r\033[K");
  open_line_ = false;
}

}  // namespace weft::train
