#include "weft/core/profile_table.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include "weft/core/dispatch.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/copy.h"

namespace weft {
namespace {

// Of the time in kernels, so that an op has its row on a machine that other programs keep busy too.
constexpr double kLeastShare = 0.005;

double best_seconds(const std::function<void()>& call) {
  constexpr int kCalls = 5;
  double best = 0;
  for (int i = 0; i < kCalls; ++i) {
    Profiler one;
    one.start("");
    call();
    one.stop();
    double seconds = 0;
    for (const Profiler::Entry& e : one.entries()) seconds += e.work.seconds;
    if (i == 0 || seconds < best) best = seconds;
  }
  return std::max(best, 1e-9);
}

double product_rate(Device device, DType dtype) {
  constexpr double kLongEnough = 0.01;
  double best = 0, seconds = 0;
  for (std::int64_t n = 128; n <= 8192 && seconds < kLongEnough; n *= 2) {
    const Tensor a = Tensor::full({n, n}, 0.5, dtype, device),
                 out = Tensor::empty({n, n}, dtype, device);
    seconds = best_seconds([&] { gemm(a, a, out); });
    best = std::max(best, 2.0 * static_cast<double>(n) * static_cast<double>(n) *
                              static_cast<double>(n) / seconds);
  }
  return best;
}

// Ops that one name covers.
struct Row {
  KernelWork work;
  double floor = 0;

  void add(const Row& r) {
    work.add(r.work);
    floor += r.floor;
  }
};
using Rows = std::vector<std::pair<std::string, Row>>;

class Table {
 public:
  Table(double seconds, std::int64_t spans)
      : seconds_(seconds), spans_(static_cast<double>(std::max<std::int64_t>(spans, 1))) {
    text_ = "                            calls      ms   share  GFLOP/s    GB/s  of floor\n";
  }
  void line(const std::string& name, const Row& row, bool has_rates = true) {
    const KernelWork& w = row.work;
    const auto percent = [](double part, double all) { return all > 0 ? 100 * part / all : 0; };
    const auto giga = [&](double work) { return w.seconds > 0 ? work / w.seconds * 1e-9 : 0; };
    char out[96];
    std::snprintf(out, sizeof out, "%-26.26s%7.0f%8.2f%6.1f %%", name.c_str(),
                  static_cast<double>(w.calls) / spans_, w.seconds / spans_ * 1e3,
                  percent(w.seconds, seconds_));
    text_ += out;
    if (has_rates) {
      if (w.flops > 0)
        std::snprintf(out, sizeof out, "%9.1f", giga(w.flops));
      else
        std::snprintf(out, sizeof out, "%9s", "");
      text_ += out;
      std::snprintf(out, sizeof out, "%8.1f%8.0f %%", giga(w.bytes), percent(row.floor, w.seconds));
      text_ += out;
    }
    text_ += '\n';
  }
  std::string text() { return std::move(text_); }

 private:
  double seconds_, spans_;
  std::string text_;
};

}  // namespace

double DeviceRates::floor(const KernelWork& work) const {
  const double calls = static_cast<double>(std::max<std::int64_t>(work.calls, 1));
  const double each = work.bytes / calls;
  double seconds = product > 0 ? work.flops / product : 0;
  if (!copies.empty()) {
    // The rate of the largest copy that is not larger: rates fall with the size.
    const auto larger = std::find_if(copies.begin() + 1, copies.end(),
                                     [&](const Copy& c) { return c.bytes > each; });
    seconds = std::max(seconds, work.bytes / larger[-1].rate);
  }
  return seconds;
}

DeviceRates measure_rates(Device device, DType dtype) {
  if (device.is_meta()) return {};
  constexpr std::int64_t kLeastBytes = 1 << 14;
  const std::int64_t most_bytes = device.is_gpu() ? 1 << 29 : 1 << 26;
  DeviceRates rates{.product = product_rate(device, dtype), .copies = {}};
  for (std::int64_t bytes = kLeastBytes; bytes <= most_bytes; bytes *= 2) {
    const Tensor from = Tensor::ones({bytes / 8}, DType::f32, device), to = empty_like(from);
    const double seconds = best_seconds([&] { dispatch<cpu::copy, cuda::copy>(from, to); });
    rates.copies.push_back({static_cast<double>(bytes), static_cast<double>(bytes) / seconds});
  }
  // A larger copy is never taken for faster, so that noise makes no floor too high.
  for (auto c = rates.copies.rbegin(); c != rates.copies.rend(); ++c)
    if (c != rates.copies.rbegin()) c->rate = std::max(c->rate, c[-1].rate);
  return rates;
}

std::string profile_table(const std::vector<Profiler::Entry>& entries, double seconds,
                          std::int64_t spans, const DeviceRates& rates) {
  std::map<std::string, std::map<std::string, Row>> phases;
  Row kernels;
  for (const Profiler::Entry& e : entries) {
    const Row row{e.work, rates.floor(e.work)};
    phases[e.phase][e.label()].add(row);
    kernels.add(row);
  }
  Table table(seconds, spans);
  const auto longest_first = [](auto& rows) {
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return a.second.work.seconds > b.second.work.seconds;
    });
  };
  Rows sums;
  for (const auto& [phase, ops] : phases) {
    Row sum;
    for (const auto& [op, row] : ops) sum.add(row);
    sums.emplace_back(phase, sum);
  }
  longest_first(sums);
  for (const auto& [phase, sum] : sums) {
    table.line(phase, sum);
    Rows rows(phases[phase].begin(), phases[phase].end());
    longest_first(rows);
    Row others;
    for (const auto& [op, row] : rows)
      if (row.work.seconds >= kLeastShare * kernels.work.seconds)
        table.line("  " + op, row);
      else
        others.add(row);
    if (others.work.calls > 0) table.line("  others", others);
  }
  table.line("all kernels", kernels);
  Row between;
  between.work.seconds = seconds - kernels.work.seconds;
  table.line("between kernels", between, false);
  return table.text();
}

}  // namespace weft
