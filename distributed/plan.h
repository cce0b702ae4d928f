#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/distributed/axis_placement.h"
#include "weft/distributed/overlap.h"
#include "weft/nn/gpt.h"

namespace weft::distributed {

/// Equal groups of rows (or columns) of a weight, such as heads or hidden features. Every rank gets
/// the same number of units.
struct Units {
  std::string what;  ///< for messages: "heads"
  std::int64_t count = 0;
  std::int64_t width = 1;  ///< rows of one unit
  /// With fewer units than ranks, neighbouring ranks share one.
  bool shareable = false;
};

/// How the ranks of a tp group hold the tensors of a module. A negative dim of a shard counts from
/// the last axis; a dim that is cut must divide among the ranks.
struct ModulePlacements {
  /// By name in the module ("weight", "up.weight"); the others are replicated, and so is every
  /// parameter of a smaller part that has a rule of its own. The bias of an nn::Linear is placed by
  /// its output.
  std::map<std::string, AxisPlacement> parameters = {};
  AxisPlacement input = AxisPlacement::replicate();   ///< of x as it arrives
  AxisPlacement output = AxisPlacement::replicate();  ///< of the result as it leaves: not a partial
  /// Of x and the result between `Shard::enter` and `Shard::leave`. None: of an
  /// nn::Linear as the rules of placement_rules.h choose for its weight, of others as input and
  /// output.
  std::optional<AxisPlacement> used = {}, computed = {};
};

/// How a layer is distributed over the ranks of a tp group, and what it communicates.
struct Placement {
  enum class Kind : std::uint8_t {
    whole,   ///< replicated
    column,  ///< column-parallel: outputs are sharded (rows of the weight, bias)
    row,     ///< row-parallel: inputs are sharded (columns of the weight), outputs summed
    table,   ///< rows of an embedding
    head,    ///< rows of a head that returns all logits
    loss,    ///< classes of the fused head and loss, which reads the head's weight
    heads,   ///< an attention layer with a shard of the heads
    tokens,  ///< a model whose tokens are split between products
    own,     ///< rows of a layer's own parameters, besides its products
    norm,    ///< a norm of rows that are sharded: parts of the weight, statistics summed
    placed,  ///< any module, by the placements of its tensors
  };
  Kind kind = Kind::whole;
  std::vector<Units> units = {};  ///< column, row: packed one after another; else what is sharded
  bool partial = false;  ///< whole: gradients cover this rank's tokens or heads; sum them over tp
  /// column, heads: all-gathers x, or sums its gradient, before the layer. table: sums the rows
  /// found and splits them by tokens at once. tokens: splits the embedded tokens.
  bool communicates = true;
  std::map<std::string, std::vector<Units>> parameters = {};  ///< own: by name, each packed
  ModulePlacements tensors = {};                              ///< placed

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
  static Placement own(std::map<std::string, std::vector<Units>> parameters) {
    return {.kind = Kind::own, .parameters = std::move(parameters)};
  }
  static Placement placed(ModulePlacements tensors) {
    return {.kind = Kind::placed, .tensors = std::move(tensors)};
  }
  static Placement norm(Units units) { return {.kind = Kind::norm, .units = {std::move(units)}}; }
  /// `scatters`: the embedded tokens are not split yet; split them before the first dropout.
  static Placement tokens(bool scatters) {
    return {.kind = Kind::tokens, .communicates = scatters};
  }
};

/// How a model is sharded. A module uses the first rule whose pattern (a regular expression)
/// matches its whole dotted name. The rule also covers the parameters below the module, unless a
/// rule for a smaller part does.
struct Plan {
  struct Rule {
    std::string pattern;
    Placement placement;
  };
  std::vector<Rule> rules;
  bool sequence = false;            ///< tokens are split between products: see GptPlanOptions
  Overlap overlap = Overlap::none;  ///< see GptPlanOptions
  /// A pattern of modules whose gathered input is gathered again in backward; empty: none.
  std::string gathers_again = {};
};

struct GptPlanOptions {
  /// Between the products of attention and MLPs every rank works on its part of the tokens only.
  /// This also shards the activations there; an all-gather and a reduce-scatter replace each
  /// all-reduce.
  bool sequence = false;
  /// How products overlap with communication: with `sequence` the gathers and scatters, without it
  /// the sum of a column-parallel layer's input gradient, in either form. The fused MLP then runs
  /// as three ops. Latent attention overlaps its output only.
  Overlap overlap = Overlap::none;
};

/// The plan of a GPT. Attention is sharded by heads, MLPs by hidden features, and embedding, head
/// and loss by rows of the vocabulary; MTP depths likewise; latent attention by heads after its
/// latents, and gated delta nets by key heads with the value heads that share them. Norms, routers
/// and experts are replicated.
Plan gpt_plan(const nn::GptConfig& config, const GptPlanOptions& options = {});

}  // namespace weft::distributed
