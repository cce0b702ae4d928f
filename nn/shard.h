#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/core/tensor.h"
#include "weft/nn/module.h"

namespace weft {
struct CrossEntropyOptions;
}

namespace weft::nn {

class TokenDispatcher;

/// How a module is spread over ranks: what it calls in place of its own computation, and which part
/// of the whole is here. A parallel plan puts it into Module::shard; every member is optional, and
/// shard_members() says which ones a module acts on. A plan that adds something to a module that
/// another plan has set uses change_shard().
struct Shard {
  // Around a layer's product.
  std::function<Tensor(const Tensor& x)> enter;  ///< what the layer computes with, from its input
  std::function<Tensor(Tensor y)> leave;         ///< its output, from its result without the bias
  /// In place of x weight^T + bias. The bias is null where `leave` is set.
  std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)> product;
  /// In place of the rows of a table at `ids`.
  std::function<Tensor(const Tensor& ids, const Tensor& weight)> lookup;
  /// In place of linear_cross_entropy().
  std::function<Tensor(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                       const CrossEntropyOptions& options)>
      head_loss;

  // Which part of the whole is here.
  struct Heads {
    std::int64_t first = 0, all = 0;
  };
  std::optional<Heads> heads;  ///< attention heads; dropout goes by their numbers in the whole
  /// The tokens of a batch are cut into equal parts, in their order.
  struct Tokens {
    int rank = 0, ranks = 1;
  } tokens;

  // Mixtures of experts. "The batch" are the ranks that share a batch's tokens.
  std::function<void(const Tensor& counts)>
      sum_batch;  ///< counts i64, summed in place over the batch
  std::function<void(const Tensor& counts)> sum_all;  ///< and over all ranks
  /// (T, k) of this rank's tokens -> (ranks T, k) of the whole batch, in the order of the ranks.
  std::function<Tensor(const Tensor& own)> gather_batch;
  std::shared_ptr<const TokenDispatcher> dispatcher;  ///< in place of the local one
  bool overlap_shared = false;  ///< compute the shared expert while tokens are on their way
  /// Ranks that share each expert's hidden units: each adds its share of the output's bias, and has
  /// all of the bias's gradient.
  int bias_ranks = 1;

  /// Called with each part of a model right before a forward pass reads its parameters, which may
  /// still be on their way.
  std::function<void(const Module& part)> before_use;

  /// What shard_members() is made of.
  enum Member : unsigned {
    kEnter = 1,
    kLeave = 2,
    kProduct = 4,
    kLookup = 8,
    kHeadLoss = 16,
    kHeads = 32,
    kTokens = 64,
    kBatch = 128,  ///< sum_batch, sum_all, gather_batch
    kDispatcher = 256,
    kBiasRanks = 512,
    kBeforeUse = 1024,
  };

  /// leave(y) + bias
  Tensor finish(Tensor y, const Tensor& bias) const {
    const Tensor whole = leave(std::move(y));
    return bias.defined() ? add(whole, bias) : whole;
  }
};

/// What m holds, or a Shard in which nothing is set.
inline const Shard& shard_of(const Module& m) {
  static const Shard alone;
  return m.shard ? *m.shard : alone;
}

/// Replaces m's shard by a copy on which `change` has been called.
template <class F>
void change_shard(Module& m, F change) {
  Shard copy = shard_of(m);
  change(copy);
  m.shard = std::make_shared<const Shard>(std::move(copy));
}

}  // namespace weft::nn
