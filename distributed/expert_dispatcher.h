#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/row_path.h"
#include "weft/nn/token_dispatcher.h"

namespace weft::distributed {

/// Process groups of the ranks that share the experts of a layer: ep holds ranks with different
/// experts, etp ranks with other shards of the same experts, and tp_ep all of them. The rank in
/// tp_ep is (rank in ep) * (size of etp) + (rank in etp).
struct ExpertGroups {
  ProcessGroup *ep, *etp, *tp_ep;  ///< must outlive this object
  int batches;                     ///< number of batches (tp_cp groups) that tp_ep overlaps

  explicit ExpertGroups(const DeviceMesh& mesh);
};

/// The state of a dispatch, which a dispatcher keeps in Dispatch::state.
template <class State>
State& state_of(const nn::Dispatch& d) {
  return *static_cast<State*>(d.state.get());
}
/// One transfer of that state. The pointer keeps the whole state alive.
template <class State>
std::shared_ptr<RowTransfer> transfer_of(const nn::Dispatch& d, RowTransfer State::*which) {
  return {d.state, &(state_of<State>(d).*which)};
}

/// Base class of the token dispatchers. Rank p of ep holds the experts p E/P ... (p+1) E/P.
///
/// An expert receives the tokens of all ranks of tp_ep, ordered by rank and then by each rank's
/// token order: the order of a single rank that holds all tokens. The row counts come from one
/// exchange per layer, which on a GPU is also the only host read. With a fixed row count every rank
/// sends that many rows to each expert and the host reads nothing; all ranks must then have the
/// same number of tokens. Where several ranks share a batch and an expert keeps only a limited
/// number of its rows, most of the rows sent are padding; it is removed before the expert's
/// products.
///
/// A token's outputs are summed in slot order, and so is its gradient: y and dx have the same bits
/// for every dispatcher and number of ranks. With etp > 1 each row is itself a sum over ranks.
class ExpertDispatcher : public nn::TokenDispatcher {
 public:
  /// Throws Error when the experts do not divide among the ranks of ep.
  ExpertDispatcher(ExpertGroups groups, std::int64_t experts, std::int64_t alignment = 0,
                   nn::TokenForm form = nn::TokenForm::model);

 protected:
  std::int64_t local_experts() const { return experts_ / groups_.ep->size(); }
  std::int64_t first_expert() const { return groups_.ep->rank() * local_experts(); }
  std::int64_t ranks() const { return groups_.tp_ep->size(); }
  /// Row counts of all ranks of tp_ep, in flight to this rank.
  struct Counts {
    Tensor all;
    Work work;
  };
  /// own (n) i64
  Counts send_counts(const Tensor& own) const;
  /// Returns (ranks, n) on the host. On the meta device every rank is assumed to have `planned`
  /// (n), a host tensor.
  Tensor receive_counts(Counts counts, const Tensor& planned) const;

  /// Returns a default-initialized state for a layer. Reuses the memory of a state that no tape and
  /// no running layer refers to.
  template <class State>
  std::shared_ptr<State> new_state() const {
    for (const std::shared_ptr<void>& old : states_) {
      if (old.use_count() > 1) continue;
      auto state = std::static_pointer_cast<State>(old);
      *state = State();
      return state;
    }
    auto state = std::make_shared<State>();
    states_.push_back(state);
    return state;
  }

  const ExpertGroups groups_;
  const std::int64_t experts_, alignment_;
  const nn::TokenForm form_;

 private:
  mutable std::vector<std::shared_ptr<void>> states_;
};

/// (n) i64 on the host, f(0) ... f(n - 1)
template <class F>
Tensor row_counts(std::int64_t n, F f) {
  Tensor rows = Tensor::empty({n}, DType::i64);
  for (std::int64_t r = 0; r < n; ++r) rows.data<std::int64_t>()[r] = f(r);
  return rows;
}

/// All-gathers every token to all ranks, which select the rows of their experts. Each slot's result
/// is summed over the ranks; only one rank has it. This needs few, evenly sized collectives, but
/// every token is sent to all ranks and k results per token come back from each rank: for small
/// groups.
class AllGatherDispatcher : public ExpertDispatcher {
 public:
  using ExpertDispatcher::ExpertDispatcher;
  nn::Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                                   const nn::FixedRows& fixed) const override;
  void token_dispatch(nn::Dispatch& d) const override;
  void dispatch_postprocess(nn::Dispatch& d) const override;
  Tensor combine_preprocess(const Tensor& y, const nn::Dispatch& d) const override;
  Tensor token_combine(const Tensor& y, const nn::Dispatch& d) const override;
  Tensor combine_postprocess(const Tensor& y, const nn::Dispatch& d) const override;
};

/// Sends each row to the rank that holds its expert and its result back. Rows arrive ordered by
/// rank, then expert; they are sorted by expert, then rank.
/// Source  Lepikhin et al. 2020, arXiv:2006.16668, section 3.2
class AllToAllDispatcher : public ExpertDispatcher {
 public:
  using ExpertDispatcher::ExpertDispatcher;
  nn::Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                                   const nn::FixedRows& fixed) const override;
  void token_dispatch(nn::Dispatch& d) const override;
  void dispatch_postprocess(nn::Dispatch& d) const override;
  Tensor combine_preprocess(const Tensor& y, const nn::Dispatch& d) const override;
  Tensor token_combine(const Tensor& y, const nn::Dispatch& d) const override;
  Tensor combine_postprocess(const Tensor& y, const nn::Dispatch& d) const override;
};

}  // namespace weft::distributed
