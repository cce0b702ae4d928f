#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/row_path.h"
#include "weft/nn/token_dispatcher.h"

namespace weft::distributed {

/// The ranks that share the experts of a layer: those with other experts (ep), those with the other
/// parts of the same experts (etp), and all of them (tp_ep), where the number of a rank is
/// its number in ep * the size of etp + its number in etp.
struct ExpertGroups {
  ProcessGroup *ep, *etp, *tp_ep;  ///< outlive whoever holds them
  int batches;                     ///< of how many data-parallel ranks there are some in tp_ep

  explicit ExpertGroups(const DeviceMesh& mesh);
};

/// Rows on their way: what a dispatcher keeps in Dispatch::way.
template <class Way>
Way& way_of(const nn::Dispatch& d) {
  return *static_cast<Way*>(d.way.get());
}
/// One trip of it, which keeps the whole way alive.
template <class Way>
std::shared_ptr<RowTrip> trip_of(const nn::Dispatch& d, RowTrip Way::*which) {
  return {d.way, &(way_of<Way>(d).*which)};
}

/// What dispatchers over ranks have in common. Rank p of ep holds the experts p E/P ... (p+1) E/P.
///
/// An expert sees the tokens of all ranks of tp_ep, in the order of the ranks and of each rank's
/// tokens: the rows of one rank that had all tokens. How many there are is known from one exchange
/// of counts a layer, which on a GPU is also the one time that the host reads. With a fixed number
/// every rank sends that many rows to each expert, and the host reads nothing; then all ranks must
/// have the same number of tokens. Where several share a batch, of which an expert keeps only so
/// much, most of these are fillers: they are left out before the expert's products.
///
/// A token's sum has the order of its slots, like that of its gradient: for all dispatchers and
/// numbers of ranks y and dx have the same bits. With etp > 1 each row is itself a sum over ranks.
class ExpertDispatcher : public nn::TokenDispatcher {
 public:
  /// Throws Error when the experts do not divide among the ranks of ep.
  ExpertDispatcher(ExpertGroups groups, std::int64_t experts, std::int64_t alignment = 0);

 protected:
  std::int64_t local_experts() const { return experts_ / groups_.ep->size(); }
  std::int64_t first_expert() const { return groups_.ep->rank() * local_experts(); }
  std::int64_t ranks() const { return groups_.tp_ep->size(); }
  /// Numbers of all ranks of tp_ep, which are on their way to this one.
  struct Counts {
    Tensor all;
    Work work;
  };
  /// own (n) i64
  Counts send_counts(const Tensor& own) const;
  /// (ranks, n) on the host. On the meta device every rank is taken to have `planned` (n), which is
  /// on the host.
  Tensor receive_counts(Counts counts, const Tensor& planned) const;

  /// Where a layer keeps what it knows of its rows: as new, but in the memory of one that no tape
  /// and no layer under way holds any more.
  template <class Way>
  std::shared_ptr<Way> new_way() const {
    for (const std::shared_ptr<void>& old : ways_) {
      if (old.use_count() > 1) continue;
      auto way = std::static_pointer_cast<Way>(old);
      *way = Way();
      return way;
    }
    auto way = std::make_shared<Way>();
    ways_.push_back(way);
    return way;
  }

  const ExpertGroups groups_;
  const std::int64_t experts_, alignment_;

 private:
  mutable std::vector<std::shared_ptr<void>> ways_;
};

/// (n) i64 on the host, f(0) ... f(n - 1)
template <class F>
Tensor row_counts(std::int64_t n, F f) {
  Tensor rows = Tensor::empty({n}, DType::i64);
  for (std::int64_t r = 0; r < n; ++r) rows.data<std::int64_t>()[r] = f(r);
  return rows;
}

/// Takes every token to all ranks, which pick what their experts want; each slot's result is summed
/// over the ranks, of which one has it. Few and even collectives, but each token goes to all ranks
/// and k results a token come back from all: for small groups.
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

/// Takes each row to the rank that has its expert, and its result back. Rows arrive by rank and
/// there by expert; they are sorted by expert and there by rank.
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
