#pragma once
#include <memory>

#include "weft/autograd/router.h"
#include "weft/autograd/token_permute.h"

namespace weft::nn {

/// Tokens on their way to the experts, and what is needed to bring the results back. Values, not
/// members of a dispatcher: a recomputed layer and the next micro-batch have their own.
struct Dispatch {
  ExpertRows rows;            ///< of this rank's tokens, by global expert
  Tensor tokens;              ///< (N, C): in the end by local expert
  Tensor probs;               ///< (N), beside them
  Tensor expert_rows;         ///< (local experts) i64 on the host: what the experts are given
  std::shared_ptr<void> way;  ///< what an implementation keeps for itself: split sizes, order
};

/// Rows of an expert that are fixed beforehand, whatever the routing; 0: as many as there are.
struct FixedRows {
  std::int64_t of_rank;   ///< from each rank: its slots, and fillers behind them
  std::int64_t of_batch;  ///< slots at most of all ranks together that share a batch's tokens
  FixedRows(std::int64_t each) : of_rank(each), of_batch(each) {}
  FixedRows(std::int64_t rank, std::int64_t batch) : of_rank(rank), of_batch(batch) {}
};

/// The multiple to which the rows of each expert are filled up: `alignment`, or for 0 the one that
/// suits the device, see LocalDispatcher.
std::int64_t row_alignment(std::int64_t alignment, Device device, std::int64_t capacity,
                           std::int64_t rows_per_expert);

/// Brings tokens to the experts that the router chose and adds up what comes back, in six steps of
/// which only token_dispatch and token_combine move tokens (before them ranks may tell each other
/// how many there are). Between token_dispatch and dispatch_postprocess the tokens are under way:
/// what does not need them can be computed there. The order of a token's sum is that of its slots,
/// whatever the layout.
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  /// x (T, C) -> rows by global expert. Where their number is fixed the host reads nothing, and
  /// slots that find no row are dropped.
  [[nodiscard]] virtual Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                     const FixedRows& fixed) const = 0;
  virtual void token_dispatch(Dispatch& d) const = 0;
  virtual void dispatch_postprocess(Dispatch& d) const = 0;
  /// y (N, C) by local expert -> as it is to be sent.
  [[nodiscard]] virtual Tensor combine_preprocess(const Tensor& y, const Dispatch& d) const = 0;
  [[nodiscard]] virtual Tensor token_combine(const Tensor& y, const Dispatch& d) const = 0;
  /// -> (T, C)
  [[nodiscard]] virtual Tensor combine_postprocess(const Tensor& y, const Dispatch& d) const = 0;
};

/// All experts are here: nothing is sent.
class LocalDispatcher : public TokenDispatcher {
 public:
  /// `alignment`: the rows of each expert are filled up to a multiple. 0: on the CPU not at all; on
  /// a GPU, unless there is a capacity, to a power of two up to 128 that adds about 3 % at most.
  /// There every shape of a product is planned once, which takes longer than many a product, and
  /// the rows of experts are new in every step.
  explicit LocalDispatcher(std::int64_t experts, std::int64_t alignment = 0)
      : experts_(experts), alignment_(alignment) {}
  Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                               const FixedRows& fixed) const override;
  void token_dispatch(Dispatch&) const override {}
  void dispatch_postprocess(Dispatch& d) const override;
  Tensor combine_preprocess(const Tensor& y, const Dispatch&) const override { return y; }
  Tensor token_combine(const Tensor& y, const Dispatch&) const override { return y; }
  Tensor combine_postprocess(const Tensor& y, const Dispatch& d) const override;

 private:
  std::int64_t experts_, alignment_;
};

}  // namespace weft::nn
