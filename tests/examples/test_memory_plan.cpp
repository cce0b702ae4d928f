// Plans of memory: equal to real steps byte for byte, by category, and their closed forms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "weft/core/memory_trace.h"
#include "weft/core/random.h"
#include "weft/examples/common/gpt_plan.h"
#include "weft/nn/fp8.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"
#include "weft/train/memory.h"

namespace weft::examples::memory_plan_test {
namespace {

using distributed::World;
using train::MemoryPlan;

GptOptions small() {
  GptOptions o;
  o.model.layers = 2;
  o.model.heads = 2;
  o.model.dim = 16;
  o.model.seq = 16;
  o.model.vocab = 41;
  o.batch = 4;
  o.machine.threads = 1;
  return o;
}

GptOptions f16() {
  GptOptions o = small();
  o.machine.dtype = DType::f16;  // with a loss scale
  o.optimizer.state_dtype = DType::f16;
  return o;
}

GptOptions bf16() {
  GptOptions o = small();
  o.machine.dtype = DType::bf16;
  return o;
}

GptOptions fp8() {
  GptOptions o = small();
  o.machine.dtype = DType::e4m3;
  o.model.dim = 32;
  return o;
}

// With a capacity each expert gets the same number of rows for any data.
GptOptions experts() {
  GptOptions o = small();
  o.model.arch = nn::Arch::llama;
  o.model.moe.experts = 4;
  o.model.moe.ffn = 8;
  o.model.moe.shared_ffn = 8;
  o.model.moe.router.route.score = RouterScore::sigmoid;
  o.model.moe.router.capacity_factor = 1.25;
  o.balance.aux = Aux::bias;
  return o;
}

data::Batch batch_of(const GptOptions& o, std::int64_t rows) {
  const Tensor ids = Tensor::empty({rows, o.model.seq});
  uniform_(ids, {3, 1, 0}, 0, static_cast<double>(o.model.vocab));
  data::Batch batch{ids.to(DType::i32), ids.to(DType::i32), {}};
  if (o.data.pack.empty()) return batch;
  batch.positions = Tensor::empty({rows, o.model.seq}, DType::i32);
  for (std::int64_t i = 0; i < rows * o.model.seq; ++i)
    batch.positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % o.model.seq);
  return batch;
}

// The second step of a real run on this thread.
LiveBytes real_peak(const GptOptions& o, const train::Ranks& ranks) {
  const MemoryTrace trace({kCpu});
  const std::int64_t before = memory_stats().live_bytes;
  GptStep gpt(o, ranks);
  gpt.step(1, batch_of(o, ranks.rows()));
  const std::int64_t begin = trace.events();
  const train::StepResult result = gpt.step(2, batch_of(o, ranks.rows()));
  const MemoryTrace::Peak peak = trace.peak(begin);
  // The record agrees with the allocator's own counters.
  if (ranks.size() == 1) CHECK(peak.live.total() == result.peak_bytes - before);
  return peak.live;
}

std::string text(const LiveBytes& live) {
  std::string out = message("{} bytes:", live.total());
  for (int i = 0; i < kCategories; ++i)
    out += message(" {} {}", live.by_category[i], name(static_cast<Category>(i)));
  return out;
}

MemoryPlan planned(GptOptions o, int rank = 0) {
  o.machine.device = "meta";
  o.parallel.rank = rank;
  return plan_memory(o);
}

void compare(const std::string& what, const LiveBytes& plan, const LiveBytes& real) {
  CHECK_MESSAGE(plan == real, message("{}: planned {}; real {}", what, text(plan), text(real)));
}

struct Case {
  const char* what;
  GptOptions (*base)();
  void (*change)(GptOptions&);

  GptOptions options() const {
    GptOptions o = base();
    change(o);
    return o;
  }
};

const Case kAlone[] = {
    {"gpt2", small, [](GptOptions&) {}},
    {"llama", small, [](GptOptions& o) { o.model.arch = nn::Arch::llama; }},
    {"f64", small, [](GptOptions& o) { o.machine.dtype = DType::f64; }},
    {"selective recompute", small,
     [](GptOptions& o) { o.model.recompute = nn::Recompute::selective; }},
    {"full recompute", small, [](GptOptions& o) { o.model.recompute = nn::Recompute::full; }},
    {"two micro-batches", small, [](GptOptions& o) { o.micro_batch = 2; }},
    {"more micro-batches than a plan runs", small,
     [](GptOptions& o) {
       o.batch = 72;
       o.micro_batch = 8;
     }},
    {"dropout, window, qk-norm, untied", small,
     [](GptOptions& o) {
       o.model.dropout = 0.1;
       o.model.window = 5;
       o.model.qk_norm = true;
       o.model.tie = false;
     }},
    {"sgd", small, [](GptOptions& o) { o.optimizer.kind = optim::Kind::sgd; }},
    {"states in bf16", small, [](GptOptions& o) { o.optimizer.state_dtype = DType::bf16; }},
    {"states in f16", small, [](GptOptions& o) { o.optimizer.state_dtype = DType::f16; }},
    {"second moment in bf16", small,
     [](GptOptions& o) { o.optimizer.second_moment = train::SecondMoment::bf16; }},
    {"norms", small, [](GptOptions& o) { o.run.norms = true; }},
    {"packed", small, [](GptOptions& o) { o.data.pack = "end"; }},
    {"bf16", bf16, [](GptOptions&) {}},
    {"f16", f16, [](GptOptions&) {}},
    {"bf16, remainders", bf16,
     [](GptOptions& o) {
       o.optimizer.master_weights = optim::MasterWeights::remainder;
       o.optimizer.state_dtype = DType::bf16;
     }},
    {"bf16, no masters, states in fp8", bf16,
     [](GptOptions& o) {
       o.optimizer.master_weights = optim::MasterWeights::none;
       o.optimizer.state_dtype = DType::e4m3;
     }},
    {"states in fp8", small, [](GptOptions& o) { o.optimizer.state_dtype = DType::e4m3; }},
    {"second moment in fp8", bf16,
     [](GptOptions& o) { o.optimizer.second_moment = train::SecondMoment::fp8; }},
    {"fp8", fp8, [](GptOptions&) {}},
    {"fp8, delayed", fp8,
     [](GptOptions& o) {
       o.machine.fp8_recipe = train::Fp8Recipe::delayed;
       o.machine.fp8_history = 4;
     }},
    {"fp8 by block, llama, full recompute", fp8,
     [](GptOptions& o) {
       o.machine.fp8_recipe = train::Fp8Recipe::block;
       o.model.arch = nn::Arch::llama;
       o.model.recompute = nn::Recompute::full;
     }},
    {"fp8 weights", fp8, [](GptOptions& o) { o.machine.fp8_weights = true; }},
    {"fp8 weights by block, mtp", fp8,
     [](GptOptions& o) {
       o.machine.fp8_weights = true;
       o.machine.fp8_recipe = train::Fp8Recipe::block;
       o.model.mtp.depths = 1;
     }},
    {"experts", experts, [](GptOptions&) {}},
    {"experts, full recompute", experts,
     [](GptOptions& o) { o.model.recompute = nn::Recompute::full; }},
    {"experts, selective recompute, mtp", experts,
     [](GptOptions& o) {
       o.model.recompute = nn::Recompute::selective;
       o.model.mtp.depths = 2;
     }},
    {"mtp", small, [](GptOptions& o) { o.model.mtp.depths = 1; }},
    {"latent attention", small,
     [](GptOptions& o) {
       o.model.arch = nn::Arch::llama;
       o.model.attention = nn::AttentionKind::mla;
     }},
    {"delta nets", small, [](GptOptions& o) { o.model.pattern = "da"; }},
};

}  // namespace

TEST_CASE("memory plan: equals a real step on the CPU, by category") {
  for (const Case& c : kAlone) {
    const GptOptions o = c.options();
    const MemoryPlan plan = planned(o);
    const LiveBytes real = real_peak(o, train::Ranks::alone(o));
    compare(c.what, plan.peak, real);
  }
}

TEST_CASE("memory plan: modules add up to the categories, and the course has the peak") {
  for (const Case& c : kAlone) {
    CAPTURE(c.what);
    const MemoryPlan plan = planned(c.options());
    LiveBytes sum;
    for (const MemoryPlan::Module& m : plan.modules)
      for (int i = 0; i < kCategories; ++i) sum.by_category[i] += m.live.by_category[i];
    CHECK(sum == plan.peak);
    CHECK(plan.course.at(static_cast<std::size_t>(plan.peak_event)) == plan.peak);
    for (const LiveBytes& live : plan.course) CHECK(live.total() <= plan.peak.total());
    CHECK(plan.marks.front().phase == train::Phase::forward);
    CHECK(plan.marks.back().phase == train::Phase::update);
    CHECK(plan.flops > 0);
    CHECK(plan.bytes_sent == 0);
  }
}

TEST_CASE("memory plan: modules by name") {
  GptOptions o = experts();
  o.model.mtp.depths = 1;
  std::vector<std::string> names;
  for (const MemoryPlan::Module& m : planned(o).modules) names.push_back(m.name);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"attn", "attn_norm", "embed", "head", "mlp_norm", "moe",
                                          "mtp", "norm", "rotary", "step"});
}

namespace {

struct Layout {
  const char* what;
  GptOptions (*base)();
  std::int64_t tp, ep;
  bool sp, zero, delays = false, fp8_weights = false, fsdp = false;
};
constexpr Layout kLayouts[] = {
    {"dp", small, 1, 1, false, false},
    {"dp, zero", small, 1, 1, false, true},
    {"bf16, zero", bf16, 1, 1, false, true},
    {"fp8, zero", fp8, 1, 1, false, true},
    {"f16, zero", f16, 1, 1, false, true},
    {"tp", small, 2, 1, false, false},
    {"tp + sp", small, 2, 1, true, false},
    {"bf16, tp + sp", bf16, 2, 1, true, false},
    {"fp8 weights, dp", fp8, 1, 1, false, false, false, true},
    {"fp8 weights, zero", fp8, 1, 1, false, true, false, true},
    {"fp8 weights, tp + sp", fp8, 2, 1, true, false, false, true},
    {"experts, ep", experts, 1, 2, false, true},
    {"experts, ep, delayed gradients", experts, 1, 2, false, true, true},
    {"fsdp", small, 1, 1, false, false, false, false, true},
    {"bf16, fsdp", bf16, 1, 1, false, false, false, false, true},
    {"experts, ep, fsdp", experts, 1, 2, false, false, false, false, true}};

}  // namespace

TEST_CASE("memory plan: equals a real step of two ranks, by category") {
  std::mutex mutex;
  test::distributed_test({2}, [&](World& w) {
    for (const Layout& l : kLayouts) {
      GptOptions o = l.base();
      o.parallel.ranks = w.size();
      o.parallel.tp = l.tp;
      o.parallel.ep = l.ep;
      o.parallel.sp = l.sp;
      o.parallel.zero = l.zero;
      o.parallel.fsdp = l.fsdp;
      o.parallel.delay_weight_gradients = l.delays;
      o.machine.fp8_weights = l.fp8_weights;
      const LiveBytes real = real_peak(o, train::Ranks(w, o));
      const MemoryPlan plan = planned(o, w.rank());
      const std::lock_guard lock(mutex);
      CHECK(plan.bytes_sent > 0);
      compare(message("{}, rank {}", l.what, w.rank()), plan.peak, real);
    }
  });
}

namespace {

constexpr int kParameter = static_cast<int>(Category::parameter),
              kOptimizer = static_cast<int>(Category::optimizer);

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

// A tensor of this many bytes for each value of each parameter, in size classes.
std::int64_t tensors_of(const GptOptions& o, std::int64_t width) {
  const GptTask gpt(o);
  std::int64_t bytes = 0;
  for (const Tensor& p : gpt.model.parameters()) bytes += size_class_bytes(width * p.numel());
  return bytes;
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
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
    for (const nn::Recompute recompute :
         {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
      for (const std::int64_t tp : {1, 2})
        for (const bool sp : {false, true}) {
          if (sp && tp == 1) continue;
          CAPTURE(word_of(nn::kRecomputeWords, recompute));
          GptOptions o = small();
          o.machine.device = "meta";
          o.model.arch = arch;
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

TEST_CASE("memory plan: what changes save and cost") {
  GptOptions o = small();
  o.machine.device = "meta";
  o.model.dim = 64;
  o.model.layers = 4;
  o.model.seq = 64;
  const MemoryPlan now = plan_memory(o);
  std::vector<std::string> flags;
  for (const Alternative& a : alternatives(o, now, {})) {
    flags.push_back(a.flags);
    if (a.flags == "--recompute full") {
      CHECK(a.plan.peak.total() < now.peak.total());
      CHECK(a.plan.flops > 1.2 * now.flops);
      CHECK(a.cost_s > 0);
      CHECK(!a.rounds);
    }
    if (a.flags == "--tp 2 --dp 1") CHECK(a.plan.bytes_sent > 0);
    if (a.flags == "--dtype bf16") CHECK(a.rounds);
  }
  CHECK(flags == std::vector<std::string>{
                     "--micro-batch 2", "--recompute selective", "--recompute full",
                     "--offload activations", "--offload states", "--offload activations,states",
                     "--tp 2 --dp 1", "--dtype bf16", "--dtype fp8", "--state-dtype bf16",
                     "--state-dtype f16", "--state-dtype fp8"});
  CHECK(cheapest_fit(o, now, {}, now.peak.total()).flags.empty());
  const std::int64_t little_less = now.peak.total() - 1;
  CHECK(cheapest_fit(o, now, {}, little_less).flags == "--micro-batch 2");
  CHECK(cheapest_fit(o, now, {}, now.peak.total() * 13 / 20).flags == "--recompute full");
  // A change that doubles or halves may come twice, and its last value is shown. More ranks would
  // be one change.
  o.model.recompute = nn::Recompute::full;
  o.offload.what = value_of(train::kOffloadWords, "activations,states", "--offload");
  const MemoryPlan full = plan_memory(o);
  o.micro_batch = 1;
  const std::int64_t least = plan_memory(o).peak.total();
  o.micro_batch = 0;
  const Alternative twice = cheapest_fit(o, full, {}, least);
  CHECK(twice.flags == "--micro-batch 1");
  CHECK(twice.plan.peak.total() == least);
  CHECK(cheapest_fit(o, full, {}, least - 1).flags != "--micro-batch 1");
  CHECK(test::error_of([&] { cheapest_fit(o, now, {}, 1000); }) ==
        message("--fit: no 3 changes together bring {} bytes down to 1000", now.peak.total()));
}

TEST_CASE("memory plan: what offload saves and moves") {
  GptOptions o = small();
  o.machine.device = "meta";
  o.model.dim = 256;
  o.model.seq = 512;
  o.model.layers = 4;
  const MemoryPlan now = plan_memory(o);
  CHECK(now.bytes_offloaded == 0);
  const Rates rates{.tflops = 1, .link = 1, .host = 4};
  const std::vector<Alternative> all = alternatives(o, now, rates);
  const auto row = [&](const std::string& flags) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.flags == flags; });
    REQUIRE(found != all.end());
    CHECK(!found->rounds);
    CHECK(found->plan.flops == now.flops);
    CHECK(std::abs(found->cost_s - static_cast<double>(found->plan.bytes_offloaded) / 4e9) < 1e-9);
    return found->plan;
  };
  const MemoryPlan activations = row("--offload activations"), states = row("--offload states"),
                   both = row("--offload activations,states");
  // m and v are read and written; what blocks keep goes once and comes back once.
  CHECK(states.bytes_offloaded == 2 * 8 * now.parameters);
  CHECK(now.peak.by_category[kOptimizer] - states.peak.by_category[kOptimizer] ==
        2 * tensors_of(o, 4));
  CHECK(activations.peak.total() < now.peak.total() * 3 / 4);
  CHECK(activations.bytes_offloaded / 2 > now.peak.total() - activations.peak.total());
  CHECK(both.bytes_offloaded == activations.bytes_offloaded + states.bytes_offloaded);
  CHECK(both.peak.total() < std::min(activations.peak.total(), states.peak.total()));
  // Micro-batches of which the plan runs a part.
  o.batch = 32;
  o.micro_batch = 4;
  o.offload.what = train::OffloadWhat::activations;
  const MemoryPlan many = plan_memory(o);
  CHECK(many.bytes_offloaded == 8 * activations.bytes_offloaded);
  // One that is on already is not offered; the other is added to it.
  std::vector<std::string> flags;
  for (const Alternative& a : alternatives(o, many, rates))
    if (a.flags.starts_with("--offload")) flags.push_back(a.flags);
  CHECK(flags == std::vector<std::string>{"--offload activations,states"});
  // A GPU's states go to the host and come back.
  o.machine.device = "meta:cuda";
  o.offload.what = train::OffloadWhat::states;
  CHECK(plan_memory(o).bytes_offloaded == 2 * 8 * now.parameters);
}

TEST_CASE("memory plan: sizes of memory") {
  CHECK(parse_bytes("--fit", "24GiB") == std::int64_t{24} << 30);
  CHECK(parse_bytes("--fit", "80GB") == 80'000'000'000);
  CHECK(parse_bytes("--fit", "1.5kB") == 1500);
  CHECK(parse_bytes("--fit", "512") == 512);
  for (const char* bad : {"", "GiB", "-1GB", "24 GiB", "24gb", "nan", "1e30TB"})
    CHECK(test::error_of([&] { parse_bytes("--fit", bad); }) ==
          message("--fit: must be a size such as 24GiB or 80GB, got '{}'", bad));
}

namespace {

struct UnitBytes {
  std::int64_t slices = 0, two_units = 0;  ///< of weights; of two neighbours, the largest
};

// By the buckets of the model: every rank's slices, and whole units. A tied head comes after the
// last one.
UnitBytes unit_bytes(const GptOptions& o, int ranks) {
  const nn::DeviceScope on_meta(kMeta);
  nn::Gpt model(o.gpt());
  const auto world = distributed::fake_world(0, ranks);
  const distributed::DeviceMesh mesh(*world);
  const distributed::Ddp ddp(model, mesh, {}, {.shard = true, .fsdp = true});
  UnitBytes out;
  std::map<int, std::int64_t> units;
  for (const auto& b : ddp.buckets()) {
    out.slices += size_class_bytes(b.layout.size / ranks * 4);
    units[b.layout.unit] += size_class_bytes(b.layout.size * 4);
  }
  for (auto u = units.begin(); std::next(u) != units.end(); ++u)
    out.two_units = std::max(out.two_units, u->second + std::next(u)->second);
  if (o.gpt().tied())
    out.two_units = std::max(out.two_units, units.begin()->second + units.rbegin()->second);
  return out;
}

}  // namespace

TEST_CASE("memory plan: with --fsdp a rank holds its slices and two units of weights") {
  GptOptions o = small();
  o.model.layers = 4;
  o.batch = 8;
  o.parallel.fsdp = true;
  for (const auto& [ranks, tied] : {std::pair{2, true}, {2, false}, {4, false}, {8, false}}) {
    std::mutex mutex;
    o.model.tie = tied;
    test::distributed_test({ranks}, [&, ranks = ranks](World& w) {
      GptOptions own = o;
      own.parallel.ranks = ranks;
      const LiveBytes real = real_peak(own, train::Ranks(w, own));
      const MemoryPlan plan = planned(own, w.rank());
      const std::lock_guard lock(mutex);
      compare(message("rank {} of {}", w.rank(), ranks), plan.peak, real);
      std::int64_t most = 0;
      for (const LiveBytes& live : plan.course) most = std::max(most, live.by_category[kParameter]);
      const UnitBytes want = unit_bytes(own, ranks);
      CHECK(most == want.slices + want.two_units);
    });
  }
}

}  // namespace weft::examples::memory_plan_test
