#pragma once
#include <string>
#include <vector>

#include "weft/nn/block.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gpt_config.h"
#include "weft/nn/gpt_losses.h"
#include "weft/nn/mtp.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// A decoder-only language model.
///
///   nn::Gpt model({.layers = 6, .heads = 6, .dim = 384, .vocab = 256});
///   Tape tape;
///   Tensor loss = model.loss(model.hidden(ids), model.head, targets);
///   loss.backward();
struct Gpt : Module {
  GptConfig config;
  Embedding embed;                     // (vocab, dim)
  std::optional<Embedding> positions;  // (seq, dim); gpt2
  std::optional<RotaryTable> rotary;   // llama
  Dropout drop;
  std::vector<Block> blocks;
  Norm norm;
  Linear head;  // (vocab, dim), no bias; its weight is embed's when tied
  CrossEntropyLoss loss;
  std::vector<MtpDepth> mtp;  // one a depth, or one for all of them

  explicit Gpt(const GptConfig& config);
  /// ids (B, T) i32 or i64, T <= config.seq  ->  logits (B, T, vocab). With packing, ids are one
  /// row of sequences of at most config.seq tokens each.
  Tensor operator()(const Tensor& ids, const Packing& packing = {}) const;
  [[nodiscard]] Trunk trunk(const Tensor& ids, const Packing& packing = {}) const;
  /// trunk().hidden, for evaluation and models whose routers add nothing to the loss: throws Error
  /// where trunk() would have aux, and so does operator().
  Tensor hidden(const Tensor& ids, const Packing& packing = {}) const;
  /// The loss of the head and of every depth of multi-token prediction. targets (B, T): the token
  /// after each of ids, or loss.ignore_index. Those in the padding of `packing` count for nothing.
  ///   Tape tape;
  ///   GptLosses l = model.losses(ids, targets);
  ///   l.total().backward();
  GptLosses losses(const Tensor& ids, const Tensor& targets, const Packing& packing = {}) const;
  /// The output of MTP depth `depth` (from 1), ready for the head. later (B, T): the token `depth`
  /// places after each; h (B, T, dim): the depth before's hidden, the trunk's for depth 1. With a
  /// cache, of that depth alone, they follow the places in it, and are taken up.
  [[nodiscard]] Trunk mtp_trunk(int depth, const Tensor& later, const Tensor& h,
                                const Packing& packing = {}, KvCache* cache = nullptr) const;
  /// hidden() of new tokens that follow those in the cache, which takes them up: ids (B, T) with
  /// any T >= 1  ->  (B, T, dim).
  Tensor extend(const Tensor& ids, KvCache& cache) const;
  /// Logits of new tokens that follow those in the cache, which takes them up: ids (B, T) with any
  /// T >= 1, so a prompt goes in at once  ->  logits of the last of them, (B, vocab).
  Tensor decode(const Tensor& ids, KvCache& cache) const;

  void visit(Visitor& v) override;
  std::string describe() const override;
  /// Embedded tokens `enter` before the first dropout. With `tokens` everything from there to the
  /// head, outside of attention and products, sees this rank's tokens only, (1, B T / ranks, dim).
  /// `before_use` is called with embeddings, blocks, norm, head and MTP depths.
  unsigned shard_members() const override {
    return Shard::kEnter | Shard::kTokens | Shard::kBeforeUse;
  }
  Gpt like() const { return Gpt(config); }

 private:
  TokenContext context_of(const Tensor& ids, const Packing& packing, KvCache* cache) const;
  Tensor embed_tokens(const Tensor& ids, const TokenContext& context, std::int64_t ahead = 0) const;
  bool recomputes(const KvCache* cache) const {
    return config.recompute == Recompute::full && !cache;
  }
  Trunk run(const Tensor& ids, const Packing& packing, KvCache* cache) const;
  void about_to_use(const Module& part) const {
    if (shard && shard->before_use) shard->before_use(part);
  }
};

}  // namespace weft::nn
