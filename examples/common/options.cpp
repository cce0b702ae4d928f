#include "weft/examples/common/options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/examples/common/command_line.h"
#include "weft/examples/common/config_file.h"
#include "weft/io/json.h"

namespace weft::train {
namespace {

using Names = std::initializer_list<const char*>;

constexpr std::int64_t kMostRanks = 1'000'000;
constexpr std::int64_t kMostCount = INT32_MAX;

struct Preset {
  const char* name;
  std::int64_t layers, heads, dim, seq, batch;
};
constexpr Preset kPresets[] = {{"tiny", 4, 4, 128, 256, 8},
                               {"small", 6, 6, 384, 256, 12},
                               {"gpt2-124m", 12, 12, 768, 1024, 4}};

// Flags of the stable command line whose feature does not exist yet.
struct Reserved {
  const char* flag;
  const char* feature;
};
constexpr Reserved kReserved[] = {
    {"--trace", "writing a trace"},
    {"--pp", "pipeline parallelism"},
    {"--cp", "context parallelism"},
    {"--fsdp", "sharded parameters"},
};

std::string join(Names names) {
  std::string out;
  for (const char* n : names) out += (out.empty() ? "" : ", ") + std::string(n);
  return out;
}

void check_one_of(const char* flag, const std::string& value, Names allowed) {
  const bool ok =
      std::any_of(allowed.begin(), allowed.end(), [&](const char* a) { return value == a; });
  check(ok, "{}: must be one of {}, got '{}'", flag, join(allowed), value);
}

// config.toml must be able to say it.
void check_text(const char* flag, const std::string& value) {
  check(io::find_invalid_utf8(value) == std::string::npos, "{}: must be UTF-8, got '{}'", flag,
        value);
}

void check_at_least(const char* flag, double value, double low) {
  check(value >= low, "{}: must be at least {}, got {}", flag, low, value);
}

void check_at_most(const char* flag, std::int64_t value, std::int64_t high) {
  check(value <= high, "{}: must be at most {}, got {}", flag, high, value);
}

void check_fraction(const char* flag, double value) {
  check(value >= 0 && value < 1, "{}: must be in [0, 1), got {}", flag, value);
}

// Calls v(flag, value, help, group) for every option, in the order of --help and of the config
// file.
template <class V>
void each_option(Options& o, V&& v) {
  v("--data", o.data, "text files, or a .bin file of uint16 tokens", "Data");
  v("--tokenizer", o.tokenizer, "bytes", "Data");
  v("--val-fraction", o.val_fraction, "share of the data held out, taken from its end", "Data");

  v("--arch", o.arch, "gpt2 (learned positions, LayerNorm, GELU) or llama (rope, RMSNorm, SwiGLU)",
    "Model");
  v("--layers", o.layers, "number of blocks", "Model");
  v("--heads", o.heads, "attention heads", "Model");
  v("--kv-heads", o.kv_heads, "key and value heads; 0: as many as heads", "Model");
  v("--dim", o.dim, "width of the residual stream", "Model");
  v("--ffn", o.ffn, "hidden width of the MLP; 0: 4 dim (gpt2), 8/3 dim (llama)", "Model");
  v("--seq", o.seq, "tokens in a sequence", "Model");
  v("--vocab", o.vocab, "vocabulary; 0: the tokenizer's", "Model");
  v("--dropout", o.dropout, "probability of dropping an activation", "Model");
  v("--qk-norm", o.qk_norm, "RMSNorm on queries and keys", "Model");
  v("--rope-theta", o.rope_theta, "base of the rotary frequencies (llama)", "Model");
  v("--window", o.window, "keys a query sees, itself included; 0: all before it", "Model");
  v("--attention", o.attention, "mha (with --kv-heads) or mla, latent attention (llama)", "Model");
  v("--q-lora", o.q_lora, "mla: width of the queries' latent; 0: none", "Model");
  v("--kv-lora", o.kv_lora, "mla: width of the keys' and values' latent; 0: 4 dim / heads",
    "Model");
  v("--qk-nope", o.qk_nope, "mla: elements of a head without position; 0: dim / heads", "Model");
  v("--qk-rope", o.qk_rope, "mla: rotated elements of a head; 0: half of dim / heads", "Model");
  v("--v-head", o.v_head, "mla: elements of a value head; 0: dim / heads", "Model");
  v("--pattern", o.pattern,
    "one letter a layer, repeated: a attention, d gated delta net, as in ddda; empty: attention",
    "Model");
  v("--delta-key-heads", o.delta_key_heads,
    "delta net: heads of queries and keys; 0: as many as heads", "Model");
  v("--delta-value-heads", o.delta_value_heads,
    "delta net: heads of values, a multiple of those of keys; 0: as many as heads", "Model");
  v("--delta-key-dim", o.delta_key_dim, "delta net: elements of a key head; 0: dim / heads",
    "Model");
  v("--delta-value-dim", o.delta_value_dim, "delta net: elements of a value head; 0: dim / heads",
    "Model");
  v("--delta-conv", o.delta_conv, "delta net: tokens its convolution sees, 2 to 8; 0: 4", "Model");
  v("--tie", o.tie, "share embedding and head: auto (gpt2 yes, llama no), on, off", "Model");
  v("--mtp", o.mtp, "multi-token prediction: tokens predicted beyond the next one; 0: none",
    "Model");
  v("--mtp-weight", o.mtp_weight, "weight of the mean loss of the --mtp depths", "Model");
  v("--mtp-repeat", o.mtp_repeat, "one layer for all --mtp depths", "Model");
  v("--mtp-detach", o.mtp_detach, "--mtp trains its own layers only", "Model");

  v("--experts", o.experts, "experts in place of an MLP; 0: none", "Experts");
  v("--topk", o.topk, "experts that a token goes to", "Experts");
  v("--expert-ffn", o.expert_ffn,
    "hidden width of an expert; 0: a token's experts together are as wide as the MLP", "Experts");
  v("--shared-ffn", o.shared_ffn,
    "hidden width of an expert for all tokens; 0: none; below 0: as wide as the others", "Experts");
  v("--shared-gate", o.shared_gate, "a gate on the expert for all tokens", "Experts");
  v("--latent", o.latent, "numbers of a token that the experts work on; 0: all of --dim",
    "Experts");
  v("--moe-every", o.moe_every, "every so many layers have experts, the first one too", "Experts");
  v("--router", o.router, "softmax (over the chosen experts) or sigmoid", "Experts");
  v("--groups", o.groups, "groups that the experts stand in; 0: no groups", "Experts");
  v("--group-topk", o.group_topk, "groups that a token may choose from", "Experts");
  v("--aux", o.aux,
    "what evens out the load: aux, seq or global (a loss over the batch, a sequence, a step), bias "
    "(no loss: a bias on the choice; needs --router sigmoid) or none",
    "Experts");
  v("--aux-coeff", o.aux_coeff, "weight of that loss", "Experts");
  v("--bias-rate", o.bias_rate, "step of that bias", "Experts");
  v("--z-loss", o.z_loss, "weight of the loss on large router logits", "Experts");
  v("--capacity", o.capacity,
    "an expert takes at most this times its even share of tokens; 0: all that come", "Experts");
  v("--force-balance", o.force_balance, "route by chance, for benchmarks", "Experts");

  v("--batch", o.batch, "sequences of one optimizer step", "Step");
  v("--micro-batch", o.micro_batch, "sequences of one forward pass; 0: all of a rank's", "Step");
  v("--steps", o.steps, "optimizer steps in all; a resumed run goes on to it", "Step");
  v("--lr", o.lr, "highest learning rate", "Step");
  v("--min-lr", o.min_lr, "learning rate at the end; below 0: a tenth of --lr", "Step");
  v("--warmup", o.warmup, "steps of linear warm-up; below 0: a twentieth of --steps", "Step");
  v("--schedule", o.schedule, "constant, linear, cosine or wsd", "Step");
  v("--weight-decay", o.weight_decay, "decoupled weight decay of matrices", "Step");
  v("--beta1", o.beta1, "AdamW's first moment; SGD's momentum", "Step");
  v("--beta2", o.beta2, "AdamW's second moment", "Step");
  v("--eps", o.eps, "AdamW's epsilon", "Step");
  v("--clip", o.clip, "largest gradient norm; 0: no clipping", "Step");
  v("--optimizer", o.optimizer, "adamw or sgd", "Step");
  v("--state-dtype", o.state_dtype, "AdamW's moments: f32, bf16 (first moment only) or f16",
    "Step");
  v("--master-weights", o.master_weights,
    "with --dtype bf16: f32 copies, or remainder: the same numbers in 2 bytes a weight less",
    "Step");

  v("--device", o.device, "cpu, cuda or cuda:N, meta or meta:cuda (shapes and bytes only)",
    "Machine");
  v("--dtype", o.dtype, "f32, bf16 or f64", "Machine");
  v("--graph", o.graph, "on a GPU: capture a step once and replay it", "Machine");
  v("--threads", o.threads, "threads; 0: all processors", "Machine");
  v("--seed", o.seed, "seed of weights, data order and dropout", "Machine");
  v("--deterministic", o.deterministic, "the same bits for any number of threads", "Machine");
  v("--recompute", o.recompute, "none, selective or full: trade time for memory", "Machine");

  v("--ranks", o.ranks,
    "ranks as threads of this process, on one GPU with --device cuda; 0: one, or those of the "
    "launcher",
    "Layout");
  v("--backend", o.backend,
    "what moves tensors between ranks: thread, mpi, nccl (a GPU for each rank), fake (with "
    "--device meta); auto: thread with --ranks, under a launcher mpi, on GPUs nccl",
    "Layout");
  v("--rank", o.rank, "with --device meta: the rank to plan for", "Layout");
  v("--dp", o.dp, "ranks that share the sequences of a step; 0: what the others leave over",
    "Layout");
  v("--tp", o.tp, "ranks that share each layer's heads and hidden units", "Layout");
  v("--sp", o.sp, "with --tp: these ranks share the tokens between such layers", "Layout");
  v("--tp-overlap", o.tp_overlap,
    "with --sp: none, ring or pipeline: products hide what is gathered and summed beside them",
    "Layout");
  v("--ep", o.ep, "ranks that share the experts of a layer", "Layout");
  v("--etp", o.etp, "ranks that share the hidden units of an expert; 0: as --tp", "Layout");
  v("--zero", o.zero, "each rank of --dp keeps a part of the optimizer's state", "Layout");
  v("--bucket-size", o.bucket_size,
    "gradients that leave together while backward runs; 0: an eighth of them all, within bounds",
    "Layout");
  v("--timeout", o.timeout, "seconds that ranks wait for one that does not come", "Layout");

  v("--out", o.out, "folder for checkpoints, metrics.jsonl and loss.svg", "Run");
  v("--weights", o.weights, "a .safetensors file of a whole model to start from", "Run");
  v("--resume", o.resume, "go on from the last checkpoint in --out", "Run");
  v("--save-every", o.save_every, "steps between checkpoints; 0: only the last step", "Run");
  v("--keep", o.keep, "checkpoints to keep; 0: all", "Run");
  v("--eval-every", o.eval_every, "steps between evaluations; 0: only the last step", "Run");
  v("--log-every", o.log_every, "steps between progress lines", "Run");
}

void bind_options(CommandLine& line, Options& o) {
  each_option(o, [&line](const char* flag, auto& value, const char* help, const char* group) {
    line.add(flag, value, help, group);
  });
  for (const Reserved& r : kReserved)
    line.refuse(r.flag, r.feature, message("{} does not exist yet; remove the flag", r.feature),
                "Reserved (refused until the feature exists)");
}

void apply_preset(const std::string& name, Options& o) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    o.layers = p.layers;
    o.heads = p.heads;
    o.dim = p.dim;
    o.seq = p.seq;
    o.batch = p.batch;
    if (name == "gpt2-124m") o.vocab = 50257;
    return;
  }
  check(false, "--preset: must be one of tiny, small, gpt2-124m, got '{}'", name);
}

// A preset sets defaults, so it has to be known before the other flags are read.
std::string preset_of(const std::vector<std::string>& args) {
  std::string name;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--preset" && i + 1 < args.size()) name = args[i + 1];
    if (args[i].rfind("--preset=", 0) == 0) name = args[i].substr(9);
  }
  return name;
}

void check_experts(const Options& o) {
  check_one_of("--router", o.router, {"softmax", "sigmoid"});
  check_one_of("--aux", o.aux, {"aux", "seq", "global", "bias", "none"});
  for (const auto& [flag, value] : {std::pair{"--aux-coeff", o.aux_coeff},
                                    {"--bias-rate", o.bias_rate},
                                    {"--z-loss", o.z_loss},
                                    {"--capacity", o.capacity}})
    check_at_least(flag, value, 0);
  check(o.experts > 0 || o.latent == 0, "--latent: needs --experts, got {} without", o.latent);
  check(o.experts > 0 || !o.shared_gate, "--shared-gate: needs --experts");
  check(o.experts > 0 || o.capacity == 0, "--capacity: needs --experts");
  check(o.experts > 0 || o.z_loss == 0, "--z-loss: needs --experts");
  check(o.experts > 0 || !o.force_balance, "--force-balance: needs --experts");
  if (o.experts == 0) return;
  check(!o.shared_gate || o.shared_ffn != 0, "--shared-gate: needs --shared-ffn, got 0");
  check(o.aux != "bias" || o.router == "sigmoid", "--aux: bias needs --router sigmoid, got {}",
        o.router);
  check(!o.graph || o.capacity > 0,
        "--graph: with --experts needs --capacity, or the host reads how many tokens each expert "
        "got");
}

void check_layout(const Options& o, Device device) {
  check_one_of("--backend", o.backend, {"auto", "thread", "mpi", "nccl", "fake"});
  for (const auto& [flag, value, low] : {std::tuple{"--ranks", o.ranks, 0},
                                         {"--rank", o.rank, 0},
                                         {"--dp", o.dp, 0},
                                         {"--tp", o.tp, 1},
                                         {"--ep", o.ep, 1},
                                         {"--etp", o.etp, 0}}) {
    check_at_least(flag, static_cast<double>(value), low);
    check_at_most(flag, value, kMostRanks);
  }
  if (!device.is_meta()) check_at_most("--ranks", o.ranks, kMostThreads);
  check(o.rank == 0 || device.is_meta(), "--rank: needs --device meta, got {}", device);
  check(std::max<std::int64_t>(o.dp, 1) * o.tp <= kMostRanks,
        "--dp: with --tp must be at most {} ranks, got {} x {}", kMostRanks, o.dp, o.tp);
  check_at_least("--bucket-size", static_cast<double>(o.bucket_size), 0);
  check(o.timeout > 0 && o.timeout <= 1e8,
        "--timeout: must be above 0 and at most 100000000, got {}", o.timeout);
  check(!o.sp || o.tp > 1, "--sp: needs --tp of at least 2, got {}", o.tp);
  check_one_of("--tp-overlap", o.tp_overlap, {"none", "ring", "pipeline"});
  check(o.sp || o.tp_overlap == "none", "--tp-overlap: needs --sp");
  check(o.ep == 1 || o.experts > 0, "--ep: needs --experts");
  check(
      !o.zero || o.state_dtype != "f16",
      "--zero: the scales of f16 states would be those of a slice; use --state-dtype f32 or bf16");
  check(o.backend != "fake" || device.is_meta(), "--backend: fake needs --device meta, got {}",
        device);
  check(o.backend != "nccl" || device.is_cuda(), "--backend: nccl needs --device cuda, got {}",
        device);
  check(!device.is_cuda() || o.backend == "nccl" || o.ranks <= kMaxGpuRanks,
        "--ranks: must be at most {} on one GPU, got {}", kMaxGpuRanks, o.ranks);
  const bool several = o.ranks > 1 || o.dp > 1 || o.tp > 1;
  check(!several || !o.graph, "--graph: does not exist yet for several ranks");
}

void check_values(const Options& o) {
  check(o.tokenizer == "bytes", "--tokenizer: only 'bytes' exists yet, got '{}'", o.tokenizer);
  check_fraction("--val-fraction", o.val_fraction);
  check_one_of("--arch", o.arch, {"gpt2", "llama"});
  for (const auto& [flag, value] : {std::pair{"--layers", o.layers},
                                    {"--heads", o.heads},
                                    {"--dim", o.dim},
                                    {"--topk", o.topk},
                                    {"--moe-every", o.moe_every},
                                    {"--seq", o.seq},
                                    {"--batch", o.batch},
                                    {"--steps", o.steps},
                                    {"--log-every", o.log_every}})
    check_at_least(flag, static_cast<double>(value), 1);
  for (const auto& [flag, value] : {std::pair{"--kv-heads", o.kv_heads},
                                    {"--ffn", o.ffn},
                                    {"--vocab", o.vocab},
                                    {"--window", o.window},
                                    {"--q-lora", o.q_lora},
                                    {"--kv-lora", o.kv_lora},
                                    {"--qk-nope", o.qk_nope},
                                    {"--qk-rope", o.qk_rope},
                                    {"--v-head", o.v_head},
                                    {"--delta-key-heads", o.delta_key_heads},
                                    {"--delta-value-heads", o.delta_value_heads},
                                    {"--delta-key-dim", o.delta_key_dim},
                                    {"--delta-value-dim", o.delta_value_dim},
                                    {"--delta-conv", o.delta_conv},
                                    {"--mtp", o.mtp},
                                    {"--experts", o.experts},
                                    {"--expert-ffn", o.expert_ffn},
                                    {"--latent", o.latent},
                                    {"--groups", o.groups},
                                    {"--group-topk", o.group_topk},
                                    {"--micro-batch", o.micro_batch},
                                    {"--threads", o.threads},
                                    {"--seed", o.seed},
                                    {"--save-every", o.save_every},
                                    {"--keep", o.keep},
                                    {"--eval-every", o.eval_every}})
    check_at_least(flag, static_cast<double>(value), 0);
  for (const auto& [flag, value] : {std::pair{"--topk", o.topk},
                                    {"--groups", o.groups},
                                    {"--group-topk", o.group_topk},
                                    {"--moe-every", o.moe_every},
                                    {"--batch", o.batch},
                                    {"--micro-batch", o.micro_batch},
                                    {"--keep", o.keep}})
    check_at_most(flag, value, kMostCount);
  check_at_most("--threads", o.threads, kMostThreads);
  Options copy = o;
  each_option(copy, []<class T>(const char* flag, const T& value, const char*, const char*) {
    if constexpr (std::is_same_v<T, double>)
      check(std::isfinite(value), "{}: must be finite, got {}", flag, value);
    if constexpr (std::is_same_v<T, std::string>) check_text(flag, value);
    if constexpr (std::is_same_v<T, std::vector<std::string>>)
      for (const std::string& item : value) check_text(flag, item);
  });
  check(static_cast<double>(o.steps) * static_cast<double>(o.batch) * static_cast<double>(o.seq) <
            9e18,
        "--steps: {} steps of {} x {} tokens are more than can be counted", o.steps, o.batch,
        o.seq);
  check(o.lr > 0, "--lr: must be above 0, got {}", o.lr);
  check(o.eps > 0, "--eps: must be above 0, got {}", o.eps);
  check(o.rope_theta > 0, "--rope-theta: must be above 0, got {}", o.rope_theta);
  check_at_least("--weight-decay", o.weight_decay, 0);
  check_at_least("--clip", o.clip, 0);
  check_at_least("--mtp-weight", o.mtp_weight, 0);
  check(o.mtp > 0 || !o.mtp_repeat, "--mtp-repeat: needs --mtp, got 0");
  check(o.mtp > 0 || !o.mtp_detach, "--mtp-detach: needs --mtp, got 0");
  check_fraction("--dropout", o.dropout);
  check_fraction("--beta1", o.beta1);
  check_fraction("--beta2", o.beta2);
  check(o.min_lr <= o.lr, "--min-lr: must be at most --lr {}, got {}", o.lr, o.min_lr);
  check_one_of("--schedule", o.schedule, {"constant", "linear", "cosine", "wsd"});
  check(o.optimizer != "muon", "--optimizer: muon does not exist yet; use adamw or sgd");
  check_one_of("--optimizer", o.optimizer, {"adamw", "sgd"});
  check_one_of("--state-dtype", o.state_dtype, {"f32", "bf16", "f16"});
  check_one_of("--master-weights", o.master_weights, {"f32", "remainder"});
  check(o.master_weights == "f32" || o.dtype == "bf16",
        "--master-weights: remainder needs --dtype bf16, got {}", o.dtype);
  check_one_of("--recompute", o.recompute, {"none", "selective", "full"});
  check_one_of("--attention", o.attention, {"mha", "mla"});
  check(o.pattern.find_first_not_of("ad") == std::string::npos,
        "--pattern: must consist of a (attention) and d (gated delta net), got '{}'", o.pattern);
  check_one_of("--tie", o.tie, {"auto", "on", "off"});
  check(o.dtype != "fp8", "--dtype: fp8 does not exist yet; use f32, bf16 or f64");
  check_one_of("--dtype", o.dtype, {"f32", "bf16", "f64"});
  const Device device = Device::parse(o.device);
  if (device.is_cuda()) cuda::check_device(device);
  check(!o.graph || device.is_gpu(), "--graph: needs --device cuda, got {}", o.device);
  check_experts(o);
  check_layout(o, device);
  const std::int64_t micro = o.micro_batch ? o.micro_batch : o.batch;
  check(o.batch % micro == 0, "--micro-batch: must divide --batch {}, got {}", o.batch, micro);
}

}  // namespace

Parsed parse_options(const Options& defaults, int argc, char** argv) {
  Parsed parsed{.options = defaults};
  Options& o = parsed.options;
  std::vector<std::string> args = expand_config(argc, argv);
  if (const std::string preset = preset_of(args); !preset.empty()) apply_preset(preset, o);
  CommandLine line("Trains a GPT on text. All times are seconds, all sizes bytes.", o.program);
  bind_options(line, o);
  std::string preset;
  bool print_config = false;
  line.add("--preset", preset, "tiny, small or gpt2-124m: sizes to start from", "Run");
  std::string config;  // taken out of the command line by expand_config(); here for --help
  line.add("--config", config, "TOML file with the same names; a flag wins", "Run");
  line.add("--print-config", print_config, "print a complete --config file and stop", "Run");
  line.add("--dry-run", o.dry_run, "check everything, print sizes and memory, and stop", "Run");
  if (!line.parse(std::move(args))) {
    parsed.exit_status = 0;
    return parsed;
  }
  check_values(o);
  if (print_config) {
    std::fputs(to_toml(o).c_str(), stdout);
    parsed.exit_status = 0;
  }
  return parsed;
}

std::string to_toml(const Options& options) {
  Options copy = options;
  std::string out;
  each_option(copy, [&out](const char* flag, const auto& value, const char*, const char*) {
    out += std::string(flag + 2) + " = " + toml_value(value) + "\n";
  });
  return out;
}

}  // namespace weft::train
