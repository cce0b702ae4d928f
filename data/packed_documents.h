#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/data/dataset.h"
#include "weft/data/packing.h"
#include "weft/data/token_file.h"
#include "weft/nn/packing.h"

namespace weft::data {

/// Documents of a token stream packed into rows of seq tokens, as pack_documents() does, so that no
/// token sees another document. Tokens are read when rows are asked for; 24 bytes a document stay
/// in memory.
class PackedDocuments : public Dataset {
 public:
  /// A document ends with the tokens `end`, which are part of it, or where the .idx files of the
  /// stream say if `end` is empty.
  /// Throws Error on an empty `end` without such files, and without a document of 2 tokens.
  PackedDocuments(TokenStream tokens, std::int64_t seq, std::span<const std::int32_t> end);
  /// Document i ends before token ends[i]. Of the tokens only those with `counts` not 0 are
  /// targets, such as what an assistant writes in a conversation; the others are only read.
  /// Throws Error unless there is a number of `counts` for each token, one of them not 0.
  PackedDocuments(TokenStream tokens, std::int64_t seq, std::span<const std::int64_t> ends,
                  std::vector<std::uint8_t> counts);

  std::int64_t size() const override { return plan_.rows(); }
  std::int64_t documents() const { return documents_; }
  Batch rows(std::span<const std::int64_t> numbers) const override;
  void will_read(std::span<const std::int64_t> numbers) const override;
  bool allows_padding() const override { return true; }
  std::vector<std::pair<std::string, std::int64_t>> identity() const override {
    return {{"seq", plan_.seq()}, {"tokens", tokens_.size()}, {"documents", documents_}};
  }
  bool changed() const override { return tokens_.changed(); }
  void check_unchanged() const override { tokens_.check_unchanged(); }

 private:
  TokenStream tokens_;
  std::int64_t documents_ = 0;
  PackingPlan plan_;
  std::vector<std::uint8_t> counts_;  ///< of each token; empty: all count
};

/// What layers want to know of a batch with positions whose rows are laid side by side, (1, rows *
/// seq). Sequences have at most `longest` tokens. Throws Error as nn::Packing::of().
nn::Packing packing_of(const Batch& batch, std::int64_t longest, Device device);

}  // namespace weft::data
