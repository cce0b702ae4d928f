#include "weft/train/memory_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "weft/core/profile.h"
#include "weft/train/memory.h"
#include "weft/train/planned_step.h"
#include "weft/train/ranks.h"

namespace weft::train {
namespace {

bool is_tensor_name(const std::string& scope) { return scope.find('.') != std::string::npos; }

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream in(name);
  for (std::string part; std::getline(in, part, '.');) parts.push_back(part);
  return parts;
}

/// Names the part of a model that a block belongs to. What a forward or backward pass allocates has
/// the scope of the running module; weights, gradient sums and states have the name of a tensor,
/// "blocks.3.attn.q.weight", of which the part counts that is such a scope.
class ModuleNames {
 public:
  explicit ModuleNames(const MemoryTrace& trace) {
    std::set<std::int32_t> seen;
    for (const MemoryTrace::Block& b : trace.blocks()) {
      if (!seen.insert(b.scope).second) continue;
      const std::vector<std::string> scopes = MemoryTrace::scopes_of(b);
      if (!scopes.empty() && !is_tensor_name(scopes[0])) modules_.insert(scopes[0]);
    }
  }

  std::string of(const MemoryTrace::Block& block) const {
    const std::vector<std::string> scopes = MemoryTrace::scopes_of(block);
    if (scopes.empty()) return "step";
    if (!is_tensor_name(scopes[0])) return scopes[0];
    const std::vector<std::string> parts = parts_of(scopes[0]);
    for (const std::string& part : parts)
      if (modules_.contains(part)) return part;
    const bool listed =
        parts.size() > 2 && parts[1].find_first_not_of("0123456789") == parts[1].npos;
    return parts[listed ? 2 : 0];
  }

 private:
  std::set<std::string> modules_;
};

std::vector<MemoryPlan::Module> modules_of(const MemoryTrace& trace,
                                           const std::vector<MemoryTrace::Block>& blocks) {
  const ModuleNames names(trace);
  std::map<std::int32_t, LiveBytes> by_scope;
  for (const MemoryTrace::Block& b : blocks)
    by_scope[b.scope].by_category[static_cast<int>(b.category)] += b.bytes;
  std::map<std::string, LiveBytes> by_name;
  for (const auto& [scope, live] : by_scope) {
    LiveBytes& sum = by_name[names.of({.bytes = 0, .category = Category::other, .scope = scope})];
    for (int i = 0; i < kCategories; ++i) sum.by_category[i] += live.by_category[i];
  }
  std::vector<MemoryPlan::Module> modules;
  for (const auto& [name, live] : by_name) modules.push_back({name, live});
  std::stable_sort(modules.begin(), modules.end(),
                   [](const auto& a, const auto& b) { return a.live.total() > b.live.total(); });
  return modules;
}

std::int64_t count_parameters(const nn::Module& model) {
  std::int64_t n = 0;
  for (const Tensor& p : model.parameters()) n += p.numel();
  return n;
}

}  // namespace

const MemoryPlan::Mark& MemoryPlan::at_peak() const {
  const Mark* found = &marks.front();
  for (const Mark& m : marks)
    if (m.event < peak_event) found = &m;
  return *found;
}

MemoryPlan plan_memory(const Task& task, const Options& options, const data::Batch& rows, int ranks,
                       int rank) {
  const MemoryTrace trace(planned_devices(options));
  Profiler profiler;  // it also makes scopes count
  profiler.start("start");
  PlannedStep step(task, options, rows, ranks, rank);
  step(1);

  MemoryPlan plan;
  plan.device = planned_device(options);
  plan.ranks = step.ranks().size();
  plan.rank = rank;
  plan.micro_batches = step.micro_batches();
  plan.parameters = count_parameters(task.model);
  if (options.machine.is_fp8())
    for (const Tensor& w : nn::fp8_weights(task.model)) plan.in_fp8 += w.numel();
  const distributed::Layout& layout = step.step().layout();
  for (const auto& [name, p] : task.model.named_parameters())
    if (const auto found = layout.find(name); found != layout.end() && found->second.expert)
      plan.in_experts += p.numel();
  const auto sent = [&] { return step.ranks().world().stats().bytes_sent; };
  const std::int64_t begin = trace.events(), sent_before = sent(),
                     moved_before = step.step().moved_bytes(),
                     states_before = plan.device.is_gpu() ? step.step().moved_state_bytes() : 0;
  std::vector<std::int64_t> sent_at;
  std::int64_t micro_batch = 0;
  step.step().on_phase([&](Phase phase) {
    profiler.phase(name_of(phase));
    if (phase == Phase::forward) {
      ++micro_batch;
      sent_at.push_back(sent());
    }
    plan.marks.push_back({phase, micro_batch, trace.events() - begin});
  });
  step(2);
  const std::int64_t sent_after = sent();
  profiler.stop();

  // The rows that no micro-batch of the plan has are live during the whole step.
  const MemoryTrace::Peak peak = trace.peak(begin);
  plan.course = trace.course(begin);
  constexpr int kRows = static_cast<int>(Category::other);
  plan.peak = peak.live;
  plan.peak.by_category[kRows] += step.bytes_left_out();
  for (LiveBytes& live : plan.course) live.by_category[kRows] += step.bytes_left_out();
  plan.peak_event = peak.event - begin;
  plan.bytes_copied = copied_by_save(step.step(), options);
  plan.modules = modules_of(trace, peak.blocks);
  for (MemoryPlan::Module& m : plan.modules)
    if (m.name == "step") m.live.by_category[kRows] += step.bytes_left_out();
  for (const MemoryPlan::Mark& m : plan.marks)
    if (m.phase == Phase::backward && m.micro_batch == 1)
      plan.before_backward = plan.course[static_cast<std::size_t>(m.event)];

  const auto all = static_cast<double>(step.micro_batches()),
             run = static_cast<double>(step.run_micro_batches());
  for (const Profiler::Entry& e : profiler.entries())
    if (e.phase != "start") plan.flops += e.work.flops * all / run;
  const auto activations = static_cast<double>(step.step().moved_bytes() - moved_before);
  plan.bytes_offloaded = step.step().moved_state_bytes() - states_before +
                         static_cast<std::int64_t>(activations * all / run);
  // Gradients leave after the last micro-batch, and the first one is like those left out.
  const std::int64_t of_first = sent_at.size() > 1 ? sent_at[1] - sent_at[0] : 0;
  plan.bytes_sent =
      sent_after - sent_before + (step.micro_batches() - step.run_micro_batches()) * of_first;
  return plan;
}

ParameterBytes parameter_bytes(const Options& o, int ranks, ParameterShares shares) {
  const DType dtype = o.machine.model_dtype();
  const auto width = [&](DType t) {
    constexpr double kScale = 1.0 / 32;  // a byte for a block of values
    return static_cast<double>(size_of(dtype == DType::f64 ? dtype : t)) +
           (t == DType::e4m3 ? kScale : 0);
  };
  ParameterBytes bytes{
      .weight = width(dtype), .gradient = width(o.parallel.grad_reduce), .optimizer = 0};
  if (o.machine.fp8_weights) bytes.weight *= 1 - shares.fp8;
  const bool transposed = planned_device(o).is_gpu() && o.machine.fp8_recipe != Fp8Recipe::block &&
                          o.machine.fp8_backward == fp8::BackwardOverride::none;
  bytes.weight += shares.fp8 * (transposed ? 2 : 1);
  const distributed::Degrees degrees = distributed::settle(ranks, degrees_of(o));
  const double replicas = degrees.dp_replicate;
  const double dense = replicas / (degrees.dp * degrees.cp);
  const double kept = dense + shares.experts * (replicas / degrees.edp(ranks) - dense);
  if (o.machine.fp8_weights && o.parallel.zero) bytes.weight += shares.fp8 * 2 * kept;
  const OptimizerOptions& opt = o.optimizer;
  if (opt.kind == optim::Kind::adamw)
    bytes.optimizer = width(opt.state_dtype) + width(opt.second_moment_dtype());
  else if (opt.beta1 > 0)
    bytes.optimizer = width(DType::f32);
  if (is_half(dtype))
    bytes.optimizer += opt.master_weights == optim::MasterWeights::f32         ? 4
                       : opt.master_weights == optim::MasterWeights::remainder ? 2
                                                                               : 0;
  if (o.parallel.zero || o.parallel.fsdp) bytes.optimizer *= kept;
  if (o.parallel.fsdp) {
    bytes.weight *= kept;
    bytes.gradient *= kept;
  }
  return bytes;
}

}  // namespace weft::train
