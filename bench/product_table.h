#pragma once
#include <array>

#include "weft/bench/fma_peak.h"
#include "weft/bench/harness.h"
#include "weft/bench/product_sequence.h"
#include "weft/bench/step_products.h"
#include "weft/core/cpu/product.h"

/// The products of the models of bench/models.h by each engine of WEFT_GEMM.
namespace weft::bench {

inline constexpr std::array kEngines = {"weft", "onednn"};

/// Prints the GFLOP/s of all products of a step in their order by each engine, and the median ratio
/// of times; see ProductSequence. The engines alternate.
inline void sequence_row(Report& report, const StepModel& m) {
  constexpr int kTurns = 20;
  constexpr double kSeconds = 4;
  const ProductSequence step(m);
  double best[2] = {1e9, 1e9};
  std::vector<double> ratios;
  const double start = now();
  for (int turn = 0; turn < 3 || (turn < kTurns && now() - start < kSeconds); ++turn) {
    double taken[2] = {};
    for (const std::size_t e : {0, 1}) {
      cpu::set_gemm_engine(kEngines[e]);
      const double begin = now();
      step.run();
      taken[e] = now() - begin;
      if (turn > 0) best[e] = std::min(best[e], taken[e]);
    }
    if (turn > 0) ratios.push_back(taken[1] / taken[0]);
  }
  const std::string name = message("{}: in the order of a step", m.name);
  std::printf("%-50s %8.1f %8.1f %6.2f\n", name.c_str(), step.flops() / best[0] * 1e-9,
              step.flops() / best[1] * 1e-9, median(ratios));
  for (const std::size_t e : {0, 1})
    report.add(message("{}, {}", name, kEngines[e]), step.flops() / best[e] * 1e-9, "GFLOP/s");
}

/// Prints the best GFLOP/s by the in-tree product and by oneDNN, the ratio of their times (the
/// median of pairs), the share of the multiply-add peak that the in-tree product reaches, and which
/// of the two a layer uses. The engines and the peak alternate. Then sequence_row(). `model`: one
/// of kStepModels, or all. Throws Error for another name, and in a build without oneDNN.
inline void product_table(Report& report, const std::string& model) {
  constexpr double kSecondsEach = 0.3;
  const cpu::FmaLoop loop = cpu::fma_loop();
  std::printf("%-50s %8s %8s %6s %6s %7s\n", "GFLOP/s", kEngines[0], kEngines[1], "ratio", "peak",
              "chosen");
  bool found = false;
  for (const StepModel& m : kStepModels) {
    if (model != "all" && model != m.name) continue;
    found = true;
    double seconds[2] = {}, flops = 0;
    for (const StepProduct& p : step_products(m)) {
      cpu::set_gemm_engine("");
      const char* const chosen = kEngines[cpu::gemm_engine() == cpu::ProductEngine::packed ? 0 : 1];
      const auto run = p.prepared();
      double best[2] = {1e9, 1e9}, taken[2] = {}, peak = 0;
      std::vector<double> ratios;
      const double start = now();
      for (int turn = 0; turn < 4 || (turn < 200 && now() - start < kSecondsEach); ++turn) {
        peak = std::max(peak, fma_rate(loop, 1 << 14));
        for (int i : {0, 1}) {
          const std::size_t e = (turn + i) % 2;  // the second finds the operands in the caches
          cpu::set_gemm_engine(kEngines[e]);
          const double begin = now();
          run();
          taken[e] = now() - begin;
          if (turn > 0) best[e] = std::min(best[e], taken[e]);
        }
        if (turn > 0) ratios.push_back(taken[1] / taken[0]);
      }
      const double ratio = median(ratios);
      const std::string name = message("{}: {} {} x {} x {}", m.name, p.name, p.m, p.n, p.k);
      std::printf("%-50s %8.1f %8.1f %6.2f %6.2f %7s\n", name.c_str(), p.flops() / best[0] * 1e-9,
                  p.flops() / best[1] * 1e-9, ratio, p.flops() / best[0] / peak, chosen);
      std::fflush(stdout);
      for (std::size_t e : {0, 1}) {
        report.add(message("{}, {}", name, kEngines[e]), p.flops() / best[e] * 1e-9, "GFLOP/s");
        seconds[e] += best[e] * static_cast<double>(p.count);
      }
      report.add(name + ", peak", peak * 1e-9, "GFLOP/s");
      report.add(name + ", count", static_cast<double>(p.count), "a step");
      flops += p.flops() * static_cast<double>(p.count);
    }
    std::printf("%-50s %8.1f %8.1f %6.2f\n", message("{}: all of a step", m.name).c_str(),
                flops / seconds[0] * 1e-9, flops / seconds[1] * 1e-9, seconds[1] / seconds[0]);
    sequence_row(report, m);
  }
  check(found, "--products: must be all or a model for the CPU, got {}", model);
}

}  // namespace weft::bench
