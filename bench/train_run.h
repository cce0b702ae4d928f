#pragma once
#include <string>
#include <vector>

#include "weft/bench/models.h"

/// Training steps of one model as another program can repeat them: the same weights from a file and
/// the same batches by rule, with what each step took.
namespace weft::bench {

struct TrainRun {
  std::string model;
  std::string device = "cpu", dtype = "f32";  ///< bf16: sums of gradients and the optimizer are f32
  int warmup = 2, steps = 5;
  bool graph = false;  ///< on a GPU: from the third step on the steps replay one that was captured
  double lr = 3e-4;
  std::string init_file;    ///< .safetensors to start from; empty: seed 1
  std::string export_file;  ///< where the first weights go; empty: nowhere
  std::string data_file;    ///< text, read as bytes; empty: made-up tokens over the vocabulary
};

struct TrainResult {
  std::vector<double> seconds;  ///< of each step after the warm-up; on a GPU the means of groups
  std::vector<double> losses;   ///< of every step, the warm-up's too
  double peak_rss_mib = 0;      ///< of the process, by the system's count
  std::int64_t peak_bytes = 0;  ///< of tensors on the device after the warm-up
  double host_syncs = 0;        ///< how often a timed step made the host wait for the GPU
  double median_seconds() const;
};

/// Tokens [0, T] of each row of a batch: inputs are the first T, targets the last T. Row r of step
/// s has number i = s * batch + r. With data, it starts at byte 1000003 i mod (size - T). Without,
/// token t is (2654435761 (i (T + 1) + t) mod 2^32) / 256 mod vocab.
/// Forward, loss, backward, clipping to norm 1, AdamW and zero_grad, as train_gpt does them.
/// On a GPU the host waits once for every kGroup timed steps, and batches are made beforehand.
/// Throws Error on files that cannot be read, or that belong to another model.
TrainResult train(const TrainRun& run);

inline constexpr int kGroup = 5;

}  // namespace weft::bench
