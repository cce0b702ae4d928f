// The peak rates of this machine (multiply-adds, copies, products), and from them the floor of a
// training step of each model; bench/floor.h has the derivation.
#include <fstream>
#include <string>

#include "weft/bench/arithmetic.h"
#include "weft/bench/copy_rate.h"
#include "weft/bench/core_latency.h"
#include "weft/bench/floor.h"
#include "weft/bench/fma_peak.h"
#include "weft/bench/harness.h"
#include "weft/bench/step_products.h"
#include "weft/bench/tile_rate.h"

using namespace weft;

namespace {

double product_seconds(const bench::StepProduct& p, int runs) {
  return bench::seconds_per_call(p.prepared(), runs);
}

/// The best rate over large products: the machine's GEMM rate.
double gemm_peak(bench::Report& report) {
  constexpr std::int64_t kShapes[][3] = {
      {1024, 1024, 1024}, {2048, 2048, 2048}, {1024, 3072, 768}, {1024, 768, 3072}};
  double best = 0;
  for (const auto& [m, n, k] : kShapes)
    for (const auto kind : {bench::StepProduct::forward, bench::StepProduct::input_gradient,
                            bench::StepProduct::weight_gradient}) {
      const bench::StepProduct p{"", kind, m, n, k, 1};
      best = std::max(best, p.flops() / product_seconds(p, 7));
    }
  report.row("product, best of large shapes", best / 1e9, "GFLOP/s");
  return best;
}

/// The products of a step that have weights, at their own shapes; excludes attention.
void products_of_step(bench::Report& report, const bench::StepModel& m) {
  double total = 0, total_flops = 0, seconds = 0;
  for (const bench::StepProduct& p : bench::step_products(m)) {
    seconds += product_seconds(p, p.flops() > 2e10 ? 1 : 3);
    // The three products of a weight share a row.
    if (p.kind != bench::StepProduct::weight_gradient) continue;
    report.row(
        message("{}: {} {} x {} x {}", m.name, p.name.substr(0, p.name.find(' ')), p.k, p.m, p.n),
        3 * p.flops() / seconds / 1e9, "GFLOP/s");
    total += seconds * static_cast<double>(p.count);
    total_flops += 3 * p.flops() * static_cast<double>(p.count);
    seconds = 0;
  }
  report.row(message("{}: products at these shapes", m.name), total_flops / total / 1e9, "GFLOP/s");
}

/// The time that the floor leaves out; `products`: the seconds of the products in it.
void arithmetic_rows(bench::Report& report, const bench::StepModel& m, double products) {
  const bench::ArithmeticSeconds s = bench::arithmetic_seconds(m);
  const auto row = [&](const char* what, double seconds) {
    report.row(message("{}: {}", m.name, what), 1e3 * seconds, "ms");
  };
  row("arithmetic of GELU", s.gelu);
  row("arithmetic of softmax", s.softmax);
  row("arithmetic of norms", s.norm);
  row("arithmetic of the loss", s.loss);
  row("products and arithmetic", products + s.total());
}

double copy_row(bench::Report& report, const char* name, double bytes) {
  const double plain = bench::copy_rate(bytes, bench::Stores::plain);
  const double streaming = bench::copy_rate(bytes, bench::Stores::streaming);
  report.row(message("copy, {}", name), plain / 1e9, "GB/s");
  report.row(message("copy, {}, streaming stores", name), streaming / 1e9, "GB/s");
  return std::max(plain, streaming);
}

/// Size of one level of data cache for this processor; `otherwise` where the system does not report
/// it. (In a virtual machine, CPUID may report the sum over the host.)
double cache_bytes(int level, double otherwise) {
  double best = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = message("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level"), size_file(folder + "size");
    int found = 0;
    double size = 0;
    std::string unit;
    if (level_file >> found && size_file >> size && found == level) {
      size_file >> unit;
      best = std::max(best, size * (unit == "M" ? 1048576 : unit == "K" ? 1024 : 1));
    }
  }
  return best > 0 ? best : otherwise;
}

/// Returns the seconds of the products.
double floor_rows(bench::Report& report, const bench::StepModel& m, const bench::Rates& rates,
                  double last_level) {
  const bench::StepWork work = bench::step_work(m, last_level);
  const double seconds = bench::floor_seconds(work, rates);
  const auto row = [&](const char* what, double value, const char* unit) {
    report.row(message("{}: {}", m.name, what), value, unit);
  };
  row("products", work.product_flops / 1e9, "GFLOP");
  row("bytes in L2 blocks", work.block_bytes / 1e6, "MB");
  row("bytes in the last-level cache", work.near_bytes / 1e6, "MB");
  row("bytes in memory", work.far_bytes / 1e6, "MB");
  row("floor, products", 1e3 * work.product_flops / rates.gemm, "ms");
  row("floor", 1e3 * seconds, "ms");
  row("ceiling", static_cast<double>(m.step_tokens()) / seconds, "tokens/s");
  return work.product_flops / rates.gemm;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string shapes = "yes";
  bench::Report report(argc, argv, {{"--shapes", &shapes, "yes|no"}});
  check(shapes == "yes" || shapes == "no", "--shapes: must be yes or no, got '{}'", shapes);
  const cpu::FmaLoop loop = cpu::fma_loop();
  report.row(message("multiply-add, {}", loop.name), bench::fma_peak(loop) / 1e9, "GFLOP/s");
  report.row("tile of a product, operands in L1", bench::tile_rate() / 1e9, "GFLOP/s");
  if (const double rate = bench::issue_rate(); rate > 0)
    report.row("instructions a cycle", rate, "");
  bench::core_latency_rows(report);

  const double last_level = cache_bytes(3, 8e6);
  const double l2 = cache_bytes(2, 1e6) * num_threads();
  report.row("last-level cache", last_level / 1048576, "MiB");
  bench::Rates rates;
  rates.block = copy_row(report, "half of L2", l2 / 2);
  rates.near = copy_row(report, "quarter of the last-level cache", last_level / 4);
  const double beyond = std::max(2.56e8, 4 * last_level);
  rates.far = copy_row(report, "memory", beyond);
  report.row("reading memory", bench::read_rate(beyond) / 1e9, "GB/s");
  rates.gemm = gemm_peak(report);

  // A smaller cache level is not slower than a larger one; such a result means a disturbed run.
  rates.near = std::max(rates.near, rates.far);
  rates.block = std::max(rates.block, rates.near);

  for (const bench::StepModel& m : bench::kStepModels) {
    const double products = floor_rows(report, m, rates, last_level);
    if (shapes != "yes") continue;
    products_of_step(report, m);
    arithmetic_rows(report, m, products);
  }
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
