// Plans of memory: equal to real steps byte for byte, by category.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/memory_trace.h"
#include "weft/core/random.h"
#include "weft/distributed/ddp.h"
#include "weft/examples/common/gpt_plan.h"
#include "weft/nn/gpt.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/memory_plan_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::examples::memory_plan_test {
namespace {

using distributed::World;
using train::MemoryPlan;

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
    {"squared ReLU, rotary positions, selective recompute", small,
     [](GptOptions& o) {
       o.model.activation = Activation::relu2;
       o.model.positions = nn::Positions::rope;
       o.model.recompute = nn::Recompute::selective;
     }},
    {"gated GELU, no positions, LayerNorm, bf16", bf16,
     [](GptOptions& o) {
       o.model.activation = Activation::geglu;
       o.model.positions = nn::Positions::none;
       o.model.norm = nn::NormKind::layer;
     }},
    {"fp8, gated GELU, selective recompute", fp8,
     [](GptOptions& o) {
       o.model.activation = Activation::geglu;
       o.model.recompute = nn::Recompute::selective;
     }},
    {"experts, gated GELU, selective recompute", experts,
     [](GptOptions& o) {
       o.model.activation = Activation::geglu;
       o.model.recompute = nn::Recompute::selective;
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
