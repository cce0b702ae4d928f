// The peak rates of this machine (multiply-adds, copies, products), and from them the floor of a
// training step of each model; bench/floor.h has the derivation.
#include <fstream>
#include <string>

#include "weft/bench/arithmetic.h"
#include "weft/bench/copy_rate.h"
#include "weft/bench/floor.h"
#include "weft/bench/fma_peak.h"
#include "weft/bench/harness.h"
#include "weft/core/gemm.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

using namespace weft;

namespace {

/// Seconds of out (m, n) = a * b in the operand layouts of the three products of a layer: forward x
/// w^T, the gradient of the input dy w, the gradient of the weight dy^T x.
enum class Product : std::uint8_t { forward, input_gradient, weight_gradient };

double product_seconds(Product p, std::int64_t m, std::int64_t n, std::int64_t k, int runs) {
  const bool trans_a = p == Product::weight_gradient, trans_b = p == Product::forward;
  const Tensor a = trans_a ? rand_normal({k, m}) : rand_normal({m, k});
  const Tensor b = trans_b ? rand_normal({n, k}) : rand_normal({k, n});
  const Tensor left = trans_a ? transposed(a) : a, right = trans_b ? transposed(b) : b;
  const Tensor out = Tensor::empty({m, n});
  return bench::seconds_per_call([&] { gemm(left, right, out); }, runs);
}

double flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

/// The best rate over large products: the machine's GEMM rate.
double gemm_peak(bench::Report& report) {
  constexpr std::int64_t kShapes[][3] = {
      {1024, 1024, 1024}, {2048, 2048, 2048}, {1024, 3072, 768}, {1024, 768, 3072}};
  double best = 0;
  for (const auto& [m, n, k] : kShapes)
    for (const Product p : {Product::forward, Product::input_gradient, Product::weight_gradient})
      best = std::max(best, flops(m, n, k) / product_seconds(p, m, n, k, 7));
  report.row("product, best of large shapes", best / 1e9, "GFLOP/s");
  return best;
}

/// The products of a step that have weights, at their own shapes; excludes attention.
void products_of_step(bench::Report& report, const bench::StepModel& m) {
  const std::int64_t rows = m.step_tokens(), dim = m.config.dim, vocab = m.config.vocab;
  struct Weight {
    const char* name;
    std::int64_t out, in, count;
  };
  const Weight weights[] = {{"qkv", 3 * dim, dim, m.config.layers},
                            {"proj", dim, dim, m.config.layers},
                            {"up", 4 * dim, dim, m.config.layers},
                            {"down", dim, 4 * dim, m.config.layers},
                            {"head", vocab, dim, 1}};
  double total = 0, total_flops = 0;
  for (const Weight& w : weights) {
    const int runs = flops(rows, w.out, w.in) > 2e10 ? 1 : 3;
    const double seconds = product_seconds(Product::forward, rows, w.out, w.in, runs) +
                           product_seconds(Product::input_gradient, rows, w.in, w.out, runs) +
                           product_seconds(Product::weight_gradient, w.out, w.in, rows, runs);
    const double work = 3 * flops(rows, w.out, w.in);
    report.row(message("{}: {} {} x {} x {}", m.name, w.name, rows, w.out, w.in),
               work / seconds / 1e9, "GFLOP/s");
    total += seconds * static_cast<double>(w.count);
    total_flops += work * static_cast<double>(w.count);
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

int main(int argc, char** argv) {
  std::string shapes = "yes";
  bench::Report report(argc, argv, {{"--shapes", &shapes, "yes|no"}});
  const cpu::FmaLoop loop = cpu::fma_loop();
  report.row(message("multiply-add, {}", loop.name), bench::fma_peak(loop) / 1e9, "GFLOP/s");

  const double last_level = cache_bytes(3, 8e6);
  const double l2 = cache_bytes(2, 1e6) * num_threads();
  report.row("last-level cache", last_level / 1048576, "MiB");
  bench::Rates rates;
  rates.block = copy_row(report, "half of L2", l2 / 2);
  rates.near = copy_row(report, "quarter of the last-level cache", last_level / 4);
  rates.far = copy_row(report, "memory", std::max(2.56e8, 4 * last_level));
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
}
