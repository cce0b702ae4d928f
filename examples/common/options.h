#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/nn/gpt.h"

namespace weft::train {

/// Threads that a flag may ask for, to compute with or as ranks: they are started.
inline constexpr std::int64_t kMostThreads = 1024;

/// Every setting of a training run, with the name of its flag. The same names are the keys of a
/// --config file; a flag wins over the file, the file over a preset, a preset over the default.
struct Options {
  std::string program = "train_gpt";  ///< in messages; not a flag
  // data
  std::vector<std::string> data;
  std::string tokenizer = "bytes";
  double val_fraction = 0.1;
  // model
  std::string arch = "gpt2";
  std::int64_t layers = 4, heads = 4, kv_heads = 0, dim = 128, ffn = 0, seq = 256, vocab = 0;
  double dropout = 0;
  bool qk_norm = false;
  double rope_theta = 10000;
  std::int64_t window = 0;
  std::string attention = "mha";
  std::int64_t q_lora = 0, kv_lora = 0, qk_nope = 0, qk_rope = 0, v_head = 0;
  std::string pattern;
  std::int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  std::int64_t delta_conv = 0;
  std::string tie = "auto";
  std::int64_t mtp = 0;
  double mtp_weight = 0.1;
  bool mtp_repeat = false, mtp_detach = false;
  // experts
  std::int64_t experts = 0, topk = 2, expert_ffn = 0, shared_ffn = 0, latent = 0, moe_every = 1;
  bool shared_gate = false;
  std::string router = "softmax", aux = "aux";
  std::int64_t groups = 0, group_topk = 0;
  double aux_coeff = 0.01, bias_rate = 1e-3, z_loss = 0, capacity = 0;
  bool force_balance = false;
  // step
  std::int64_t batch = 8, micro_batch = 0, steps = 1000;
  double lr = 1e-3, min_lr = -1;
  std::int64_t warmup = -1;
  std::string schedule = "cosine";
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1;
  std::string optimizer = "adamw", state_dtype = "f32", master_weights = "f32";
  // machine
  std::string device = "cpu", dtype = "f32";
  bool graph = false;
  std::int64_t threads = 0, seed = 1;
  bool deterministic = false;
  std::string recompute = "none";
  // layout
  std::int64_t ranks = 0, rank = 0, dp = 0, tp = 1, ep = 1, etp = 0;
  std::string backend = "auto";
  bool sp = false, zero = false;
  std::string tp_overlap = "none";
  std::int64_t bucket_size = 0;
  double timeout = 600;
  // run
  std::string out = "out", weights;
  bool resume = false;
  std::int64_t save_every = 0, keep = 2, eval_every = 0, log_every = 10;
  bool dry_run = false;

  /// Is a balance loss part of what is trained?
  bool counts_balance() const;
  nn::GptConfig model() const;  ///< vocab as given; 0 until the data is known
};

/// What main() has to do after reading the command line.
struct Parsed {
  Options options;
  int exit_status = -1;  ///< -1: go on; else leave with it (help and --print-config have printed)
};

/// Reads flags, --config and --preset on top of `defaults`, and checks every value.
/// Throws Error (Fault::user) with one line: an unknown name with the nearest match, a value out of
/// range, or a flag whose feature does not exist yet.
Parsed parse_options(const Options& defaults, int argc, char** argv);

/// A complete TOML file that reproduces the run.
std::string to_toml(const Options& options);

}  // namespace weft::train
