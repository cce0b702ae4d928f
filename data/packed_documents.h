#pragma once
#include <span>

#include "weft/data/dataset.h"
#include "weft/data/token_file.h"
#include "weft/nn/packing.h"

namespace weft::data {

/// Documents of a token stream packed into rows of seq tokens, as pack_documents() does, so that no
/// token sees another document. All rows are held in memory, 12 bytes a token.
class PackedDocuments : public Dataset {
 public:
  /// A document ends with the tokens `end`, which are part of it.
  /// Throws Error on an empty `end`, and without a document of 2 tokens.
  PackedDocuments(const TokenStream& tokens, std::int64_t seq, std::span<const std::int32_t> end);

  std::int64_t size() const override { return all_.rows(); }
  std::int64_t documents() const { return documents_; }
  Batch rows(std::span<const std::int64_t> numbers) const override;
  std::vector<std::pair<std::string, std::int64_t>> identity() const override {
    return {{"seq", all_.inputs.dim(1)}, {"tokens", tokens_}, {"documents", documents_}};
  }

 private:
  Batch all_;
  std::int64_t tokens_, documents_ = 0;
};

/// What layers want to know of a batch with positions whose rows are laid side by side, (1, rows *
/// seq). Sequences have at most `longest` tokens. Throws Error as nn::Packing::of().
nn::Packing packing_of(const Batch& batch, std::int64_t longest, Device device);

}  // namespace weft::data
