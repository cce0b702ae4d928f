#pragma once
#include <span>
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
  std::optional<Embedding> positions;  // (seq, dim); if they are learned
  std::optional<RotaryTable> rotary;   // if they are rotary
  Dropout drop;
  std::vector<Block> blocks;
  Norm norm;
  Linear head;  // (vocab, dim), no bias; its weight is embed's when tied
  CrossEntropyLoss loss;
  std::vector<MtpDepth> mtp;  // one per depth, or one for all depths

  explicit Gpt(const GptConfig& config);
  /// ids (B, T) i32 or i64, T <= config.seq  ->  logits (B, T, vocab). With packing, ids are one
  /// row of sequences, each of at most config.seq tokens.
  Tensor operator()(const Tensor& ids, const Packing& packing = {}) const;
  [[nodiscard]] Trunk trunk(const Tensor& ids, const Packing& packing = {}) const;
  /// trunk().hidden, for evaluation and for models without router losses. Like operator(), it
  /// throws Error if trunk() would return aux.
  Tensor hidden(const Tensor& ids, const Packing& packing = {}) const;
  /// The losses of the head and of every depth of multi-token prediction. targets (B, T): the next
  /// token of each of ids, or loss.ignore_index. Targets in the padding of `packing` are ignored.
  ///   Tape tape;
  ///   GptLosses l = model.losses(ids, targets);
  ///   l.total().backward();
  GptLosses losses(const Tensor& ids, const Tensor& targets, const Packing& packing = {}) const;
  /// The output of MTP depth `depth` (from 1), the input of the head. later (B, T): the token
  /// `depth` places after each; h (B, T, dim): hidden of the previous depth, for depth 1 of the
  /// trunk. With a cache, which is for this depth only, the tokens follow those in it and are
  /// appended.
  [[nodiscard]] Trunk mtp_trunk(int depth, const Tensor& later, const Tensor& h,
                                const Packing& packing = {}, KvCache* cache = nullptr) const;
  /// hidden() of new tokens, which follow those in the cache and are appended to it: ids (B, T)
  /// with any T >= 1  ->  (B, T, dim).
  Tensor extend(const Tensor& ids, KvCache& cache) const;
  /// The same for rows of different lengths: row i of ids (B, T) follows the tokens in *rows[i], a
  /// cache of one row. The products with weights are of all rows at once, but for those of latent
  /// attention and gated delta nets.
  Tensor extend(const Tensor& ids, std::span<KvCache* const> rows) const;
  /// Logits for new tokens, which follow those in the cache and are appended to it: ids (B, T) with
  /// any T >= 1 (a prompt is one call)  ->  logits of the last token, (B, vocab).
  Tensor decode(const Tensor& ids, KvCache& cache) const;
  Tensor decode(const Tensor& ids, std::span<KvCache* const> rows) const;

  void visit(Visitor& v) override;
  std::string describe() const override;
  /// `enter` is applied to embedded tokens before the first dropout. With `tokens`, everything from
  /// there to the head, except attention and matrix products, runs on this rank's tokens only, (1,
  /// B T / ranks, dim). `before_use` is called with embeddings, blocks, norm, head and MTP depths.
  unsigned shard_members() const override {
    return Shard::kEnter | Shard::kTokens | Shard::kBeforeUse;
  }

 private:
  TokenContext context_of(const Tensor& ids, const Packing& packing, KvCache* cache) const;
  Tensor embed_tokens(const Tensor& ids, const TokenContext& context, std::int64_t ahead = 0) const;
  Trunk run(const Tensor& ids, const TokenContext& context) const;
  Tensor logits_of_last(const Tensor& h) const;
  void add_depths(GptLosses& out, const Tensor& ids, Tensor goals, Tensor h,
                  const Packing& packing) const;
  void about_to_use(const Module& part) const {
    if (shard && shard->before_use) shard->before_use(part);
  }
};

}  // namespace weft::nn
