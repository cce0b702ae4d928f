#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/fields.h"
#include "weft/nn/module.h"

namespace weft::nn {

struct LoraOptions {
  static constexpr double kMostAlpha = 1e30;  ///< f32 holds it as a factor
  std::int64_t rank = 0;
  double alpha = 0;  ///< 0: twice the rank
  double dropout = 0;
  bool rslora = false;
  std::string targets = {};

  template <class V>
  void fields(V& v) {
    v.group("LoRA");
    v("lora-rank", rank,
      "rank of an adapter on each layer of --lora-targets; only adapters are trained and saved; 0: "
      "the whole model is",
      between(0, 1 << 16).of_model().shown_first());
    const auto of_adapter = [&](const Rule& rule) {
      return rule.needs(rank > 0, "lora-rank").of_model();
    };
    v("lora-alpha", alpha, "adapters are multiplied by this / --lora-rank; 0: twice the rank",
      of_adapter(between(0, kMostAlpha)));
    v("lora-dropout", dropout, "dropout of the input of adapters", of_adapter(fraction()));
    v("lora-targets", targets,
      "layers with an adapter: ends of their names, or patterns, with a comma between: q,v or "
      "mlp.down; empty: all but the head",
      of_adapter(any()));
    v("rslora", rslora, "divide --lora-alpha by the square root of the rank", of_adapter(any()));
  }
  double alpha_or_default() const { return alpha > 0 ? alpha : 2 * static_cast<double>(rank); }
  /// alpha / rank, or alpha / sqrt(rank) with rslora.
  /// Source: rsLoRA: Kalajdzievski 2023, arXiv:2312.03732.
  /// Throws Error if the rank is below 1.
  double scale() const;
};

/// Rows of a Linear's weight that an adapter changes.
struct LoraPlace {
  std::string name;        ///< "blocks.0.attn.qkv.q"; of a whole Linear its own
  std::string adapter;     ///< of the Lora: "blocks.0.attn.qkv.lora.q"
  std::string weight;      ///< "blocks.0.attn.qkv.weight"
  std::int64_t first = 0;  ///< row of the weight
  std::int64_t rows = 0, in = 0;
  bool tied = false;  ///< the weight is another layer's too
};
/// Every place for an adapter: each part of each Linear, or the whole Linear.
std::vector<LoraPlace> lora_places(const Module& model);

/// Freezes the model, and adds adapters, which are then all that trains.
///
///   nn::Gpt model(config);  // and its weights
///   nn::add_lora(model, {.rank = 8, .targets = "q,v"});
///   optim::AdamW adam(nn::lora_parameters(model), {.lr = 1e-4});
///   ...                     // train
///   nn::merge_lora(model);  // as fast as before
///
/// `targets` are regular expressions with a comma between, of which each matches the whole name of
/// a place or its end after a dot. Of a packed projection, parts have adapters of their own: "qkv"
/// gives one to each of q, k and v, "qkv.q" to q alone. Empty: every Linear but one named head. a
/// starts uniform in +-1/sqrt(in), as in PEFT. An adapter trains or evaluates as its Linear does.
/// A loss that is given a head in place of logits, as Gpt::losses() does, reads the head's weight:
/// while training it refuses dropout of the head's adapter. Call it before parallelize().
/// Throws Error if the rank is below 1, the model has adapters or is sharded, a target matches no
/// Linear (grouped weights of experts, routers and tables cannot have one), or there is dropout for
/// a Linear of a MoE.
void add_lora(Module& model, const LoraOptions& options);

/// The parameters of all adapters, by their names in the model.
NamedTensors lora_parameters(const Module& model);

/// Adds each adapter to its weight, and skips it from then on; unmerge_lora() subtracts it again,
/// which gives the old weight up to rounding. Sums are made in f32 at least and rounded once.
/// The state_dict() of a merged model is that of one without adapters, with the sums as weights;
/// lora_parameters() still lists the adapters. Checkpoints of a training run need them unmerged.
/// Throws Error if an adapted weight is another layer's too, as of a tied head.
void merge_lora(Module& model);
void unmerge_lora(Module& model);
/// weight += scale b a, in place, as merge_lora() does.
/// Throws Error unless weight (rows, in), a (rank, in) and b (rows, rank) fit.
void add_lora_product(const Tensor& weight, const Tensor& a, const Tensor& b, double scale);

}  // namespace weft::nn
