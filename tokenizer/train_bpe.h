#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weft/tokenizer/split.h"

namespace weft::tokenizer {

struct BpeTrainOptions {
  std::int64_t vocab = 4096;     ///< tokens in all: 256 bytes, the merges, the special ones
  std::int64_t least_count = 2;  ///< a pair that occurs less often is not merged
  Split split = Split::cl100k;
  std::vector<std::string> special = {"<|endoftext|>"};  ///< they get the last ids
};

/// Learns a byte-level byte-pair encoding: again and again the most frequent pair of neighbours
/// within a word becomes a token; of equally frequent pairs the one of smaller ids.
/// Source: Sennrich, Haddow, Birch 2016, arXiv:1508.07909, over bytes as in GPT-2.
class BpeTrainer {
 public:
  /// Throws Error on a vocabulary without place for the bytes and the special tokens.
  explicit BpeTrainer(BpeTrainOptions options = {});
  /// Counts the words of a text.
  void add(std::string_view text);
  /// The tokenizer.json of what has been counted; fewer merges where no pair is left.
  std::string to_json() const;

 private:
  BpeTrainOptions options_;
  std::unordered_map<std::string, std::int64_t> words_;
};

}  // namespace weft::tokenizer
