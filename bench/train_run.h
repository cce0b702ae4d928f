#pragma once
#include <string>
#include <vector>

#include "weft/bench/models.h"
#include "weft/core/profile.h"

/// Training steps of one model that another program can repeat: the same weights from a file, the
/// same batches by rule, and the time of each step.
namespace weft::bench {

struct TrainRun {
  std::string model;
  std::string device = "cpu",
              dtype = "f32";  ///< bf16, f16, fp8: gradient sums and optimizer state are f32
  std::string fp8_recipe = "current";
  bool fp8_weights = false;  ///< with fp8: the products' weights are stored as FP8 and f32 alone
  int warmup = 2, steps = 5;
  int pause = 0;       ///< timed steps after which the process stops itself; 0: never, see --pause
  bool graph = false;  ///< on a GPU: from the third step on, replay a captured step
  double lr = 3e-4;
  std::string init_file;    ///< .safetensors with the initial weights; empty: seed 1
  std::string export_file;  ///< receives the initial weights; empty: none
  std::string data_file;    ///< text, read as bytes; empty: synthetic tokens over the vocabulary
  bool kernels = false;     ///< profile one more step, after the others; not with `graph`
};

struct TrainResult {
  std::vector<double> seconds;  ///< of each step after the warm-up; on a GPU the means of groups
  std::vector<double> losses;   ///< of every step, including the warm-up
  double peak_rss_mib = 0;      ///< of the process, as the system reports it
  std::int64_t peak_bytes = 0;  ///< of tensors on the device after the warm-up
  double host_syncs = 0;        ///< waits of the host for the GPU per timed step
  /// Of the profiled step, by phase, op, kernel and operands, and its duration.
  std::vector<Profiler::Entry> kernels;
  double kernels_seconds = 0;
  double median_seconds() const;
};

/// Tokens [0, T] of each row of a batch: inputs are the first T, targets the last T. Row r of step
/// s has number i = s * batch + r. With data, it starts at byte 1000003 i mod (size - T). Without,
/// token t is (2654435761 (i (T + 1) + t) mod 2^32) / 256 mod vocab. A step is forward, loss,
/// backward, clipping to norm 1, AdamW and zero_grad, as in train_gpt. On a GPU the host waits once
/// per kGroup timed steps, and batches are prepared beforehand. On the meta device nothing is
/// computed: times mean nothing, and losses are NaN.
/// Throws Error on files that cannot be read, or that belong to another model.
TrainResult train(const TrainRun& run);

inline constexpr int kGroup = 5;

}  // namespace weft::bench
