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

/// A read-only sequence of token ids, in memory or in a part of a file that read() reads on demand.
/// Copies and slices share the tokens.
class TokenStream {
 public:
  TokenStream() = default;
  static TokenStream of(std::vector<std::int32_t> tokens);
  static TokenStream of(std::vector<std::uint16_t> tokens);
  /// Every byte of the text is one token.
  static TokenStream of_bytes(std::string text);
  /// The concatenation of `parts`: the shards of a data set.
  static TokenStream joined(std::vector<TokenStream> parts);

  std::int64_t size() const { return size_; }
  /// Reads tokens first .. first + out.size() - 1 as int32.
  /// Throws Error when the range is out of bounds, and when the file has been written since it was
  /// opened, because earlier checks may no longer hold.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  /// Throws Error when the range is not inside the stream.
  TokenStream slice(std::int64_t first, std::int64_t count) const;
  /// The highest id; -1 without tokens. Reads all tokens.
  std::int32_t max_token() const;
  /// Whether the file has been written since it was opened, so that read() would throw.
  bool changed() const;
  /// Throws Error if changed().
  void check_unchanged() const;

 private:
  friend TokenStream open_token_file(const std::string& path);
  /// Calls f(part, first, count) for the tokens of [first, first + count) in each part, in order.
  template <class F>
  void each_part(std::int64_t first, std::int64_t count, F&& f) const;

  std::shared_ptr<const void> owner_;
  const unsigned char* data_ = nullptr;  ///< in memory; null in a file
  std::shared_ptr<const io::InputFile> file_;
  std::int64_t first_byte_ = 0;                            ///< in the file
  std::shared_ptr<const std::vector<TokenStream>> parts_;  ///< set by joined(); else null
  std::int64_t first_token_ = 0;                           ///< in the parts
  std::int64_t size_ = 0;
  int width_ = 1;  ///< bytes per token: 1, 2 or 4
};

/// Opens a file of uint16 tokens, or reads a pipe of them: with the 1024-byte header of llm.c (256
/// int32: magic 20240520, version 1, number of tokens) or without a header, as nanoGPT writes them.
/// Throws Error when the size does not match, or the magic belongs to another format.
TokenStream open_token_file(const std::string& path);

/// Writes the format with a header.
/// Throws Error on a token that does not fit uint16, and on 2^31 tokens or more.
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens);

/// Returns the highest id. Throws Error if the data contain an id outside this vocabulary.
std::int32_t check_vocab(const TokenStream& tokens, std::int64_t vocab);

}  // namespace weft::data
