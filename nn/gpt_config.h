#pragma once
#include <optional>
#include <string>
#include <vector>

#include "weft/autograd/mlp.h"
#include "weft/autograd/rope.h"
#include "weft/core/fields.h"
#include "weft/nn/gated_delta_net.h"
#include "weft/nn/mla.h"
#include "weft/nn/moe.h"
#include "weft/nn/mtp.h"
#include "weft/nn/recompute.h"

namespace weft::nn {

/// A preset of the settings in ArchPreset, each of which can be said on its own.
enum class Arch : std::uint8_t { gpt2, llama };
inline constexpr Word<Arch> kArchWords[] = {{"gpt2", Arch::gpt2}, {"llama", Arch::llama}};

/// How a token knows its place: by a trained vector for each, by rotated queries and keys, or by
/// the causal mask alone.
enum class Positions : std::uint8_t { automatic, learned, rope, none };
inline constexpr Word<Positions> kPositionsWords[] = {{"auto", Positions::automatic},
                                                      {"learned", Positions::learned},
                                                      {"rope", Positions::rope},
                                                      {"none", Positions::none}};

enum class NormKind : std::uint8_t { automatic, layer, rms };
inline constexpr Word<NormKind> kNormWords[] = {
    {"auto", NormKind::automatic}, {"layer", NormKind::layer}, {"rms", NormKind::rms}};

/// The words of kActivations, and auto for none of them.
struct ActivationWords {
  Word<std::optional<Activation>> all[std::size(kActivations) + 1] = {{"auto", {}}};
  constexpr ActivationWords() {
    for (std::size_t i = 0; i < std::size(kActivations); ++i)
      all[i + 1] = {kActivations[i].word, kActivations[i].kind};
  }
};
inline constexpr ActivationWords kActivationWords;

/// mha: multi-head attention, grouped by kv_heads; mla: multi-head latent attention.
enum class AttentionKind : std::uint8_t { mha, mla };
inline constexpr Word<AttentionKind> kAttentionWords[] = {{"mha", AttentionKind::mha},
                                                          {"mla", AttentionKind::mla}};

/// Which projections of attention have a bias.
enum class AttentionBias : std::uint8_t { automatic, none, qkv, all };
inline constexpr Word<AttentionBias> kAttentionBiasWords[] = {{"auto", AttentionBias::automatic},
                                                              {"none", AttentionBias::none},
                                                              {"qkv", AttentionBias::qkv},
                                                              {"all", AttentionBias::all}};

/// What an Arch stands for where the configuration leaves it open.
struct ArchPreset {
  Positions positions;
  NormKind norm;
  Activation activation;
  bool mlp_bias;
  AttentionBias attn_bias;
  bool tie;
};
/// In the order of Arch.
inline constexpr ArchPreset kArchPresets[] = {
    {Positions::learned, NormKind::layer, Activation::gelu_tanh, true, AttentionBias::all, true},
    {Positions::rope, NormKind::rms, Activation::swiglu, false, AttentionBias::none, false}};

inline constexpr Word<Gelu> kGeluWords[] = {{"tanh", Gelu::tanh}, {"erf", Gelu::erf}};

inline constexpr Word<RopeScaling::Kind> kRopeScalingWords[] = {
    {"none", RopeScaling::Kind::none},
    {"linear", RopeScaling::Kind::linear},
    {"llama3", RopeScaling::Kind::llama3},
    {"yarn", RopeScaling::Kind::yarn}};

/// The configuration of a Gpt. fields() declares each field's name, help text, range and origin. A
/// size of 0 is derived from the others.
struct GptConfig {
  Arch arch = Arch::gpt2;
  Positions positions = Positions::automatic;
  NormKind norm = NormKind::automatic;
  std::optional<Activation> activation = {};  ///< unset: that of the preset, in the form of gelu
  std::optional<bool> mlp_bias = {};          ///< of MLPs and experts
  std::int64_t layers = 4, heads = 4, kv_heads = 0, dim = 128, ffn = 0;
  std::int64_t seq = 256;
  std::int64_t vocab = 256;
  double dropout = 0;
  std::int64_t head_size = 0;  ///< elements of a head
  AttentionBias attn_bias = AttentionBias::automatic;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  double norm_eps = 1e-5;
  bool qk_norm = false;
  bool qk_norm_joint = false;   ///< over all heads of queries and of keys, in place of each head
  double clip_qkv = 0;          ///< queries, keys and values are clamped to this; 0: off
  std::int64_t rotary_dim = 0;  ///< rotated elements at the start of a head; 0: all
  bool attn_gate = false;
  bool zero_centered_norm = false;
  std::optional<bool> tie = {};
  std::int64_t window = 0;
  AttentionKind attention = AttentionKind::mha;
  MlaOptions mla = {};  ///< sizes; window, dropout and norm_eps come from this struct
  std::string pattern = {};
  GatedDeltaNetOptions delta = {
      .key_heads = 0, .value_heads = 0, .key_dim = 0, .value_dim = 0, .conv = 0};
  Gelu gelu = Gelu::tanh;  ///< the form of GELU where `activation` is unset
  Recompute recompute = Recompute::none;
  /// Every so many blocks recompute, the first one too; of the first so many, or 0 for all.
  std::int64_t recompute_every = 1, recompute_layers = 0;
  MtpOptions mtp = {};
  /// With experts, MoE layers replace MLPs; ffn 0: the width of the MLP. Activation, biases,
  /// initial values and recomputation follow from the rest of the configuration.
  MoeOptions moe = {};
  std::int64_t moe_every = 1, dense_layers = 0;
  std::vector<std::uint8_t> moe_layers = {};  ///< overrides both: 0 or 1 for each block; or empty

  static constexpr double kMostLayers = 10'000;
  static constexpr double kMostSize = 1 << 30;  ///< sums and products of two sizes fit into 64 bits

  template <class V>
  void fields(V& v);

  /// Throws Error that names the first violated rule: "gpt: dim 130 must be a multiple of heads 4".
  void validate() const;
  /// The same configuration with every size filled in.
  GptConfig resolved() const;
  /// The inverse for what a preset stands for: settings equal to those of `arch` are open again, so
  /// that another `arch` changes them.
  GptConfig reduced() const;
  std::int64_t kv_head_count() const { return kv_heads ? kv_heads : heads; }
  std::int64_t head_dim() const { return head_size ? head_size : dim / heads; }
  const ArchPreset& preset() const { return kArchPresets[static_cast<std::size_t>(arch)]; }
  Positions position_kind() const {
    return positions == Positions::automatic ? preset().positions : positions;
  }
  NormKind norm_kind() const { return norm == NormKind::automatic ? preset().norm : norm; }
  Activation mlp_activation() const;
  bool mlp_biases() const { return mlp_bias.value_or(preset().mlp_bias); }
  AttentionBias biases() const {
    return attn_bias == AttentionBias::automatic ? preset().attn_bias : attn_bias;
  }
  std::int64_t ffn_dim() const;
  std::int64_t expert_ffn_dim() const { return moe.ffn ? moe.ffn : ffn_dim(); }
  bool has_experts(std::int64_t block) const;
  /// What a block recomputes. MTP depths are like the last block.
  Recompute recompute_of(std::int64_t block) const {
    const bool chosen =
        block % recompute_every == 0 && (recompute_layers == 0 || block < recompute_layers);
    return chosen ? recompute : Recompute::none;
  }
  /// The letter of a block's mixer; see mixer_kinds().
  char mixer(std::int64_t block) const;
  bool is_delta(std::int64_t block) const { return mixer(block) == 'd'; }
  bool is_attention(std::int64_t block) const { return mixer(block) == 'a' || mixer(block) == 'w'; }
  /// Whether a block is; the pattern may have more letters than the model has blocks.
  bool has_delta() const {
    const std::size_t d = pattern.find('d');
    return d != std::string::npos && static_cast<std::int64_t>(d) < layers;
  }
  /// The window of a block's attention. A pattern with w limits it to those layers.
  std::int64_t window_of(std::int64_t block) const {
    const bool some = pattern.find('w') != std::string::npos;
    return !some || mixer(block) == 'w' ? window : 0;
  }
  /// Rotated elements of a head.
  std::int64_t rotated() const;
  GatedDeltaNetOptions delta_options() const;
  MlaOptions mla_options() const;
  /// Whether an adapter is of queries, keys and values together, as in the files of GPT-2.
  bool one_projection() const { return position_kind() == Positions::learned; }
  bool tied() const { return tie.value_or(preset().tie); }
  /// The number of parameters, all experts included, by formula.
  std::int64_t parameter_count() const;
  /// Floating-point operations of forward and backward per token of a full sequence, with the
  /// experts that a token uses and without recomputation.
  double flops_per_token() const;
};

namespace detail {
const char* pattern_help();
}

template <class V>
void GptConfig::fields(V& v) {
  const Rule size = between(0, kMostSize);  // 0: derived from the others
  v.group("Model");
  v("arch", arch, kArchWords,
    "what auto means below: gpt2: learned positions, LayerNorm, GELU, biases; llama: rope, "
    "RMSNorm, SwiGLU, no biases",
    any().of_first_model().shown_first());
  v("positions", positions, kPositionsWords,
    "a trained vector for each place, rotated queries and keys, or the causal mask alone",
    any().of_model());
  v("norm", norm, kNormWords, "LayerNorm with biases, or RMSNorm", any().of_model());
  v("activation", activation, kActivationWords.all,
    "of MLPs and experts; swiglu and geglu have a gate", any().of_model());
  v("mlp-bias", mlp_bias, "biases of MLPs and experts; auto: gpt2 yes, llama no", any().of_model());
  v("layers", layers, "number of blocks", between(1, kMostLayers).of_first_model().shown_first());
  v("heads", heads, "attention heads", between(1, kMostSize).of_first_model().shown_first());
  v("kv-heads", kv_heads, "key and value heads; 0: as many as heads",
    size.of_first_model().shown_first());
  v("dim", dim, "width of the residual stream",
    between(1, kMostSize).of_first_model().shown_first());
  v("ffn", ffn, "hidden width of the MLP; 0: 4 dim, with a gate 8/3 dim", size.of_first_model());
  v("seq", seq, "tokens in a sequence", between(1, kMostSize).of_first_model().shown_first());
  v("vocab", vocab, "vocabulary; 0: the tokenizer's", size.of_first_model());
  v("dropout", dropout, "probability of dropping an activation", fraction().shown_first());
  v("qk-norm", qk_norm, "RMSNorm on queries and keys", any().of_first_model());
  v("qk-norm-joint", qk_norm_joint, "one --qk-norm over all heads, in place of one for each head",
    any().needs(qk_norm, "qk-norm").of_model());
  v("clip-qkv", clip_qkv, "queries, keys and values are clamped to [-this, this]; 0: off",
    at_least(0).of_model());
  v("zero-centered-norm", zero_centered_norm, "norms multiply by 1 + their weight (RMSNorm only)",
    any().of_model());
  v("norm-eps", norm_eps, "added to the mean square of a norm", at_least(0).of_first_model());
  v("rope-theta", rope_theta, "base of the rotary frequencies (rope)", above(0).of_first_model());
  v("rope-scaling", rope_scaling.kind, kRopeScalingWords,
    "how rotary frequencies change for sequences longer than those of a first training",
    any().of_model());
  using Scaling = RopeScaling::Kind;
  const Scaling scaling = rope_scaling.kind;
  const bool bends = scaling == Scaling::llama3 || scaling == Scaling::yarn;
  const auto for_yarn = [&](const Rule& rule) {
    return rule.needs(scaling == Scaling::yarn, "rope-scaling yarn").of_model();
  };
  v("rope-factor", rope_scaling.factor, "what frequencies are divided by",
    above(0).needs(scaling != Scaling::none, "rope-scaling, got none").of_model());
  v("rope-original", rope_scaling.original, "llama3, yarn: tokens of the sequences before",
    between(bends ? 1 : 0, kMostSize).needs(bends, "rope-scaling llama3 or yarn").of_model());
  const auto for_llama3 = [&](const Rule& rule) {
    return rule.needs(scaling == Scaling::llama3, "rope-scaling llama3").of_model();
  };
  v("rope-low", rope_scaling.low, "llama3: fewer turns in --rope-original are divided",
    for_llama3(above(0)));
  v("rope-high", rope_scaling.high, "llama3: more turns are kept",
    for_llama3(scaling == Scaling::llama3 ? above(rope_scaling.low) : any()));
  v("rope-beta-fast", rope_scaling.beta_fast, "yarn: more turns in --rope-original are kept",
    for_yarn(scaling == Scaling::yarn ? above(rope_scaling.beta_slow) : any()));
  v("rope-beta-slow", rope_scaling.beta_slow, "yarn: fewer turns are divided", for_yarn(above(0)));
  v("rope-attention", rope_scaling.attention,
    "yarn: factor of cos and sin; 0: 0.1 ln(rope-factor) + 1", for_yarn(at_least(0)));
  v("rope-mscale", rope_scaling.mscale,
    "yarn: m in the factor of cos and sin, (0.1 m ln(rope-factor) + 1) over the same with "
    "--rope-mscale-all; 0: 1 and no such divisor",
    for_yarn(at_least(0)));
  v("rope-mscale-all", rope_scaling.mscale_all,
    "yarn, mla: scores are multiplied by (0.1 m ln(rope-factor) + 1)^2 with this m; 0: off",
    for_yarn(at_least(0)));
  v("rotary-dim", rotary_dim, "rotated elements at the start of a head; 0: all", size.of_model());
  v("head-dim", head_size, "elements of a head; 0: dim / heads", size.of_model());
  v("attn-bias", attn_bias, kAttentionBiasWords,
    "biases of attention: of the projections to queries, keys and values, of these and the output; "
    "auto: gpt2 all, llama none",
    any().of_model());
  v("attn-gate", attn_gate, "the output of attention is multiplied by a sigmoid of its input",
    any().of_model());
  v("gelu", gelu, kGeluWords, "the form of GELU where --activation is auto (gpt2)",
    any().of_model());
  v("window", window,
    "keys a query sees, itself included; 0: all before it; in layers w of a --pattern that has "
    "them",
    at_least(0).of_first_model());
  v("attention", attention, kAttentionWords,
    "multi-head, grouped by --kv-heads, or latent attention (rope only)",
    any().of_model().shown_first());
  const bool latent = attention == AttentionKind::mla;
  v("q-lora", mla.q_lora, "mla: width of the queries' latent; 0: none",
    size.of_model().required_where(latent));
  v("kv-lora", mla.kv_lora, "mla: width of the keys' and values' latent; 0: 4 dim / heads",
    size.of_model().required_where(latent));
  v("qk-nope", mla.nope, "mla: elements of a head without position; 0: dim / heads",
    size.of_model().required_where(latent));
  v("qk-rope", mla.rope, "mla: rotated elements of a head; 0: half of dim / heads",
    size.of_model().required_where(latent));
  v("v-head", mla.v_head, "mla: elements of a value head; 0: dim / heads",
    size.of_model().required_where(latent));
  v("pattern", pattern, detail::pattern_help(), any().of_model().shown_first());
  const bool mixed = has_delta();
  v("delta-key-heads", delta.key_heads, "delta net: heads of queries and keys; 0: as many as heads",
    size.of_model().required_where(mixed));
  v("delta-value-heads", delta.value_heads,
    "delta net: heads of values, a multiple of those of keys; 0: as many as heads",
    size.of_model().required_where(mixed));
  v("delta-key-dim", delta.key_dim, "delta net: elements of a key head; 0: dim / heads",
    size.of_model().required_where(mixed));
  v("delta-value-dim", delta.value_dim, "delta net: elements of a value head; 0: dim / heads",
    size.of_model().required_where(mixed));
  v("delta-conv", delta.conv, "delta net: tokens its convolution sees, 2 to 8; 0: 4",
    size.of_model().required_where(mixed));
  v("tie", tie, "share the weight of embedding and head; auto: gpt2 yes, llama no",
    any().of_first_model());
  v("recompute", recompute, kRecomputeWords,
    "what backward computes again in place of keeping it: parts, such as norms,mlp; selective is "
    "norms,mlp,experts, full is whole blocks",
    any().shown_first());
  const bool recomputes = recompute != Recompute::none;
  v("recompute-every", recompute_every, "every so many blocks recompute, the first one too",
    between(1, INT32_MAX).needs(recomputes, "recompute, got none"));
  v("recompute-layers", recompute_layers, "only so many blocks at the start recompute; 0: all",
    size.needs(recomputes, "recompute, got none"));
  v("mtp", mtp.depths, "multi-token prediction: tokens predicted beyond the next one; 0: none",
    between(0, 1000).of_model().shown_first());
  v("mtp-weight", mtp.weight, "weight of the mean loss of the --mtp depths", at_least(0));
  v("mtp-repeat", mtp.repeated, "one layer for all --mtp depths",
    any()
        .needs(mtp.depths > 0, "mtp, got 0")
        .of_model("mtp_repeated")
        .required_where(mtp.depths > 0));
  v("mtp-detach", mtp.detached, "--mtp trains its own layers only",
    any().needs(mtp.depths > 0, "mtp, got 0"));

  v.group("Experts");
  RouterConfig& r = moe.router;
  v("experts", moe.experts, "experts in place of an MLP; 0: none",
    between(0, 1 << 20).of_model().shown_first());
  const bool sparse = moe.experts > 0;
  v("topk", r.route.topk, "experts that a token goes to",
    between(1, INT32_MAX).of_model().required_where(sparse).shown_first());
  v("expert-ffn", moe.ffn,
    "hidden width of an expert; 0: a token's experts together are as wide as the MLP",
    size.of_model().required_where(sparse));
  v("shared-ffn", moe.shared_ffn,
    "hidden width of an expert for all tokens; 0: none; below 0: as wide as the others",
    Rule{.high = kMostSize}.of_model().required_where(sparse).shown_first());
  v("shared-gate", moe.shared_gate, "a gate on the expert for all tokens",
    any().needs(sparse, "experts").needs(moe.shared_ffn != 0, "shared-ffn, got 0").of_model());
  v("latent", moe.latent, "numbers of a token that the experts work on; 0: all of --dim",
    size.needs(sparse, message("experts, got {} without", moe.latent)).of_model());
  v("moe-every", moe_every, "every so many layers have experts, the first one too",
    between(1, INT32_MAX).of_model().required_where(sparse));
  v("dense-layers", dense_layers, "so many layers at the start keep their MLP",
    size.needs(sparse, "experts").of_model());
  v("router", r.route.score, kRouterScoreWords, "what a logit becomes before experts are compared",
    any().of_model().required_where(sparse).shown_first());
  v("pre-softmax", r.route.pre_softmax,
    "softmax over all experts before the choice, in place of over the chosen ones",
    any().needs(sparse, "experts").of_model());
  v("router-sum", r.route.normalise,
    "sigmoid, sqrt-softplus: divide the chosen scores by their sum",
    any().needs(sparse, "experts").of_model());
  v("router-scaling", r.route.scaling, "factor of every probability",
    above(0).needs(sparse, "experts").of_model());
  v("sinkhorn", r.sinkhorn, "while training, choose experts from the balanced matrix",
    any().needs(sparse, "experts").of_model());
  v("jitter", r.jitter, "while training, the router's input is multiplied by 1 - this to 1 + this",
    fraction().needs(sparse, "experts"));
  v("expert-bias", r.expert_bias, "a bias on the choice of experts, moved by --bias-rate",
    any().needs(sparse, "experts").of_model().required_where(sparse));
  v("groups", r.route.groups, "groups that the experts stand in; 0: no groups",
    between(0, INT32_MAX).of_model().required_where(sparse));
  v("group-topk", r.route.group_topk, "groups that a token may choose from",
    between(0, INT32_MAX).of_model().required_where(sparse));
  v("group-best", r.route.group_best,
    "experts whose scores add up to that of a group; 0: topk / group-topk",
    between(0, INT32_MAX).of_model());
  v("z-loss", r.z_loss, "weight of the loss on large router logits",
    at_least(0).needs(sparse, "experts"));
  v("capacity", r.capacity_factor,
    "an expert takes at most this times its even share of tokens; 0: all that come",
    at_least(0).needs(sparse, "experts").of_model().required_where(sparse).shown_first());
  v("drop", r.drop, kDropPolicyWords,
    "tokens that an expert over its capacity keeps: the most probable, or the first ones",
    any().needs(r.capacity_factor > 0, "capacity"));
  v("force-balance", r.force_balance, "route by chance, for benchmarks",
    any().needs(sparse, "experts"));
}

}  // namespace weft::nn
