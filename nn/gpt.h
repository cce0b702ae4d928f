#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/block.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gpt_losses.h"
#include "weft/nn/mtp.h"
#include "weft/nn/token_scope.h"

namespace weft::nn {

/// gpt2: learned positions, LayerNorm, GELU, biases. llama: RoPE, RMSNorm, SwiGLU, no biases.
enum class Arch : std::uint8_t { gpt2, llama };
/// mha: multi-head attention, grouped by kv_heads; mla: multi-head latent attention.
enum class AttentionKind : std::uint8_t { mha, mla };
/// What is computed again in backward instead of being kept: nothing; the MLP's activation; whole
/// blocks, of which only the input is kept.
enum class Recompute : std::uint8_t { none, selective, full };

struct GptConfig {
  Arch arch = Arch::gpt2;
  std::int64_t layers = 4, heads = 4;
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t dim = 128;
  std::int64_t ffn =
      0;  ///< 0: 4 * dim for gpt2; 8/3 * dim rounded up to a multiple of 32 for llama
  std::int64_t seq = 256;  ///< longest sequence
  std::int64_t vocab = 256;
  double dropout = 0;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  bool qk_norm = false;
  std::optional<bool> tie = {};  ///< head shares the embedding's weight; unset: gpt2 yes, llama no
  std::int64_t window = 0;       ///< 0: all tokens see all earlier ones
  AttentionKind attention = AttentionKind::mha;
  // Sizes of mla, see MlaOptions. 0: 4 head_dim, head_dim, head_dim / 2, head_dim; no q_lora.
  std::int64_t q_lora = 0, kv_lora = 0, qk_nope = 0, qk_rope = 0, v_head = 0;
  /// One letter a layer, repeated over the layers: a for attention, d for a gated delta net, as in
  /// "ddda". Empty: attention everywhere.
  std::string pattern = {};
  // Sizes of the gated delta nets, see GatedDeltaNetOptions. 0: heads, heads, head_dim,
  // head_dim, 4.
  std::int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0,
               delta_conv = 0;
  Gelu gelu = Gelu::tanh;  ///< gpt2 only
  Recompute recompute = Recompute::none;
  MtpOptions mtp = {};
  /// With experts, MoE layers in place of MLPs; ffn 0: as wide as those. Activation, biases, first
  /// values and recomputation follow from the rest of the configuration.
  MoeOptions moe = {};
  std::int64_t moe_every = 1;                 ///< block i has experts if i is a multiple
  std::vector<std::uint8_t> moe_layers = {};  ///< or one 0 or 1 for each block

  /// Throws Error with the first rule that does not hold: "gpt: dim 130 must be a multiple of heads
  /// 4".
  void validate() const;
  std::int64_t kv_head_count() const { return kv_heads ? kv_heads : heads; }
  std::int64_t head_dim() const { return dim / heads; }
  std::int64_t ffn_dim() const;
  std::int64_t expert_ffn_dim() const { return moe.ffn ? moe.ffn : ffn_dim(); }
  bool has_experts(std::int64_t block) const;
  bool is_delta(std::int64_t block) const;
  GatedDeltaNetOptions delta_options() const;
  MlaOptions mla_options() const;
  bool tied() const { return tie.value_or(arch == Arch::gpt2); }
  /// The number of trained values, by formula: all experts.
  std::int64_t parameter_count() const;
  /// Floating-point operations of forward and backward for one token of a full sequence, by the
  /// experts that it uses, without what recomputing adds.
  double flops_per_token() const;
};

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
  /// Told of each part (embeddings, blocks, norm and head, MTP depths) right before its parameters
  /// are read in a forward pass; null: nobody is. For parameters that are still on their way.
  std::function<void(const Module& part)> before_use;
  // What a parallel plan puts here: embedded tokens go through `boundary->before` in front of the
  // first dropout; with `split` everything between them and the head, outside of attention and
  // products, is about this rank's part of the tokens only, (1, B T / ranks, dim).
  std::shared_ptr<const Boundary> boundary = {};
  std::optional<TokenSplit> split = {};

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
  Gpt like() const { return Gpt(config); }

 private:
  Tensor embed_tokens(const Tensor& ids, const Packing& packing, std::int64_t first,
                      std::int64_t ahead = 0) const;
  Trunk run(const Tensor& ids, const Packing& packing, KvCache* cache) const;
  void about_to_use(const Module& part) const {
    if (before_use) before_use(part);
  }
  std::optional<TokenPart> part_of(const Tensor& ids, const KvCache* cache) const;
};

}  // namespace weft::nn
