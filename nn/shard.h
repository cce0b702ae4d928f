#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/core/tensor.h"
#include "weft/nn/module.h"

namespace weft {
struct CrossEntropyOptions;
namespace fp8 {
struct LayerState;
struct Recipe;
}  // namespace fp8
}  // namespace weft

namespace weft::nn {

class TokenDispatcher;

/// How a module is sharded over ranks: functions that replace parts of its computation, and which
/// shard this rank holds. A parallel plan sets Module::shard. Every member is optional;
/// shard_members() says which ones a module uses. change_shard() adds to a shard that another plan
/// has set.
struct Shard {
  using Fp8Product = Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const fp8::Recipe& recipe, const fp8::LayerState& state);

  // Around a layer's matrix product.
  std::function<Tensor(const Tensor& x)> enter;  ///< applied to the layer's input
  bool enters_again = false;  ///< backward calls `enter` again instead of keeping what it returned
  std::function<Tensor(Tensor y)> leave;  ///< applied to its result without bias
  /// Replaces x weight^T + bias. The bias is null if `leave` is set.
  std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)> product;
  /// Replaces enter, product and leave where the layer multiplies in FP8.
  std::function<Fp8Product> fp8_product;
  /// Replaces the lookup of a table's rows at `ids`.
  std::function<Tensor(const Tensor& ids, const Tensor& weight)> lookup;
  /// Replaces linear_cross_entropy().
  std::function<Tensor(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                       const CrossEntropyOptions& options)>
      head_loss;

  // Which shard this rank holds.
  struct Heads {
    std::int64_t first = 0, all = 0;
  };
  std::optional<Heads> heads;  ///< attention heads; dropout numbers them as in the whole module
  /// The tokens of a batch are split into equal consecutive ranges, in rank order.
  struct Tokens {
    int rank = 0, ranks = 1;
  } tokens;

  // A norm whose rows are split over ranks.
  std::function<Tensor(Tensor part)> sum_row;  ///< sums over the ranks, forward and backward
  int row_ranks = 1;                           ///< their number

  // Mixtures of experts. "Batch" means the ranks that share the tokens of a batch.
  std::function<void(const Tensor& counts)> sum_batch;  ///< sums counts i64 in place over the batch
  std::function<void(const Tensor& counts)> sum_all;    ///< and over all ranks
  /// (T, k) of this rank's tokens -> (ranks T, k) of the whole batch, in rank order.
  std::function<Tensor(const Tensor& own)> gather_batch;
  std::shared_ptr<const TokenDispatcher> dispatcher;  ///< replaces the local dispatcher
  bool overlap_shared = false;  ///< compute the shared expert while tokens are in transit
  /// In backward, compute the gradients of the experts' weights while those of tokens are in
  /// transit.
  bool delay_gradients = false;
  /// Number of ranks that share each expert's hidden units. Each adds 1 / bias_ranks of the output
  /// bias, and each computes the full gradient of that bias.
  int bias_ranks = 1;

  /// Called for a module right before its parameters are read, which may be in transit or
  /// elsewhere, by forward or by a second pass that backward runs. They are there until the next
  /// call.
  std::function<void(const Module& part)> before_use;

  /// Bits of shard_members().
  enum Member : unsigned {
    kEnter = 1,
    kLeave = 2,
    kProduct = 4,  ///< product, fp8_product
    kLookup = 8,
    kHeadLoss = 16,
    kHeads = 32,
    kTokens = 64,
    kBatch = 128,  ///< sum_batch, sum_all, gather_batch
    kDispatcher = 256,
    kBiasRanks = 512,
    kBeforeUse = 1024,
    kRowSum = 2048,  ///< sum_row, row_ranks
  };

  /// leave(y) + bias
  Tensor finish(Tensor y, const Tensor& bias) const {
    const Tensor whole = leave(std::move(y));
    return bias.defined() ? add(whole, bias) : whole;
  }
};

/// use(enter(x)), or use(x) without `enter`.
template <class F>
Tensor with_entered(const Shard& s, const Tensor& x, const F& use) {
  if (!s.enter) return use(x);
  return use_discarded(
      s.enters_again, {x}, [&s](const TensorList& in) { return s.enter(in[0]); }, use);
}

/// The shard of m; a default Shard if it has none.
inline const Shard& shard_of(const Module& m) {
  static const Shard alone;
  return m.shard ? *m.shard : alone;
}

/// Replaces m's shard by a copy that `change` has modified.
template <class F>
void change_shard(Module& m, F change) {
  Shard copy = shard_of(m);
  change(copy);
  m.shard = std::make_shared<const Shard>(std::move(copy));
}

}  // namespace weft::nn
