#pragma once
#include <cstdint>
#include <string>

#include "weft/autograd/fp8.h"
#include "weft/core/fields.h"
#include "weft/distributed/lane.h"
#include "weft/distributed/overlap.h"
#include "weft/distributed/shard_experts.h"
#include "weft/optim/make.h"
#include "weft/optim/schedule.h"

namespace weft::train {

/// What waits outside of the device's memory while it is not needed: a set.
enum class OffloadWhat : std::uint8_t { none = 0, activations = 1, states = 2 };

}  // namespace weft::train

template <>
inline constexpr bool weft::is_word_set<weft::train::OffloadWhat> = true;

namespace weft::train {

/// Upper bound for threads that a flag requests, for compute or as ranks: each is really started.
inline constexpr std::int64_t kMostThreads = 1024;
inline constexpr std::int64_t kMostRanks = 1'000'000;
inline constexpr double kMostCount = INT32_MAX;

inline constexpr Word<DType> kStateDTypeWords[] = {
    {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"fp8", DType::e4m3}};

/// The dtype of AdamW's second moment. automatic: that of the first moment, but f32 if that is
/// bf16, which rounds slow decay away.
enum class SecondMoment : std::uint8_t { automatic, f32, bf16, f16, fp8 };
inline constexpr Word<SecondMoment> kSecondMomentWords[] = {{"auto", SecondMoment::automatic},
                                                            {"f32", SecondMoment::f32},
                                                            {"bf16", SecondMoment::bf16},
                                                            {"f16", SecondMoment::f16},
                                                            {"fp8", SecondMoment::fp8}};

/// automatic: stochastic where nearest rounding would lose small steps, see
/// OptimizerOptions::rounds_stochastically().
enum class StateRounding : std::uint8_t { automatic, nearest, stochastic };
inline constexpr Word<StateRounding> kStateRoundingWords[] = {
    {"auto", StateRounding::automatic},
    {"nearest", StateRounding::nearest},
    {"stochastic", StateRounding::stochastic}};

/// Optimizer settings and the learning rate schedule.
struct OptimizerOptions {
  double lr = 1e-3, min_lr = -1;
  std::int64_t warmup = -1;
  optim::Schedule::Kind schedule = optim::Schedule::Kind::cosine;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1;
  optim::Kind kind = optim::Kind::adamw;
  DType state_dtype = DType::f32;
  SecondMoment second_moment = SecondMoment::automatic;
  optim::MasterWeights master_weights = optim::MasterWeights::f32;
  StateRounding rounding = StateRounding::automatic;
  double loss_scale = -1;
  std::int64_t loss_scale_steps = 2000;

  template <class V>
  void fields(V& v) {
    v("lr", lr, "highest learning rate", above(0).shown_first());
    v("min-lr", min_lr, "learning rate at the end; below 0: a tenth of --lr");
    v("warmup", warmup, "steps of linear warm-up; below 0: a twentieth of --steps");
    v("schedule", schedule, optim::kScheduleWords, "course of the learning rate after warm-up",
      any().shown_first());
    const auto of_adamw = [this](Rule rule) {
      return rule.needs(kind != optim::Kind::sgd, "optimizer adamw, got sgd");
    };
    v("weight-decay", weight_decay,
      "weight decay of matrices: decoupled with AdamW; with SGD L2, added to the gradient",
      at_least(0));
    v("beta1", beta1, "AdamW's first moment; SGD's momentum", fraction());
    v("beta2", beta2, "AdamW's second moment", of_adamw(fraction()));
    v("eps", eps, "AdamW's epsilon", of_adamw(above(0)));
    v("clip", clip, "largest gradient norm; 0: no clipping", at_least(0));
    v("optimizer", kind, optim::kKindWords, "what turns gradients into steps", any().shown_first());
    v("state-dtype", state_dtype, kStateDTypeWords,
      "AdamW's moments; bf16: the first one only; fp8: e4m3 with a scale for 32 values",
      of_adamw(any()));
    v("second-moment-dtype", second_moment, kSecondMomentWords,
      "AdamW's second moment; auto: by --state-dtype", of_adamw(any()));
    v("master-weights", master_weights, optim::kMasterWeightsWords,
      "with --dtype bf16 or fp8: f32 copies; remainder: the same values in 2 bytes fewer per "
      "weight; or none; f16 always has f32 copies");
    v("rounding", rounding, kStateRoundingWords,
      "of moments in bf16 and fp8, and of weights without masters; auto: stochastic where small "
      "steps would be lost");
    v("loss-scale", loss_scale,
      "first scale of the loss in backward, at least 1; a step whose gradients overflow is skipped "
      "and halves it; 0: none; below 0: 65536 with --dtype f16, else none");
    v("loss-scale-steps", loss_scale_steps, "steps without overflow that double the loss scale",
      at_least(1));
  }
  DType second_moment_dtype() const;
  /// With automatic rounding: for an fp8 moment, a bf16 second moment with beta2 above 0.99, and
  /// bf16 weights without master weights.
  bool rounds_stochastically() const;
  /// The options that optim::make() takes. seed: of stochastic rounding.
  optim::AnyOptions any_options(std::int64_t seed) const;
  optim::Schedule lr_schedule(std::int64_t steps) const;
};

inline constexpr Word<DType> kModelDTypeWords[] = {{"f32", DType::f32},
                                                   {"bf16", DType::bf16},
                                                   {"f16", DType::f16},
                                                   {"f64", DType::f64},
                                                   {"fp8", DType::e4m3}};

/// How --dtype fp8 scales the operands of products; see fp8::Recipe.
enum class Fp8Recipe : std::uint8_t { current, current_pow2, delayed, block };
inline constexpr Word<Fp8Recipe> kFp8RecipeWords[] = {{"current", Fp8Recipe::current},
                                                      {"current-pow2", Fp8Recipe::current_pow2},
                                                      {"delayed", Fp8Recipe::delayed},
                                                      {"block", Fp8Recipe::block}};
inline constexpr Word<fp8::BackwardOverride> kFp8BackwardWords[] = {
    {"fp8", fp8::BackwardOverride::none},
    {"high-precision", fp8::BackwardOverride::high_precision},
    {"dequantized", fp8::BackwardOverride::dequantized}};

struct MachineOptions {
  std::string device = "cpu";
  DType dtype = DType::f32;  ///< e4m3: products in FP8, everything else as with bf16
  Fp8Recipe fp8_recipe = Fp8Recipe::current;
  std::int64_t fp8_history = 1024;
  fp8::BackwardOverride fp8_backward = fp8::BackwardOverride::none;
  bool fp8_weights = false;
  bool graph = false;
  std::int64_t threads = 0, seed = 1;
  bool deterministic = false;
  double peak_tflops = 0;

  template <class V>
  void fields(V& v) {
    v.group("Machine");
    v("device", device, "cpu, cuda or cuda:N, meta or meta:cuda (shapes and bytes only)",
      any().shown_first());
    v("dtype", dtype, kModelDTypeWords, "what the model computes in; fp8: bf16, and FP8 products",
      any().shown_first());
    v("fp8-recipe", fp8_recipe, kFp8RecipeWords,
      "scales of FP8: from each tensor, rounded to powers of two, from the steps before, or by "
      "block",
      any().needs(is_fp8(), "dtype fp8"));
    v("fp8-history", fp8_history, "steps that the scales of --fp8-recipe delayed come from",
      between(1, 1 << 20).needs(fp8_recipe == Fp8Recipe::delayed, "fp8-recipe delayed"));
    v("fp8-backward", fp8_backward, kFp8BackwardWords,
      "what the products of backward multiply: FP8, the operands before rounding, or what forward "
      "multiplied",
      any().needs(is_fp8(), "dtype fp8"));
    v("fp8-weights", fp8_weights,
      "store the weights of FP8 products as FP8 and as f32 master weights alone, not as bf16 too",
      any().needs(is_fp8(), "dtype fp8"));
    v("graph", graph, "on a GPU: capture a step once and replay it",
      any().needs(device.find("cuda") != device.npos, "device cuda, got " + device));
    v("threads", threads, "threads; 0: all processors", between(0, kMostThreads).shown_first());
    v("seed", seed, "seed of weights, data order and dropout", at_least(0).shown_first());
    v("deterministic", deterministic, "the same bits for any number of threads");
    v("peak-tflops", peak_tflops,
      "what the devices of the run reach together, in 10^12 FLOP/s, for mfu in metrics.jsonl; 0: "
      "measured where the products are f32 on the CPU of one process",
      at_least(0));
  }
  bool is_fp8() const { return dtype == DType::e4m3; }
  /// The dtype of the model's tensors.
  DType model_dtype() const { return is_fp8() ? DType::bf16 : dtype; }
  /// How products are rounded; nothing without --dtype fp8.
  std::optional<fp8::Recipe> recipe() const;
};

/// Sets process-wide state: the number of threads, and deterministic mode.
void apply(const MachineOptions& options);

/// The transport of tensors between ranks.
enum class Backend : std::uint8_t { automatic, thread, mpi, tcp, nccl, fake };
inline constexpr Word<Backend> kBackendWords[] = {
    {"auto", Backend::automatic}, {"thread", Backend::thread}, {"mpi", Backend::mpi},
    {"tcp", Backend::tcp},        {"nccl", Backend::nccl},     {"fake", Backend::fake}};

inline constexpr Word<DType> kGradReduceWords[] = {{"f32", DType::f32}, {"bf16", DType::bf16}};

struct ParallelOptions {
  std::int64_t ranks = 0;
  Backend backend = Backend::automatic;
  std::int64_t rank = 0, dp = 0, tp = 1;
  bool tp_across_machines = false, sp = false;
  distributed::Overlap tp_overlap = distributed::Overlap::none;
  std::int64_t ep = 1, etp = 0;
  distributed::Dispatcher dispatcher = distributed::Dispatcher::all_to_all;
  bool delay_weight_gradients = false;
  nn::TokenForm ep_dtype = nn::TokenForm::model;
  bool zero = false, fsdp = false;
  std::int64_t reshard_depth = -1, dp_replicate = 1;
  DType grad_reduce = DType::f32;
  std::int64_t bucket_size = 0;
  std::int64_t lanes = distributed::kLanes;
  double timeout = 600;

  template <class V>
  void fields(V& v) {
    const Rule count = between(0, kMostRanks);
    v.group("Layout");
    v("ranks", ranks,
      "ranks as threads of this process, on one GPU with --device cuda; 0: one, or those of the "
      "launcher",
      count.shown_first());
    v("backend", backend, kBackendWords,
      "what moves tensors between ranks: nccl with a GPU for each rank, fake with --device meta; "
      "auto: thread with --ranks, under mpirun or srun mpi, under launch.sh tcp, on GPUs nccl");
    v("rank", rank, "with --device meta: the rank to plan for", count);
    v("dp", dp, "ranks that share the sequences of a step; 0: what the others leave over",
      count.shown_first());
    v("tp", tp, "ranks that share each layer's heads and hidden units",
      between(1, kMostRanks).shown_first());
    v("tp-across-machines", tp_across_machines,
      "ranks of --tp may be on several machines, whose link is slower than one machine's",
      any().needs(tp > 1, message("tp of at least 2, got {}", tp)));
    v("sp", sp, "with --tp: these ranks share the tokens between such layers",
      any().needs(tp > 1, message("tp of at least 2, got {}", tp)));
    v("tp-overlap", tp_overlap, distributed::kOverlapWords,
      "with --tp: products hide what is gathered and summed beside them; without --sp, the sums of "
      "input gradients",
      any().needs(tp > 1, message("tp of at least 2, got {}", tp)));
    v("ep", ep, "ranks that share the experts of a layer", between(1, kMostRanks).shown_first());
    v("etp", etp, "ranks that share the hidden units of an expert; 0: as --tp", count);
    v("dispatcher", dispatcher, distributed::kDispatcherWords,
      "how tokens get to experts on other ranks: each to those it needs, or all to all ranks of "
      "--ep, for few ranks",
      any().needs(ep > 1 || tp > 1, message("ep of at least 2, got {}", ep)));
    v("delay-weight-gradients", delay_weight_gradients,
      "backward computes the weight gradients of experts while those of tokens are on their way",
      any().needs(ep > 1 || tp > 1,
                  message("ep or tp of at least 2, got ep {} and tp {}", ep, tp)));
    v("ep-dtype", ep_dtype, nn::kTokenFormWords,
      "what tokens are sent to experts in: the model's dtype, or fp8, half of bf16's bytes; one "
      "rank rounds them too");
    v("zero", zero, "each rank of --dp keeps a part of the optimizer's state", any().shown_first());
    v("fsdp", fsdp,
      "each rank of --dp keeps a part of weights, gradients and optimizer state; weights are "
      "gathered a block at a time",
      any().shown_first());
    v("reshard-depth", reshard_depth,
      "with --fsdp: so many units of the model, such as the embedding and blocks in order, free "
      "their gathered weights after each use, the others after a step; below 0: all; 0: none",
      any().needs(fsdp, "fsdp"));
    v("dp-replicate", dp_replicate,
      "groups of ranks of --dp that each hold all of what --zero or --fsdp cuts",
      between(1, kMostRanks).needs(zero || fsdp, "fsdp or zero"));
    v("grad-reduce", grad_reduce, kGradReduceWords,
      "the dtype in which several ranks keep, sum and send gradients; bf16: half of the bytes, and "
      "sums rounded to 8 bits");
    v("bucket-size", bucket_size,
      "gradients that leave together while backward runs; 0: an eighth of them all, within bounds",
      at_least(0));
    v("lanes", lanes,
      "queues of communication that run beside each other: 3: layers, gradients and parameters, "
      "stages of a pipeline; 2: gradients and parameters, all else; 1: all in call order",
      between(1, distributed::kLanes));
    v("timeout", timeout, "seconds that ranks wait for one that does not come",
      Rule{.low = 0, .high = 1e8, .low_is_out = true});
  }
};

inline constexpr Word<OffloadWhat> kOffloadWords[] = {{"none", OffloadWhat::none},
                                                      {"activations", OffloadWhat::activations},
                                                      {"states", OffloadWhat::states}};

struct OffloadFlags {
  OffloadWhat what = OffloadWhat::none;
  std::string folder;
  double fraction = 1;
  std::int64_t least_bytes = 1 << 20;

  template <class V>
  void fields(V& v) {
    const bool on = what != OffloadWhat::none;
    v("offload", what, kOffloadWords,
      "what waits in a file of --offload-folder, on a GPU in pinned memory of the host, while it "
      "is not needed: what blocks keep for backward, the optimizer's states; or both with a comma");
    v("offload-folder", folder, "on the CPU: an existing folder for that file, which has no name",
      any().needs(on, "offload, got none"));
    v("offload-fraction", fraction, "activations: of so many of the blocks, from the first one",
      between(0, 1).needs(on, "offload, got none"));
    v("offload-least", least_bytes, "activations: bytes of the smallest tensor that goes",
      at_least(0).needs(on, "offload, got none"));
  }
  bool has(OffloadWhat part) const {
    return (static_cast<unsigned>(what) & static_cast<unsigned>(part)) != 0;
  }
};

/// Whether the energy of each step is measured.
enum class Energy : std::uint8_t { automatic, on, off };
inline constexpr Word<Energy> kEnergyWords[] = {
    {"auto", Energy::automatic}, {"on", Energy::on}, {"off", Energy::off}};

/// Whether checkpoints are written while training goes on.
enum class AsyncSave : std::uint8_t { on, off };
inline constexpr Word<AsyncSave> kAsyncSaveWords[] = {{"on", AsyncSave::on},
                                                      {"off", AsyncSave::off}};

struct RunOptions {
  std::string weights;
  bool resume = false;
  std::int64_t save_every = 0, keep = 2, eval_every = 0, log_every = 10;
  bool norms = false;
  Energy energy = Energy::automatic;
  bool keep_best = false;
  std::int64_t sample_every = 0;
  bool profile = false;
  AsyncSave async_save = AsyncSave::on;

  template <class V>
  void fields(V& v) {
    v("weights", weights, "a .safetensors file of a whole model to start from");
    v("resume", resume, "go on from the last checkpoint in --out", any().shown_first());
    v("save-every", save_every, "steps between checkpoints; 0: only the last step",
      at_least(0).shown_first());
    v("keep", keep, "checkpoints to keep; 0: all", between(0, kMostCount));
    v("async-save", async_save, kAsyncSaveWords,
      "write checkpoints while training goes on, from a copy in the host's memory");
    v("keep-best", keep_best,
      "also keep the checkpoint of the lowest validation loss, in OUT/best");
    v("eval-every", eval_every, "steps between evaluations; 0: only the last step",
      at_least(0).shown_first());
    v("sample-every", sample_every, "steps between samples of what the model writes; 0: none",
      at_least(0).shown_first());
    v("log-every", log_every, "steps between progress lines", at_least(1));
    v("norms", norms, "metrics.jsonl has the norm of all parameters and how many gradients are 0");
    v("energy", energy, kEnergyWords,
      "joules in metrics.jsonl, of all machines or GPUs of the run; auto: where they can be read");
    v("profile", profile, "time every op: a table at the end and a flame graph in OUT/profile.svg");
  }
};

/// The settings of a training run, for any model. fields() declares them: flags, keys of a --config
/// file and rules all derive from it. A program with more settings derives from this struct.
struct Options {
  std::string out = "out";
  std::int64_t steps = 1000, batch = 8, micro_batch = 0;
  OptimizerOptions optimizer = {};
  MachineOptions machine = {};
  OffloadFlags offload = {};
  ParallelOptions parallel = {};
  RunOptions run = {};
  std::string program = "train";  ///< used in messages; not a flag
  std::string config = {};        ///< text of config.toml; empty: generated from these options
  /// Nothing is written to standard output; standard error still says why a run failed. Not a flag.
  bool quiet = false;

  template <class V>
  void fields(V& v) {
    v.group("Step");
    v("batch", batch, "rows of one optimizer step", between(1, kMostCount).shown_first());
    v("micro-batch", micro_batch, "rows of one forward pass; 0: all of a rank's",
      between(0, kMostCount).shown_first());
    v("steps", steps, "optimizer steps in all; a resumed run goes on to it",
      at_least(1).shown_first());
    optimizer.fields(v);
    machine.fields(v);
    offload.fields(v);
    parallel.fields(v);
    v.group("Run");
    v("out", out, "folder for checkpoints, metrics.jsonl and loss.svg", any().shown_first());
    run.fields(v);
  }
  /// Throws Error for the first violated rule between settings.
  void check() const;
  /// The first scale of the loss, or 0 for none.
  double loss_scale() const;
};

}  // namespace weft::train
