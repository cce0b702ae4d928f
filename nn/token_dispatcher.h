#pragma once
#include <memory>

#include "weft/autograd/router.h"
#include "weft/autograd/token_permute.h"
#include "weft/core/fields.h"

namespace weft::nn {

/// What travels to the experts for a token. fp8: e4m3 codes, see fp8::quantize_rows(); results and
/// gradients come back as numbers.
enum class TokenForm : std::uint8_t { model, fp8 };
inline constexpr Word<TokenForm> kTokenFormWords[] = {{"model", TokenForm::model},
                                                      {"fp8", TokenForm::fp8}};

/// Tokens on their way to the experts, with the data to return the results. It is a value, not a
/// member of the dispatcher: a recomputed layer and the next micro-batch need their own.
struct Dispatch {
  ExpertRows rows;              ///< of this rank's tokens, by global expert
  Tensor tokens;                ///< (N, C): after the last dispatch step, by local expert
  Tensor probs;                 ///< (N): the probabilities of these rows
  Tensor expert_rows;           ///< (local experts) i64 on the host: number of rows of each expert
  std::shared_ptr<void> state;  ///< private state of the implementation: split sizes, order
};

/// Fixed numbers of rows per expert, independent of the routing; 0: as many as there are tokens.
struct FixedRows {
  std::int64_t of_rank;   ///< from each rank: its slots, then padding
  std::int64_t of_batch;  ///< at most this many slots, over all ranks that share a batch's tokens
  FixedRows(std::int64_t each) : of_rank(each), of_batch(each) {}
  FixedRows(std::int64_t rank, std::int64_t batch) : of_rank(rank), of_batch(batch) {}
};

/// The multiple to which each expert's rows are padded: `alignment`, or if 0 the best one for the
/// device, at least 16 inside an fp8::Autocast; see LocalDispatcher.
std::int64_t row_alignment(std::int64_t alignment, Device device, std::int64_t capacity,
                           std::int64_t rows_per_expert);

/// Sends tokens to their experts and sums the results, in six steps. Only token_dispatch and
/// token_combine move tokens (ranks may exchange counts before). Between token_dispatch and
/// dispatch_postprocess the tokens are in transit; compute that does not need them can run there. A
/// token's results are summed in the order of its slots, for every layout.
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  /// x (T, C) -> rows by global expert. With a fixed number of rows the host reads nothing, and
  /// slots that get no row are dropped.
  [[nodiscard]] virtual Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                     const FixedRows& fixed) const = 0;
  virtual void token_dispatch(Dispatch& d) const = 0;
  virtual void dispatch_postprocess(Dispatch& d) const = 0;
  /// y (N, C) by local expert -> in the order in which it is sent.
  [[nodiscard]] virtual Tensor combine_preprocess(const Tensor& y, const Dispatch& d) const = 0;
  [[nodiscard]] virtual Tensor token_combine(const Tensor& y, const Dispatch& d) const = 0;
  /// -> (T, C)
  [[nodiscard]] virtual Tensor combine_postprocess(const Tensor& y, const Dispatch& d) const = 0;
};

/// For experts that are all on this rank: sends nothing.
class LocalDispatcher : public TokenDispatcher {
 public:
  /// `alignment`: the rows of each expert are padded to a multiple of it. 0: no padding on the CPU;
  /// on a GPU, unless there is a capacity, a power of two up to 128 that adds about 3 % at most. A
  /// GPU plans each shape of a matrix product once, which takes longer than many products, and the
  /// numbers of rows change in every step. `form`: rounds tokens like ranks that send them.
  explicit LocalDispatcher(std::int64_t experts, std::int64_t alignment = 0,
                           TokenForm form = TokenForm::model)
      : experts_(experts), alignment_(alignment), form_(form) {}
  Dispatch dispatch_preprocess(const Tensor& x, const Routing& routing,
                               const FixedRows& fixed) const override;
  void token_dispatch(Dispatch&) const override {}
  void dispatch_postprocess(Dispatch& d) const override;
  Tensor combine_preprocess(const Tensor& y, const Dispatch&) const override { return y; }
  Tensor token_combine(const Tensor& y, const Dispatch&) const override { return y; }
  Tensor combine_postprocess(const Tensor& y, const Dispatch& d) const override;

 private:
  std::int64_t experts_, alignment_;
  TokenForm form_;
};

}  // namespace weft::nn
