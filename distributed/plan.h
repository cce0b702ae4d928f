#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/distributed/overlap.h"
#include "weft/nn/gpt.h"

namespace weft::distributed {

/// Rows (or columns) of a weight that belong to equal units, of which each rank gets as many:
/// heads, or hidden features.
struct Units {
  std::string what;  ///< for messages: "heads"
  std::int64_t count = 0;
  std::int64_t width = 1;  ///< rows of one unit
  /// Where there are fewer units than ranks, neighbouring ranks share one.
  bool shareable = false;
};

/// How a layer lies over the ranks of a tp group, and what it says to the others.
struct Placement {
  enum class Kind : std::uint8_t {
    whole,   ///< every rank has all of it
    column,  ///< outputs are cut: rows of the weight, and the bias
    row,     ///< inputs are cut: columns of the weight; outputs are summed over ranks
    table,   ///< rows of an embedding
    head,    ///< rows of a head, for those who want all logits
    loss,    ///< the classes of the loss after that head, which reads the head's weight
    heads,   ///< an attention layer that has some of all heads
    tokens,  ///< a model whose tokens are split outside of products
  };
  Kind kind = Kind::whole;
  std::vector<Units> units = {};  ///< column, row: packed one after another; else what is cut
  bool partial = false;  ///< whole: the gradients are this rank's share, to be summed over tp
  /// column, heads: x is gathered, or its gradient summed, before the layer; table: the rows found
  /// are summed and split by tokens at once; tokens: embedded tokens are split.
  bool communicates = true;

  static Placement whole(bool partial) { return {.kind = Kind::whole, .partial = partial}; }
  static Placement column(std::vector<Units> units, bool communicates = true) {
    return {.kind = Kind::column, .units = std::move(units), .communicates = communicates};
  }
  static Placement row(Units units) { return {.kind = Kind::row, .units = {std::move(units)}}; }
  static Placement table(std::int64_t rows, bool splits_tokens) {
    return {.kind = Kind::table, .units = {{"rows", rows}}, .communicates = splits_tokens};
  }
  static Placement head(std::int64_t rows) {
    return {.kind = Kind::head, .units = {{"rows", rows}}};
  }
  static Placement loss(std::int64_t classes) {
    return {.kind = Kind::loss, .units = {{"classes", classes}}};
  }
  static Placement heads(std::int64_t count, bool communicates) {
    return {.kind = Kind::heads, .units = {{"heads", count}}, .communicates = communicates};
  }
  /// `scatters`: embedded tokens come whole and are split in front of the first dropout.
  static Placement tokens(bool scatters) {
    return {.kind = Kind::tokens, .communicates = scatters};
  }
};

/// Where a model is cut: the first rule whose pattern (a regular expression) is all of a module's
/// dotted name holds for it, and for the parameters below it that no rule for a smaller part has
/// taken.
struct Plan {
  struct Rule {
    std::string pattern;
    Placement placement;
  };
  std::vector<Rule> rules;
  bool sequence = false;            ///< tokens are split between products: see GptPlanOptions
  Overlap overlap = Overlap::none;  ///< likewise
};

struct GptPlanOptions {
  /// Between the products of attention and MLPs every rank works on its part of the tokens only:
  /// the activations there are cut too, and two halves of an all-reduce take its place.
  bool sequence = false;
  /// With `sequence`: how attention and MLPs hide what their products wait for. The fused MLP then
  /// is three ops. Latent attention hides only what comes out of it.
  Overlap overlap = Overlap::none;
};

/// The plan of a GPT: attention by heads, MLPs by hidden features, embedding, head and loss by rows
/// of the vocabulary, MTP depths likewise, latent attention behind its latents; norms, routers,
/// experts and gated delta nets whole.
/// Throws Error when gated delta nets meet `sequence`, and on `overlap` without it.
Plan gpt_plan(const nn::GptConfig& config, const GptPlanOptions& options = {});

}  // namespace weft::distributed
