#include "weft/core/error.h"
#include "weft/nn/hf_decoder.h"

namespace weft::nn {
namespace {

/// The words of transformers; of two for one activation the first is written.
constexpr Word<Activation> kActivationFunctions[] = {
    {"gelu_new", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu", Activation::gelu_erf},      {"relu", Activation::relu},
    {"relu2", Activation::relu2},        {"silu", Activation::silu}};

void read_activation(const HfConfig& h, GptConfig& c) {
  const std::string word = h.text("activation_function", kActivationFunctions[0].name);
  std::string known;
  for (const auto& [name, kind] : kActivationFunctions) {
    if (word == name) {
      if (kind == Activation::gelu_erf)
        c.gelu = Gelu::erf;
      else if (kind != Activation::gelu_tanh)
        c.activation = kind;  // GELU is left to the flag of its form
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  h.refuse("activation_function", known);
}

GptConfig read_gpt2(const HfConfig& h) {
  GptConfig c;
  c.arch = Arch::gpt2;
  c.vocab = h.size("vocab_size");
  c.dim = h.size("n_embd");
  c.layers = h.size("n_layer");
  c.heads = h.size("n_head");
  c.seq = h.size("n_positions", h.size("n_ctx", 1024));
  c.ffn = h.size("n_inner", 4 * c.dim);
  c.norm_eps = h.number("layer_norm_epsilon", 1e-5);
  c.tie = h.flag("tie_word_embeddings", true);
  read_activation(h, c);
  h.only("scale_attn_weights", true);
  h.only("scale_attn_by_inverse_layer_idx", false);
  h.only("add_cross_attention", false);
  c.dropout = h.number("resid_pdrop", 0.1);
  for (const char* key : {"embd_pdrop", "attn_pdrop"})
    if (h.number(key, 0.1) != c.dropout)
      h.refuse(key, message("the same as resid_pdrop, {}", c.dropout));
  return c;
}

void write_gpt2(const GptConfig& c, io::Json& out) {
  out.set("vocab_size", c.vocab);
  out.set("n_embd", c.dim);
  out.set("n_layer", c.layers);
  out.set("n_head", c.heads);
  out.set("n_positions", c.seq);
  out.set("n_ctx", c.seq);
  out.set("n_inner", c.ffn_dim());
  out.set("layer_norm_epsilon", c.norm_eps);
  out.set("activation_function", word_of(kActivationFunctions, c.mlp_activation()));
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out.set(key, c.dropout);
  out.set("scale_attn_weights", true);
  out.set("scale_attn_by_inverse_layer_idx", false);
  out.set("initializer_range", 0.02);
  out.set("tie_word_embeddings", c.tied());
  out.set("use_cache", true);
}

void add_gpt2_linear(hf::Tensors& t, const std::string& ours, const std::string& theirs,
                     std::int64_t out, std::int64_t in) {
  t.add_transposed(ours + ".weight", theirs + ".weight", out, in);
  t.add(ours + ".bias", theirs + ".bias", {out});
}

void add_gpt2_norm(hf::Tensors& t, const std::string& ours, const std::string& theirs,
                   std::int64_t dim) {
  t.add(ours + ".weight", theirs + ".weight", {dim});
  t.add(ours + ".bias", theirs + ".bias", {dim});
}

std::vector<HfTensor> gpt2_tensors(const GptConfig& c) {
  hf::Tensors t;
  t.add("embed.weight", "transformer.wte.weight", {c.vocab, c.dim});
  t.add("positions.weight", "transformer.wpe.weight", {c.seq, c.dim});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = message("blocks.{}.", i), theirs = message("transformer.h.{}.", i);
    add_gpt2_norm(t, ours + "attn_norm", theirs + "ln_1", c.dim);
    add_gpt2_linear(t, ours + "attn.qkv", theirs + "attn.c_attn", 3 * c.dim, c.dim);
    add_gpt2_linear(t, ours + "attn.proj", theirs + "attn.c_proj", c.dim, c.dim);
    add_gpt2_norm(t, ours + "mlp_norm", theirs + "ln_2", c.dim);
    add_gpt2_linear(t, ours + "mlp.up", theirs + "mlp.c_fc", c.ffn_dim(), c.dim);
    add_gpt2_linear(t, ours + "mlp.down", theirs + "mlp.c_proj", c.dim, c.ffn_dim());
  }
  add_gpt2_norm(t, "norm", "transformer.ln_f", c.dim);
  if (!c.tied()) t.add("head.weight", "lm_head.weight", {c.vocab, c.dim});
  return t.take();
}

}  // namespace

HfFamily hf_gpt2() {
  return {.type = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .prefix = "transformer.",
          .read = read_gpt2,
          .write = write_gpt2,
          .tensors = gpt2_tensors,
          // Masks that old files store beside the weights.
          .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"}};
}

}  // namespace weft::nn
