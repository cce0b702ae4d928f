#include "weft/distributed/shard_experts.h"

#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/unit_cut.h"
#include "weft/nn/moe.h"
#include "weft/nn/walk.h"

namespace weft::distributed {
namespace {

std::function<void(const Tensor&)> sum_over(ProcessGroup& group) {
  if (group.size() == 1) return {};
  return [&group](const Tensor& counts) { group.at_once().all_reduce(counts).wait(); };
}

std::function<Tensor(const Tensor&)> gather_over(ProcessGroup& group) {
  if (group.size() == 1) return {};
  return [&group](const Tensor& own) {
    Shape shape = own.shape();
    shape[0] *= group.size();
    Tensor all = Tensor::empty(shape, own.dtype(), own.device());
    group.at_once().all_gather(all, contiguous(own)).wait();
    return all;
  };
}

std::string joined(const std::string& module, const std::string& tensor) {
  return module.empty() ? tensor : module + "." + tensor;
}

// Shard r of n of an axis that packs `packed` equal matrices one after another.
nn::ShardSpec::Cut part_of(int axis, std::int64_t length, int packed, int r, int n) {
  const std::int64_t one = length / packed, units = one / n;
  nn::ShardSpec::Cut cut{axis, {}};
  for (int i = 0; i < packed; ++i)
    cut.ranges.emplace_back(i * one + r * units, i * one + (r + 1) * units);
  return cut;
}

class Sharding {
 public:
  Sharding(const DeviceMesh& mesh, const ExpertPlan& plan)
      : mesh_(mesh), plan_(plan), ep_(mesh.ep()), etp_(mesh.etp()) {}

  void shard(const std::string& name, nn::MoE& moe) {
    const std::int64_t experts = moe.options.experts, ffn = moe.options.ffn;
    check(experts % ep_.size() == 0, "{}: experts {} must be a multiple of ep {}", name, experts,
          ep_.size());
    check(ffn % etp_.size() == 0, "{}: the width {} of an expert must be a multiple of etp {}",
          name, ffn, etp_.size());
    check(!moe.router.config.sinkhorn || mesh_.group("tp_cp").size() == 1,
          "{}: sinkhorn balances the tokens of a batch, which must be on one rank, got {} ranks",
          name, mesh_.group("tp_cp").size());
    nn::Experts& e = moe.experts;
    const bool gated = is_gated(e.options.activation);
    const std::string at = joined(name, "experts."), up = at + (gated ? "gate_up" : "up");
    keep(up, e.up, 1, gated ? 2 : 1);
    keep(up + "_bias", e.up_bias, 1, gated ? 2 : 1);
    keep(at + "down", e.down, 2, 1);
    keep(at + "down_bias", e.down_bias, -1, 1);
    change_shard(e, [&](nn::Shard& s) { s.bias_ranks = etp_.size(); });
    const bool several = mesh_.tp_ep().size() > 1;
    if (several || plan_.tokens != nn::TokenForm::model)
      change_shard(moe, [&](nn::Shard& s) {
        s.dispatcher = dispatcher(experts, moe.options.alignment);
        s.overlap_shared = several && plan_.overlap_shared;
        s.delay_gradients = several && plan_.delay_gradients;
      });
    change_shard(moe.router, [&](nn::Shard& s) {
      ProcessGroup& batch = mesh_.group("tp_cp");
      s.sum_batch = sum_over(batch);
      s.gather_batch = gather_over(batch);
      s.tokens = {batch.rank(), batch.size()};
      s.sum_all = sum_over(mesh_.group("tp_dp_cp"));
    });
    if (mesh_.tp().size() == 1) return;
    for (const NamedTensor& p : moe.named_parameters())
      if (p.name.starts_with("router.") || p.name.starts_with("latent_") ||
          p.name == "shared.gate.weight")
        layout_[joined(name, p.name)] = {.spec = {p.tensor.shape(), {}}, .tp_partial = true};
  }

  Layout take() { return std::move(layout_); }

 private:
  std::shared_ptr<const nn::TokenDispatcher> dispatcher(std::int64_t experts,
                                                        std::int64_t alignment) const {
    if (mesh_.tp_ep().size() == 1)
      return std::make_shared<nn::LocalDispatcher>(experts, alignment, plan_.tokens);
    const ExpertGroups groups(mesh_);
    if (plan_.dispatcher == Dispatcher::all_gather)
      return std::make_shared<AllGatherDispatcher>(groups, experts, alignment, plan_.tokens);
    return std::make_shared<AllToAllDispatcher>(groups, experts, alignment, plan_.tokens);
  }

  // Axis 0 is sharded by expert, `axis` (-1: none) by hidden unit.
  void keep(const std::string& name, const Tensor& t, int axis, int packed) {
    if (!t.defined()) return;
    ParameterLayout& own = layout_[name];
    own.expert = true;
    own.tp_cut = axis >= 0 && etp_.size() > 1;
    own.spec.whole = t.shape();
    if (ep_.size() > 1) own.spec.cuts.push_back(part_of(0, t.dim(0), 1, ep_.rank(), ep_.size()));
    if (own.tp_cut)
      own.spec.cuts.push_back(part_of(axis, t.dim(axis), packed, etp_.rank(), etp_.size()));
    keep_part(t, own.spec);
  }

  const DeviceMesh& mesh_;
  const ExpertPlan& plan_;
  ProcessGroup &ep_, &etp_;
  Layout layout_;
};

}  // namespace

Layout shard_experts(nn::Module& model, const DeviceMesh& mesh, const ExpertPlan& plan) {
  Sharding sharding(mesh, plan);
  const int tp = mesh.tp().size();
  nn::detail::for_each_module(model, [&](const std::string& name, nn::Module& m) {
    auto* moe = dynamic_cast<nn::MoE*>(&m);
    if (!moe) return;
    check(tp == 1 || plan.sequence_parallel,
          "{}: experts with tp {} need sequence parallelism (--sp): without it all tp ranks have "
          "the same tokens, and each would be sent {} times",
          name, tp, tp);
    sharding.shard(name, *moe);
  });
  return sharding.take();
}

std::function<void(const Tensor&)> sum_router_counts(const DeviceMesh& mesh) {
  return sum_over(mesh.group("tp_dp_cp"));
}

}  // namespace weft::distributed
