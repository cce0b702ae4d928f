// Plans of memory follow closed forms: bytes a parameter, and the activations of a block.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "weft/core/fields.h"
#include "weft/examples/common/gpt_plan.h"
#include "weft/nn/fp8.h"
#include "weft/tests/memory_plan_support.h"

namespace weft::examples::memory_plan_test {
namespace {

using train::MemoryPlan;

struct States {
  DType dtype;
  optim::MasterWeights masters;
  DType state;
  train::SecondMoment second;
  double weights, gradient, total;  ///< bytes a parameter; `weights` with states
};
constexpr auto kF32 = optim::MasterWeights::f32, kRemainder = optim::MasterWeights::remainder,
               kNone = optim::MasterWeights::none;
constexpr auto kAuto = train::SecondMoment::automatic;
constexpr States kStates[] = {
    {DType::f32, kF32, DType::f32, kAuto, 12, 4, 16},
    {DType::bf16, kF32, DType::f32, kAuto, 14, 4, 18},
    {DType::bf16, kRemainder, DType::f32, kAuto, 12, 4, 16},
    {DType::bf16, kRemainder, DType::bf16, kAuto, 10, 4, 14},
    {DType::bf16, kRemainder, DType::bf16, train::SecondMoment::bf16, 8, 4, 12},
    {DType::bf16, kNone, DType::bf16, train::SecondMoment::bf16, 6, 4, 10},
    {DType::f16, kF32, DType::f32, kAuto, 14, 4, 18}};

GptOptions wide(const States& s) {
  GptOptions o = small();
  o.model.dim = 256;
  o.model.vocab = 256;
  o.machine.device = "meta:cuda";
  o.machine.dtype = s.dtype;
  o.optimizer.master_weights = s.masters;
  o.optimizer.state_dtype = s.state;
  o.optimizer.second_moment = s.second;
  o.optimizer.loss_scale = 0;
  return o;
}

// Weights and states at the peak.
double weights_and_states(const MemoryPlan& plan) {
  return static_cast<double>(plan.peak.by_category[kParameter] +
                             plan.peak.by_category[kOptimizer]) /
         static_cast<double>(plan.parameters);
}

}  // namespace

TEST_CASE("memory plan: bytes a parameter by closed forms") {
  for (const States& s : kStates) {
    const GptOptions o = wide(s);
    const train::ParameterBytes closed = train::parameter_bytes(o, 1);
    CHECK(closed.weight + closed.optimizer == s.weights);
    CHECK(closed.gradient == s.gradient);
    CHECK(closed.total() == s.total);
    // Exact, but for the size class of each tensor.
    const MemoryPlan plan = plan_memory(o);
    const auto width = [](DType t) { return static_cast<std::int64_t>(size_of(t)); };
    CHECK(plan.peak.by_category[kParameter] == tensors_of(o, width(s.dtype)));
    CHECK(plan.peak.by_category[kOptimizer] ==
          tensors_of(o, width(s.state)) + tensors_of(o, width(o.optimizer.second_moment_dtype())) +
              (is_half(s.dtype) && s.masters != kNone
                   ? tensors_of(o, s.masters == kRemainder ? 2 : 4)
                   : 0));
    CHECK(weights_and_states(plan) >= s.weights);
    CHECK(weights_and_states(plan) < 1.01 * s.weights);
  }
  GptOptions low = wide(kStates[2]);
  low.optimizer.state_dtype = DType::e4m3;
  CHECK(train::parameter_bytes(low, 1).total() == 10 + 2.0 / 32);
  CHECK(weights_and_states(plan_memory(low)) >= 6 + 2.0 / 32);
  CHECK(weights_and_states(plan_memory(low)) < 1.02 * (6 + 2.0 / 32));
  // Codes, and transposed ones for a GPU's products; with --fp8-weights nothing else.
  for (const char* device : {"meta", "meta:cuda"})
    for (const bool alone : {false, true}) {
      GptOptions o = wide(kStates[1]);
      o.machine.device = device;
      o.machine.dtype = DType::e4m3;
      o.machine.fp8_weights = alone;
      o.model.seq = 256;  // the peak is not where a weight is rounded
      const MemoryPlan plan = plan_memory(o);
      const double share = static_cast<double>(plan.in_fp8) / static_cast<double>(plan.parameters);
      const std::int64_t codes = o.machine.device == "meta" ? 1 : 2;
      CHECK(train::parameter_bytes(o, 1, {.fp8 = share}).weight ==
            2 * (alone ? 1 - share : 1) + static_cast<double>(codes) * share);
      const GptTask gpt(o);
      std::int64_t exact = tensors_of(o, 2);
      for (const Tensor& w : nn::fp8_weights(gpt.model))
        exact += codes * size_class_bytes(w.numel()) + size_class_bytes(4) -
                 (alone ? size_class_bytes(2 * w.numel()) : 0);
      CHECK(plan.peak.by_category[kParameter] == exact);
    }
  // 6 + 12 / dp: weights and gradients on every rank, masters and moments divided.
  for (const int dp : {2, 8, 64}) {
    GptOptions o = wide(kStates[1]);
    o.parallel.dp = o.batch = dp;
    o.parallel.zero = true;
    CHECK(train::parameter_bytes(o, dp).total() == 6 + 12.0 / dp);
    const double planned = weights_and_states(plan_memory(o));
    CHECK(planned >= 2 + 12.0 / dp);
    CHECK(planned < 1.05 * (2 + 12.0 / dp));
    // Codes on every rank; bf16, masters and moments divided.
    o.machine.dtype = DType::e4m3;
    o.machine.fp8_weights = true;
    o.model.seq = 256;
    const MemoryPlan plan = plan_memory(o);
    const double share = static_cast<double>(plan.in_fp8) / static_cast<double>(plan.parameters);
    const double closed = (1 - share) * 2 + share * (2 + 2.0 / dp) + 12.0 / dp;
    CHECK(std::abs(train::parameter_bytes(o, dp, {.fp8 = share}).total() - (closed + 4)) < 1e-12);
    CHECK(weights_and_states(plan) >= closed);
    CHECK(weights_and_states(plan) < 1.05 * closed);
  }
  // Of eight ranks with --ep 4 only two have the same expert.
  GptOptions o = wide(kStates[1]);
  o.model.moe = experts().model.moe;
  o.model.moe.ffn = 256;
  o.parallel.dp = o.batch = 8;
  o.parallel.ep = 4;
  o.parallel.zero = true;
  const MemoryPlan plan = plan_memory(o);
  const double share = static_cast<double>(plan.in_experts) / static_cast<double>(plan.parameters);
  const double closed = 2 + 12 * ((1 - share) / 8 + share / 2);
  CHECK(share > 0.2);
  CHECK(std::abs(train::parameter_bytes(o, 8, {.experts = share}).total() - (closed + 4)) < 1e-12);
  CHECK(weights_and_states(plan) >= closed);
  CHECK(weights_and_states(plan) < 1.05 * closed);
}

TEST_CASE("memory plan: the activations of a block by a closed form") {
  struct Form {
    nn::Arch arch;
    std::optional<Activation> activation;
    nn::Positions positions = nn::Positions::automatic;
    nn::NormKind norm = nn::NormKind::automatic;
  };
  for (const Form& form :
       {Form{nn::Arch::gpt2, {}},
        {nn::Arch::llama, {}},
        {nn::Arch::gpt2, Activation::relu2, nn::Positions::rope},
        {nn::Arch::gpt2, Activation::geglu},
        {nn::Arch::llama, Activation::silu, nn::Positions::none},
        {nn::Arch::llama, Activation::relu, nn::Positions::learned, nn::NormKind::layer}})
    for (const nn::Recompute recompute :
         {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
      for (const std::int64_t tp : {1, 2})
        for (const bool sp : {false, true}) {
          if (sp && tp == 1) continue;
          CAPTURE(word_of(nn::kRecomputeWords, recompute));
          GptOptions o = small();
          o.machine.device = "meta";
          o.model.arch = form.arch;
          o.model.activation = form.activation;
          o.model.positions = form.positions;
          o.model.norm = form.norm;
          o.model.dim = 256;
          o.model.heads = 4;
          o.model.kv_heads = 2;
          o.model.ffn = 1024;
          o.model.layers = 3;
          o.model.seq = 128;
          o.model.recompute = recompute;
          o.parallel.tp = tp;
          o.parallel.sp = sp;
          const BlockBytes block = block_activations(o, plan_memory(o));
          CHECK(block.measured >= block.closed);
          CHECK(block.measured < 1.02 * block.closed);
        }
  GptOptions o = experts();
  o.machine.device = "meta";
  CHECK(block_activations(o, plan_memory(o)).closed == 0);
  CHECK(block_activations(o, plan_memory(o)).measured > 0);
}

}  // namespace weft::examples::memory_plan_test
