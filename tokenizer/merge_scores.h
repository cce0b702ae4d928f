#pragma once
#include <string>
#include <vector>

#include "weft/tokenizer/bpe.h"

namespace weft::tokenizer {

/// A model of characters as llama.cpp merges it: of all neighbours that together are a token, those
/// of the highest score.
struct MergeScores {
  std::vector<float> scores;  ///< by id
  std::string differs;  ///< what merges otherwise than in the order of the list; empty: nothing
};

/// The scores of a model whose merges are a list. A list that was made from scores, as those of
/// Llama 2 and Mistral were, has every pair that gives a token, and the pairs of a token together.
MergeScores scores_of(const BpeParts& parts);

}  // namespace weft::tokenizer
