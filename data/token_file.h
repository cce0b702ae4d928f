#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::data {

/// A read-only sequence of token ids: in memory, or the mapped part of a file that is read when
/// touched. Copies and slices share the tokens.
class TokenStream {
 public:
  TokenStream() = default;
  static TokenStream of(std::vector<std::int32_t> tokens);
  static TokenStream of(std::vector<std::uint16_t> tokens);
  /// Every byte of the text is a token.
  static TokenStream of_bytes(std::string text);

  std::int64_t size() const { return size_; }
  /// Tokens first .. first + out.size() - 1 as int32.
  /// Throws Error when they are not all there.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  /// Throws Error when the range is not inside the stream.
  TokenStream slice(std::int64_t first, std::int64_t count) const;
  /// The highest id; -1 without tokens. Reads them all.
  std::int32_t max_token() const;

 private:
  friend TokenStream open_token_file(const std::string& path);
  std::shared_ptr<const void> owner_;
  const unsigned char* data_ = nullptr;
  std::int64_t size_ = 0;
  int width_ = 1;  ///< bytes of a token: 1, 2 or 4
};

/// Opens a file of uint16 tokens: with the 1024-byte header of llm.c (256 int32: magic 20240520,
/// version 1, number of tokens) or without one, as nanoGPT writes them.
/// Throws Error when the size does not match, or the magic is that of another format.
TokenStream open_token_file(const std::string& path);

/// Writes the form with a header.
/// Throws Error on a token that does not fit uint16, and on 2^31 tokens and more.
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens);

/// Throws Error when the data use an id that a model of this vocabulary does not have.
void check_vocab(const TokenStream& tokens, std::int64_t vocab);

}  // namespace weft::data
