#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::io {
class InputFile;
}

namespace weft::data {

/// A read-only sequence of token ids: in memory, or a part of a file from which read() takes what
/// it is asked for. Copies and slices share the tokens.
class TokenStream {
 public:
  TokenStream() = default;
  static TokenStream of(std::vector<std::int32_t> tokens);
  static TokenStream of(std::vector<std::uint16_t> tokens);
  /// Every byte of the text is a token.
  static TokenStream of_bytes(std::string text);

  std::int64_t size() const { return size_; }
  /// Tokens first .. first + out.size() - 1 as int32.
  /// Throws Error when they are not all there, and when the file has been written to since it was
  /// opened: what has been checked of it need not hold any more.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  /// Throws Error when the range is not inside the stream.
  TokenStream slice(std::int64_t first, std::int64_t count) const;
  /// The highest id; -1 without tokens. Reads them all.
  std::int32_t max_token() const;
  /// Would read() refuse a file that has been written to?
  bool changed() const;
  /// Throws Error when it has.
  void check_unchanged() const;

 private:
  friend TokenStream open_token_file(const std::string& path);

  std::shared_ptr<const void> owner_;
  const unsigned char* data_ = nullptr;  ///< in memory; null in a file
  std::shared_ptr<const io::InputFile> file_;
  std::int64_t first_byte_ = 0;  ///< in the file
  std::int64_t size_ = 0;
  int width_ = 1;  ///< bytes of a token: 1, 2 or 4
};

/// Opens a file of uint16 tokens, or reads a pipe of them: with the 1024-byte header of llm.c (256
/// int32: magic 20240520, version 1, number of tokens) or without one, as nanoGPT writes them.
/// Throws Error when the size does not match, or the magic is that of another format.
TokenStream open_token_file(const std::string& path);

/// Writes the form with a header.
/// Throws Error on a token that does not fit uint16, and on 2^31 tokens and more.
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens);

/// Throws Error when the data use an id that a model of this vocabulary does not have.
void check_vocab(const TokenStream& tokens, std::int64_t vocab);

}  // namespace weft::data
