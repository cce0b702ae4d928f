// The CUDA kernels on a GPU: memory-bound ones relative to the copy rate of the same run, attention
// and products in FLOP/s, and the cost of launches. bench/peers/gpu_ops.py measures PyTorch at the
// same shapes in the same way. With --resume, rows that the file of --json has are not measured
// again. Without a GPU the exit status is 77.
#include <algorithm>
#include <string_view>

#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/allocator.h"
#include "weft/core/cuda.h"

using namespace weft;

namespace {

struct Part {
  std::string_view name;
  void (*run)(bench::GpuBench& bench);
};

constexpr Part kParts[] = {
    {"norm", bench::norm_part},
    {"rows", bench::rows_part},
    {"elementwise", bench::elementwise_part},
    {"optimizer", bench::optimizer_part},
    {"attention", bench::attention_part},
    {"products", bench::products_part},
    {"overhead", bench::overhead_part},
};

/// Whether the comma-separated list names the part. An empty list names all.
bool wanted(const std::string& list, std::string_view part) {
  const std::string padded = "," + list + ",";
  return list.empty() || padded.find("," + std::string(part) + ",") != std::string::npos;
}

void check_names(const std::string& list) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    std::string known;
    bool found = false;
    for (const Part& part : kParts) {
      found = found || part.name == name;
      known += (known.empty() ? "" : ", ") + std::string(part.name);
    }
    check(found, "--only: one of {}, got {}", known, name);
    begin = end + 1;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  std::string only, quick, resume;
  bench::Report report(
      argc, argv,
      {{"--only", &only, "PART,..."}, {"--quick", &quick, ""}, {"--resume", &resume, ""}});
  check_names(only);
  check(resume.empty() || report.has_file(), "--resume: needs --json");
  if (!resume.empty()) report.resume();
  if (cuda::device_count() == 0) {
    std::fprintf(stderr, "bench_gpu: no GPU here\n");
    return 77;
  }
  bench::GpuBench bench(report, !quick.empty());
  bench.warm_up();
  bench.copy_rate();
  int failed = 0;
  for (const Part& part : kParts) {
    if (!wanted(only, part.name)) continue;
    try {
      part.run(bench);
    } catch (const Error& e) {  // the other parts still run
      std::fprintf(stderr, "bench_gpu: %s\n", e.what());
      ++failed;
    }
    release_cached_memory(bench::kGpu);
  }
  return std::max(report.finish(), failed > 0 ? 1 : 0);
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
