#include "weft/nn/hf_decoder.h"

#include "weft/core/error.h"

namespace weft::nn::hf {
namespace {

using Kind = RopeScaling::Kind;

constexpr const char* kScalings = "default, linear, llama3, yarn";

// partial_rotary_factor; once it has been read, a second place without it changes nothing.
void read_rotated(const HfConfig& h, const Defaults& missing, GptConfig& c) {
  constexpr const char* kKey = "partial_rotary_factor";
  if (missing.rotated == 0) return h.only(kKey, 1);
  if (c.rotary_dim > 0 && !h.has(kKey)) return;
  const double share = h.number(kKey, missing.rotated);
  // A number above 1 need not fit into an integer.
  const std::int64_t width =
      share > 0 && share <= 1 ? static_cast<std::int64_t>(static_cast<double>(c.head_dim()) * share)
                              : 0;
  if (width < 2 || width % 2 != 0)
    h.refuse(kKey, message("those with an even number of the {} elements of a head", c.head_dim()));
  c.rotary_dim = width;
}

// rope_theta and rope_scaling of transformers 4, or rope_parameters of transformers 5.
void read_rope(const HfConfig& h, const Defaults& missing, GptConfig& c) {
  const char* const key = h.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  read_rotated(h, missing, c);
  c.rope_theta = h.number("rope_theta", missing.rope_theta);
  if (!h.has(key)) return;
  const HfConfig r(h.at(key), message("{}: {}", h.where(), key));
  check(h.at(key).is_object(), "{} must be an object, got {}", r.where(), h.at(key).dump());
  c.rope_theta = r.number("rope_theta", c.rope_theta);
  read_rotated(r, missing, c);
  const char* const named = r.has("rope_type") ? "rope_type" : "type";
  const std::string type = r.text(named, "default");
  RopeScaling& s = c.rope_scaling;
  if (type == "default") return;
  if (type == "linear")
    s.kind = Kind::linear;
  else if (type == "llama3")
    s.kind = Kind::llama3;
  else if (type == "yarn")
    s.kind = Kind::yarn;
  else
    r.refuse(named, kScalings);
  s.factor = r.number("factor", 1);
  if (s.kind == Kind::linear) return;
  s.original =
      h.size("original_max_position_embeddings", r.size("original_max_position_embeddings", c.seq));
  if (s.kind == Kind::llama3) {
    s.low = r.number("low_freq_factor", 1);
    s.high = r.number("high_freq_factor", 4);
    return;
  }
  s.beta_fast = r.number("beta_fast", 32);
  s.beta_slow = r.number("beta_slow", 1);
  s.attention = r.number("attention_factor", 0);
  s.mscale = r.number("mscale", 0);
  s.mscale_all = r.number("mscale_all_dim", 0);
  r.only("truncate", true);
}

// In the forms of transformers 4 and 5.
void write_rope(const GptConfig& c, io::Json& out) {
  const RopeScaling& s = c.rope_scaling;
  io::Json r = io::Json::object();
  const bool scales = s.kind != Kind::none;
  r.set("rope_type", scales ? word_of(kRopeScalingWords, s.kind) : "default");
  if (scales) r.set("factor", s.factor);
  if (scales && s.kind != Kind::linear) r.set("original_max_position_embeddings", s.original);
  if (s.kind == Kind::llama3) {
    r.set("low_freq_factor", s.low);
    r.set("high_freq_factor", s.high);
  }
  if (s.kind == Kind::yarn) {
    r.set("beta_fast", s.beta_fast);
    r.set("beta_slow", s.beta_slow);
    if (s.attention != 0) r.set("attention_factor", s.attention);
    if (s.mscale != 0) r.set("mscale", s.mscale);
    if (s.mscale_all != 0) r.set("mscale_all_dim", s.mscale_all);
  }
  out.set("rope_theta", c.rope_theta);
  out.set("rope_scaling", scales ? r : io::Json());
  r.set("rope_theta", c.rope_theta);
  if (c.rotary_dim > 0) {
    const double share = static_cast<double>(c.rotary_dim) / static_cast<double>(c.head_dim());
    r.set("partial_rotary_factor", share);
    out.set("partial_rotary_factor", share);
  }
  out.set("rope_parameters", std::move(r));
}

}  // namespace

// With a gate the rows of q_proj are, head by head, those of the query and then of its gate.
void add_attention(const GptConfig& c, const std::string& ours, const std::string& theirs,
                   Tensors& t) {
  const std::int64_t d = c.head_dim(), heads = c.heads * d, kv = c.kv_head_count() * d;
  const std::int64_t q = heads * (c.attn_gate ? 2 : 1);
  t.add(ours + "qkv.weight", {q + 2 * kv, c.dim},
        {{theirs + "q_proj.weight", {q, c.dim}},
         {theirs + "k_proj.weight", {kv, c.dim}},
         {theirs + "v_proj.weight", {kv, c.dim}}});
  if (c.biases() >= AttentionBias::qkv)
    t.add(ours + "qkv.bias", {q + 2 * kv},
          {{theirs + "q_proj.bias", {q}},
           {theirs + "k_proj.bias", {kv}},
           {theirs + "v_proj.bias", {kv}}});
  t.add(ours + "proj.weight", theirs + "o_proj.weight", {c.dim, heads});
  if (c.biases() == AttentionBias::all) t.add(ours + "proj.bias", theirs + "o_proj.bias", {c.dim});
  if (!c.qk_norm) return;
  t.add(ours + "q_norm.weight", theirs + "q_norm.weight", {c.qk_norm_joint ? heads : d});
  t.add(ours + "k_norm.weight", theirs + "k_norm.weight", {c.qk_norm_joint ? kv : d});
}

void Tensors::add(const std::string& parameter, const Shape& whole,
                  const std::vector<Part>& parts) {
  std::int64_t first = 0;
  for (const Part& p : parts) {
    all_.push_back({p.name, p.shape, parameter, whole, first, false, p.rows});
    first += p.shape.numel();
  }
  check(first == whole.numel(), "hf: the parts of {} must have {} elements, got {}", parameter,
        whole.numel(), first);
}

void Tensors::add_transposed(const std::string& parameter, const std::string& name,
                             std::int64_t out, std::int64_t in) {
  all_.push_back({name, {in, out}, parameter, {out, in}, 0, true});
}

void Tensors::add_copy(const std::string& parameter, const std::string& name, const Shape& shape) {
  add(parameter, name, shape);
  all_.back().copy = true;
}

GptConfig read_decoder(const HfConfig& h, const Defaults& missing) {
  GptConfig c;
  c.arch = Arch::llama;
  c.vocab = h.size("vocab_size");
  c.dim = h.size("hidden_size");
  c.layers = h.size("num_hidden_layers");
  if (c.layers < 1 || static_cast<double>(c.layers) > GptConfig::kMostLayers)
    h.refuse("num_hidden_layers", message("1 to {}", GptConfig::kMostLayers));
  c.heads = h.size("num_attention_heads");
  c.kv_heads = h.size("num_key_value_heads", missing.kv_heads);
  c.head_size = h.size("head_dim", missing.head_dim);
  c.ffn = h.size("intermediate_size");
  c.seq = h.size("max_position_embeddings");
  c.norm_eps = h.number("rms_norm_eps", missing.eps);
  c.tie = h.flag("tie_word_embeddings", false);
  h.only("hidden_act", "silu");
  h.only("attention_dropout", 0);
  read_rope(h, missing, c);
  return c;
}

void write_decoder(const GptConfig& c, io::Json& out) {
  out.set("vocab_size", c.vocab);
  out.set("hidden_size", c.dim);
  out.set("num_hidden_layers", c.layers);
  out.set("num_attention_heads", c.heads);
  out.set("num_key_value_heads", c.kv_head_count());
  out.set("head_dim", c.head_dim());
  out.set("intermediate_size", c.ffn_dim());
  out.set("max_position_embeddings", c.seq);
  out.set("rms_norm_eps", c.norm_eps);
  out.set("tie_word_embeddings", c.tied());
  out.set("hidden_act", "silu");
  out.set("attention_dropout", 0.0);
  out.set("initializer_range", 0.02);
  out.set("use_cache", true);
  write_rope(c, out);
}

void add_mlp(Tensors& t, const std::string& ours, const std::string& theirs, std::int64_t ffn,
             std::int64_t dim) {
  t.add(ours + "gate_up.weight", {2 * ffn, dim},
        {{theirs + "gate_proj.weight", {ffn, dim}}, {theirs + "up_proj.weight", {ffn, dim}}});
  t.add(ours + "down.weight", theirs + "down_proj.weight", {dim, ffn});
}

void add_ends(const GptConfig& c, Tensors& t) {
  t.add("embed.weight", "model.embed_tokens.weight", {c.vocab, c.dim});
  t.add("norm.weight", "model.norm.weight", {c.dim});
  if (!c.tied()) t.add("head.weight", "lm_head.weight", {c.vocab, c.dim});
}

void add_norms_and_mlp(const GptConfig& c, std::int64_t block, Tensors& t) {
  const std::string ours = message("blocks.{}.", block),
                    theirs = message("model.layers.{}.", block);
  t.add(ours + "attn_norm.weight", theirs + "input_layernorm.weight", {c.dim});
  t.add(ours + "mlp_norm.weight", theirs + "post_attention_layernorm.weight", {c.dim});
  if (!c.has_experts(block)) add_mlp(t, ours + "mlp.", theirs + "mlp.", c.ffn_dim(), c.dim);
}

void add_decoder(const GptConfig& c, Tensors& t) {
  add_ends(c, t);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    add_attention(c, message("blocks.{}.attn.", i), message("model.layers.{}.self_attn.", i), t);
    add_norms_and_mlp(c, i, t);
  }
}

void add_experts_of(const GptConfig& c, const ExpertNames& names, const std::string& ours,
                    const std::string& theirs, Tensors& t) {
  const std::int64_t n = c.moe.experts, ffn = c.expert_ffn_dim();
  const std::string gate = names.gate, up = names.up, down = names.down,
                    block = theirs + names.block;
  t.add(ours + "router.weight", block + "gate.weight", {n, c.dim});
  std::vector<Tensors::Part> gates_and_ups, downs;
  for (std::int64_t e = 0; e < n; ++e) {
    const std::string expert = message("{}experts.{}.", block, e);
    gates_and_ups.push_back({expert + gate + ".weight", {ffn, c.dim}});
    gates_and_ups.push_back({expert + up + ".weight", {ffn, c.dim}});
    downs.push_back({expert + down + ".weight", {c.dim, ffn}});
  }
  t.add(ours + "experts.gate_up", {n, 2 * ffn, c.dim}, gates_and_ups);
  t.add(ours + "experts.down", {n, c.dim, ffn}, downs);
}

void add_experts(const GptConfig& c, const ExpertNames& names, Tensors& t) {
  for (std::int64_t i = 0; i < c.layers; ++i)
    if (c.has_experts(i))
      add_experts_of(c, names, message("blocks.{}.moe.", i), message("model.layers.{}.", i), t);
}

std::vector<HfTensor> decoder_tensors(const GptConfig& c) {
  Tensors t;
  add_decoder(c, t);
  return t.take();
}

}  // namespace weft::nn::hf
