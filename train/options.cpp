#include "weft/train/options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/core/parallel.h"
#include "weft/train/loss_scale.h"

namespace weft::train {
namespace {

void check_layout(const Options& o, Device device) {
  const ParallelOptions& p = o.parallel;
  if (!device.is_meta())
    weft::check(p.ranks <= kMostThreads, "--ranks: must be at most {}, got {}", kMostThreads,
                p.ranks);
  weft::check(p.rank == 0 || device.is_meta(), "--rank: needs --device meta, got {}", device);
  weft::check(std::max<std::int64_t>(p.dp, 1) * p.tp <= kMostRanks,
              "--dp: with --tp must be at most {} ranks, got {} x {}", kMostRanks, p.dp, p.tp);
  weft::check(p.backend != Backend::fake || device.is_meta(),
              "--backend: fake needs --device meta, got {}", device);
  weft::check(p.backend != Backend::nccl || device.is_cuda(),
              "--backend: nccl needs --device cuda, got {}", device);
  weft::check(!device.is_cuda() || p.backend == Backend::nccl || p.ranks <= kMaxGpuRanks,
              "--ranks: must be at most {} on one GPU, got {}", kMaxGpuRanks, p.ranks);
  const bool several = p.ranks > 1 || p.dp > 1 || p.tp > 1;
  weft::check(!several || !o.machine.graph, "--graph: does not exist yet for several ranks");
  weft::check(p.grad_reduce == DType::f32 || o.machine.dtype != DType::f64,
              "--grad-reduce: bf16 needs --dtype f32, bf16, f16 or fp8, got f64");
  weft::check(p.grad_reduce == DType::f32 || !p.fsdp,
              "--grad-reduce: must be f32 with --fsdp, got bf16");
  if (p.tp_overlap == distributed::Overlap::none || !p.sp || !o.machine.is_fp8()) return;
  weft::check(o.machine.fp8_recipe != Fp8Recipe::block,
              "--tp-overlap: sends codes that have one scale, and --fp8-recipe block has many; use "
              "current, current-pow2 or delayed");
  weft::check(o.machine.fp8_backward == fp8::BackwardOverride::none,
              "--tp-overlap: sends what backward multiplies in FP8; use --fp8-backward fp8, got {}",
              word_of(kFp8BackwardWords, o.machine.fp8_backward));
}

void check_fp8_weights(const Options& o) {
  if (!o.machine.fp8_weights) return;
  weft::check(o.machine.is_fp8(), "--fp8-weights: needs --dtype fp8");
  weft::check(o.optimizer.master_weights == optim::MasterWeights::f32,
              "--fp8-weights: needs --master-weights f32, got {}",
              word_of(optim::kMasterWeightsWords, o.optimizer.master_weights));
  weft::check(!o.parallel.fsdp, "--fp8-weights: does not exist yet with --fsdp; use --zero");
  weft::check(
      !o.parallel.zero || o.machine.recipe()->scaling != fp8::Scaling::block,
      "--fp8-weights: with --zero needs --fp8-recipe current, current-pow2 or delayed, got {}",
      word_of(kFp8RecipeWords, o.machine.fp8_recipe));
  weft::check(o.machine.fp8_backward != fp8::BackwardOverride::high_precision,
              "--fp8-weights: needs --fp8-backward fp8 or dequantized, got high-precision");
}

// Before anything else is made: a run of hours must not find its folder missing.
void check_offload(const OffloadFlags& o, const MachineOptions& machine, Device device) {
  if (o.what == OffloadWhat::none) return;
  weft::check(!machine.graph, "--offload: needs --graph off, got on");
  if (!device.is_cpu()) return;
  std::error_code none;
  weft::check(!o.folder.empty(), "--offload: on the cpu needs --offload-folder");
  weft::check(std::filesystem::is_directory(o.folder, none) && access(o.folder.c_str(), W_OK) == 0,
              "--offload-folder: must be an existing folder that can be written, got '{}'",
              o.folder);
}

}  // namespace

void Options::check() const {
  weft::check(optimizer.min_lr <= optimizer.lr, "--min-lr: must be at most --lr {}, got {}",
              optimizer.lr, optimizer.min_lr);
  weft::check(
      optimizer.master_weights == optim::MasterWeights::f32 || machine.model_dtype() == DType::bf16,
      "--master-weights: {} needs --dtype bf16 or fp8, got {}",
      word_of(optim::kMasterWeightsWords, optimizer.master_weights), machine.dtype);
  weft::check(optimizer.loss_scale <= 0 || optimizer.loss_scale >= LossScale::kLeast,
              "--loss-scale: must be 0, negative or at least {}, got {}", LossScale::kLeast,
              optimizer.loss_scale);
  weft::check(loss_scale() > 0 || optimizer.loss_scale_steps == OptimizerOptions().loss_scale_steps,
              "--loss-scale-steps: needs a loss scale: --dtype f16, or --loss-scale");
  const Device device = Device::parse(machine.device);
  if (device.is_cuda()) cuda::check_device(device);
  if (machine.is_fp8()) fp8::check_device(device);
  weft::check(!run.resume || !device.is_meta(), "--resume: needs a device that computes, got {}",
              device);
  weft::check(!run.profile || !device.is_meta(), "--profile: needs a device that computes, got {}",
              device);
  weft::check(!run.profile || !machine.graph, "--profile: needs --graph off, got on");
  check_layout(*this, device);
  check_fp8_weights(*this);
  check_offload(offload, machine, device);
  const std::int64_t micro = micro_batch ? micro_batch : batch;
  weft::check(batch % micro == 0, "--micro-batch: must divide --batch {}, got {}", batch, micro);
}

double Options::loss_scale() const {
  if (optimizer.loss_scale >= 0) return optimizer.loss_scale;
  return machine.dtype == DType::f16 ? LossScaleOptions().initial : 0;
}

std::optional<fp8::Recipe> MachineOptions::recipe() const {
  if (!is_fp8()) return {};
  fp8::Recipe r;
  r.scaling = fp8_recipe == Fp8Recipe::delayed ? fp8::Scaling::delayed
              : fp8_recipe == Fp8Recipe::block ? fp8::Scaling::block
                                               : fp8::Scaling::current;
  r.power_of_two = fp8_recipe == Fp8Recipe::current_pow2;
  r.history = fp8_history;
  r.backward = fp8_backward;
  return r;
}

void apply(const MachineOptions& options) {
  if (options.threads) set_num_threads(static_cast<int>(options.threads));
  set_deterministic(options.deterministic);
}

DType OptimizerOptions::second_moment_dtype() const {
  switch (second_moment) {
    case SecondMoment::f32:
      return DType::f32;
    case SecondMoment::bf16:
      return DType::bf16;
    case SecondMoment::f16:
      return DType::f16;
    case SecondMoment::fp8:
      return DType::e4m3;
    case SecondMoment::automatic:
      break;
  }
  return state_dtype == DType::bf16 ? DType::f32 : state_dtype;
}

bool OptimizerOptions::rounds_stochastically() const {
  if (rounding != StateRounding::automatic) return rounding == StateRounding::stochastic;
  const DType v = second_moment_dtype();
  return state_dtype == DType::e4m3 || v == DType::e4m3 || (v == DType::bf16 && beta2 > 0.99) ||
         master_weights == optim::MasterWeights::none;
}

optim::AnyOptions OptimizerOptions::any_options(std::int64_t seed) const {
  return optim::options_of(kind, {.lr = lr,
                                  .beta1 = beta1,
                                  .beta2 = beta2,
                                  .eps = eps,
                                  .weight_decay = weight_decay,
                                  .m_dtype = state_dtype,
                                  .v_dtype = second_moment_dtype(),
                                  .master_weights = master_weights,
                                  .rounding = rounds_stochastically() ? optim::Rounding::stochastic
                                                                      : optim::Rounding::nearest,
                                  .seed = static_cast<std::uint64_t>(seed)});
}

optim::Schedule OptimizerOptions::lr_schedule(std::int64_t steps) const {
  optim::Schedule s;
  s.kind = schedule;
  s.lr = lr;
  s.min_lr = min_lr < 0 ? lr / 10 : min_lr;
  s.warmup = warmup < 0 ? steps / 20 : warmup;
  s.steps = steps;
  s.validate();
  return s;
}

}  // namespace weft::train
