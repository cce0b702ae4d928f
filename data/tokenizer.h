#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::data {

/// Converts text to token ids and back. decode(encode(text)) equals `text`.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids are 0 .. vocab() - 1.
  virtual std::int64_t vocab() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Throws Error on an id outside the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;
};

/// Every byte is a token: needs no training and covers every text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
};

}  // namespace weft::data
