// Checkpoints on a disk that is slowed on purpose: how much of the writing is hidden by the steps
// that run meanwhile, and what a save costs them on the disk as it is.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/bench/harness.h"
#include "weft/core/random.h"
#include "weft/io/file.h"
#include "weft/nn/linear.h"
#include "weft/train/trainer.h"

namespace weft::bench {
namespace {

constexpr std::int64_t kWidth = 1536, kClasses = 16, kSaveEvery = 10, kSteps = 30;
// Rows of a step: what a save costs the processor does not depend on them.
constexpr std::int64_t kBatches[] = {512, 1024};
constexpr int kRuns = 7;

struct Classifier : nn::Module {
  nn::Linear in{kWidth, kWidth}, out{kWidth, kClasses};
  Tensor operator()(const Tensor& x) const { return out(gelu(in(x))); }
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("out", out);
  }
};

data::TensorDataset random_rows(std::int64_t count) {
  const Tensor x = Tensor::empty({count, kWidth});
  normal_(x, {1, 0, 0});
  const Tensor classes = Tensor::empty({count}, DType::i32);
  for (std::int64_t i = 0; i < classes.numel(); ++i)
    classes.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * i % kClasses);
  return {x, classes};
}

/// The programs' output is not the benchmark's.
class Quiet {
 public:
  Quiet() : kept_(dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
  }
  ~Quiet() {
    std::fflush(stdout);
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
  }
  Quiet(const Quiet&) = delete;

 private:
  int kept_;
};

/// Seconds of a run, which saves its last step at once, and others as told.
double run(const std::string& folder, std::int64_t batch, std::int64_t save_every,
           bool async_save) {
  const Quiet quiet;
  Classifier model;
  train::Options o{.out = folder, .steps = kSteps, .batch = batch};
  o.run.save_every = save_every;
  o.run.async_save = async_save ? train::AsyncSave::on : train::AsyncSave::off;
  o.run.log_every = kSteps;
  o.run.energy = train::Energy::off;
  const data::TensorDataset rows = random_rows(4 * batch);
  const double begin = now();
  train::Trainer trainer(
      model, o, [&](const data::Batch& b) { return train::classify(model(b.inputs), b.targets); });
  check(trainer.fit(rows) == 0, "bench_save: the run failed");
  const double seconds = now() - begin;
  std::filesystem::remove_all(folder);
  return seconds;
}

struct How {
  const char* name;
  std::int64_t save_every;
  bool async_save;
};
constexpr How kHows[] = {{"last step only", 0, false},
                         {"at once", kSaveEvery, false},
                         {"in the background", kSaveEvery, true}};

/// Runs alternate, so that one is close in time to those of the other ways.
void compare(const std::string& folder, std::int64_t batch, const std::string& disk,
             Report& report) {
  std::array<std::vector<double>, 3> seconds;
  for (int i = 0; i < kRuns; ++i)
    for (std::size_t h = 0; h < 3; ++h)
      seconds[h].push_back(run(folder, batch, kHows[h].save_every, kHows[h].async_save));
  std::vector<double> hidden;
  for (std::size_t i = 0; i < seconds[0].size(); ++i)
    hidden.push_back(1 - (seconds[2][i] - seconds[0][i]) / (seconds[1][i] - seconds[0][i]));
  for (std::size_t h = 0; h < 3; ++h)
    report.row(disk + ", " + kHows[h].name, median(seconds[h]), "s");
  report.row(disk + ", hidden", 100 * median(hidden), "%");
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  using namespace weft;
  using namespace weft::bench;
  std::string folder = "out/bench_save";
  Report report(argc, argv, {{"--out", &folder, "DIR"}});
  check(!std::filesystem::exists(folder),
        "--out: must be a new folder, got '{}'; remove it, or name another", folder);
  const double bytes = 3.0 * sizeof(float) * (kWidth + 1) * (kWidth + kClasses);
  report.row("a checkpoint", 1e-6 * bytes, "MB");
  for (const std::int64_t batch : kBatches) {
    run(folder, batch, 0, false);  // warm-up
    const double step = run(folder, batch, 0, false) / kSteps;
    // Model and two moments in f32. Writing them takes seven of the ten steps between two saves.
    const double rate = bytes / (0.7 * kSaveEvery * step);
    report.row(message("a step of {} rows", batch), 1e3 * step, "ms");
    compare(folder, batch, message("{} rows, the disk as it is", batch), report);
    report.row(message("{} rows, slowed disk", batch), 1e-6 * rate, "MB/s");
    io::testing::slow_writes(rate);
    compare(folder, batch, message("{} rows, slowed disk", batch), report);
    io::testing::slow_writes(0);
  }
  return report.finish();
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
