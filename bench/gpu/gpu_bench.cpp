#include "weft/bench/gpu/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/autograd/reduce.h"
#include "weft/core/cuda.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/random.h"

namespace weft::bench {
namespace {

constexpr double kL2Bytes = 60e6;
constexpr int kRuns = 25;
constexpr double kSampleSeconds = 3e-3, kWarmSeconds = 3;

double bytes_of(const Shape& shape, DType dtype) {
  return static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
}

/// The rows of a spread and those that follow it.
std::vector<Row> time_rows(const std::string& name, const Spread& t, std::vector<Row> more) {
  std::vector<Row> out{{name, 1e6 * t.median, "us"},
                       {name + ": p10", 1e6 * t.p10, "us"},
                       {name + ": p90", 1e6 * t.p90, "us"}};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace

int cold_sets(const Shape& shape, DType dtype) {
  const double most = std::ceil(2 * kL2Bytes / std::max(1.0, bytes_of(shape, dtype)));
  return static_cast<int>(std::clamp(most, 2.0, 32.0));
}

Tensor uniform(const Shape& shape, DType dtype) {
  // Large arrays repeat a block; the values only must not be zeros.
  constexpr std::int64_t kBlock = 1 << 20;
  const Tensor out = Tensor::empty(shape, dtype, kGpu);
  const std::int64_t n = out.numel();
  std::int64_t filled = std::min(n, kBlock);
  const Tensor flat = out.flatten();
  flat.narrow(0, 0, filled).copy_(rand_uniform({filled}, -1, 1).to(dtype).to(kGpu));
  while (filled < n) {
    const std::int64_t more = std::min(filled, n - filled);
    flat.narrow(0, filled, more).copy_(flat.narrow(0, 0, more));
    filled += more;
  }
  return out;
}

Tensor spread_ids(std::int64_t n, std::int64_t below) {
  const Tensor ids = Tensor::empty({n}, DType::i32);
  for (std::int64_t i = 0; i < n; ++i)
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(
        (static_cast<std::uint32_t>(i) * 2654435761u >> 8) % static_cast<std::uint32_t>(below));
  return ids;
}

Buffers::Buffers(const Shape& shape, DType dtype, int sets, Values values) : values_(values) {
  for (int i = 0; i < sets; ++i)
    sets_.push_back(values == Values::uniform ? uniform(shape, dtype)
                                              : Tensor::zeros(shape, dtype, kGpu));
  poison();
}

void Buffers::poison() const {
  if (values_ != Values::poison) return;
  for (const Tensor& t : sets_) t.fill_(std::numeric_limits<double>::quiet_NaN());
}

double Buffers::bytes() const { return bytes_of(sets_[0].shape(), sets_[0].dtype()); }

std::string row_name(const std::string& op, DType dtype, const Shape& shape) {
  std::string sizes;
  for (int i = 0; i < shape.size(); ++i) sizes += message("{}{}", i ? " x " : "", shape[i]);
  return message("{}, {} {}", op, dtype, sizes);
}

Spread GpuBench::time(const std::function<void(int)>& launch) const {
  int call = 0;
  // Seconds per call in each of `samples` groups of `calls`.
  const auto measure = [&](int samples, int calls) {
    std::vector<cuda::Event> marks;
    for (int i = 0; i <= samples; ++i) marks.emplace_back(true);
    for (int i = 0; i <= samples; ++i) {
      for (int j = 0; i > 0 && j < calls; ++j) launch(call++);
      marks[static_cast<std::size_t>(i)].record();
    }
    cuda::synchronize(kGpu);
    std::vector<double> seconds;
    for (std::size_t i = 1; i < marks.size(); ++i)
      seconds.push_back(1e-3 * marks[i].since(marks[i - 1]) / calls);
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  };
  measure(1, quick_ ? 1 : 3);
  const double estimate = measure(1, quick_ ? 1 : 5)[0];
  const double wanted = quick_ ? 1 : std::ceil(kSampleSeconds / std::max(estimate, 1e-6));
  const std::vector<double> s =
      measure(quick_ ? 3 : kRuns, static_cast<int>(std::clamp(wanted, 1.0, 500.0)));
  return {s[s.size() / 2], s[s.size() / 10], s[s.size() - 1 - s.size() / 10]};
}

Spread GpuBench::time(const Case& c) const {
  for (const Buffers& out : c.outputs) out.poison();  // an earlier case may have written them
  const Spread t = time(c.launch);
  for (const Buffers& out : c.outputs)
    check(std::isfinite(sum(out[0]).item()), "{}: an output is not finite", c.name);
  return t;
}

bool GpuBench::is_done(const Case& c) const {
  if (!report_.earlier(c.name)) return false;
  // A later case may read what this one writes.
  for (int i = 0; !c.outputs.empty() && i < c.outputs[0].sets(); ++i) c.launch(i);
  return true;
}

void GpuBench::memory_bound(const Case& c) {
  const double copy = copy_rate();
  if (is_done(c)) return;
  const Spread t = time(c);
  const double rate = c.work / t.median;
  report_.rows(time_rows(
      c.name, t,
      {{c.name + ": rate", rate / 1e9, "GB/s"}, {c.name + ": of copy", 100 * rate / copy, "%"}}));
}

void GpuBench::arithmetic(const Case& c) {
  if (is_done(c)) return;
  const Spread t = time(c);
  report_.rows(time_rows(c.name, t, {{c.name + ": rate", c.work / t.median / 1e12, "TFLOP/s"}}));
}

double GpuBench::copy_rate() {
  if (copy_rate_ > 0) return copy_rate_;
  const Shape shape{quick_ ? 1 << 10 : 1 << 29};
  const std::string name = row_name("copy", DType::bf16, shape), rate = name + ": rate";
  if (const double* known = report_.earlier(rate)) return copy_rate_ = 1e9 * *known;
  const Buffers from(shape, DType::bf16, 2, Buffers::Values::uniform);
  const Buffers to(shape, DType::bf16, 2, Buffers::Values::poison);
  const Case copy{name, 2 * to.bytes(), {to}, [&](int i) { cuda::copy(from[i], to[i]); }};
  const Spread t = time(copy);
  copy_rate_ = copy.work / t.median;
  report_.rows(time_rows(name, t, {{rate, copy_rate_ / 1e9, "GB/s"}}));
  return copy_rate_;
}

void GpuBench::warm_up() const {
  const std::int64_t n = quick_ ? 16 : 8192;
  const Tensor a = uniform({n, n}, DType::bf16), b = uniform({n, n}, DType::bf16);
  const Tensor out = Tensor::empty({n, n}, DType::bf16, kGpu);
  const double start = now();
  do {
    for (int i = 0; i < (quick_ ? 1 : 20); ++i) gemm(a, b, out);
    cuda::synchronize(kGpu);
  } while (!quick_ && now() - start < kWarmSeconds);
}

}  // namespace weft::bench
