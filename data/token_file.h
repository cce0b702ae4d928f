#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::io {
class InputFile;
}

namespace weft::data {

class MegatronIndex;

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
  /// `size` tokens of `width` bytes (1 or 2 without a sign, or 4) from byte `first_byte` of a file.
  /// `index` says where its documents end, counted from that byte; null: unknown.
  static TokenStream of_file(std::shared_ptr<const io::InputFile> file, std::int64_t first_byte,
                             std::int64_t size, int width,
                             std::shared_ptr<const MegatronIndex> index = nullptr);

  std::int64_t size() const { return size_; }
  /// Bytes per token in memory or in the file; of joined streams the widest.
  int width() const;
  /// Reads tokens first .. first + out.size() - 1 as int32.
  /// Throws Error when the range is out of bounds, on a negative token in a file, and when the file
  /// has been written since it was opened, because earlier checks may no longer hold.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  /// Lets the system fetch tokens of a file in the background, for a read() that follows.
  void will_read(std::int64_t first, std::int64_t count) const;
  /// Throws Error when the range is not inside the stream.
  TokenStream slice(std::int64_t first, std::int64_t count) const;
  /// The highest id; -1 without tokens. Reads all tokens.
  std::int32_t max_token() const;
  /// Whether the file has been written since it was opened, so that read() would throw.
  bool changed() const;
  /// Throws Error if changed().
  void check_unchanged() const;

  /// Whether the .idx files of all its parts say where documents end.
  bool has_documents() const;
  /// Calls f with the number of tokens up to the end of each document, ascending; the last one is
  /// size(), as if the stream ended a document. Stops when f returns false.
  /// Throws Error unless has_documents().
  void each_document_end(const std::function<bool(std::int64_t)>& f) const;

 private:
  friend TokenStream open_token_file(const std::string& path);
  /// Calls f(part, first, count) for the tokens of [first, first + count) in each part, in order.
  template <class F>
  void each_part(std::int64_t first, std::int64_t count, F&& f) const;

  std::shared_ptr<const void> owner_;
  const unsigned char* data_ = nullptr;  ///< in memory; null in a file
  std::shared_ptr<const io::InputFile> file_;
  std::shared_ptr<const MegatronIndex> index_;
  std::int64_t first_byte_ = 0;                            ///< in the file
  std::int64_t before_ = 0;                                ///< tokens of the file before this slice
  std::shared_ptr<const std::vector<TokenStream>> parts_;  ///< set by joined(); else null
  std::int64_t first_token_ = 0;                           ///< in the parts
  std::int64_t size_ = 0;
  int width_ = 1;  ///< bytes per token: 1, 2 or 4
};

/// Opens a file of tokens:
///   x.idx, or x.bin beside an x.idx   Megatron's format, tokens of 8, 16 or 32 bits
///   x.bin                             with the 1024-byte header of llm.c (256 int32: magic
///   20240520,
///                                     version 1, number of tokens), uint16; with the magic
///                                     20240801 and version 7, uint32; or without a header, uint16,
///                                     as nanoGPT writes them; may be a pipe
/// Throws Error when the sizes do not match, or the magic belongs to another format.
TokenStream open_token_file(const std::string& path);
/// Whether a path names a file of tokens rather than a text: .bin or .idx.
bool is_token_file(const std::string& path);
/// Throws Error on such a path, where a text is read.
void check_is_text(const std::string& path);

/// Writes the format of llm.c.
/// Throws Error on a token that does not fit uint16, and on 2^31 tokens or more.
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens);

/// Returns the highest id. Throws Error if the data contain an id outside this vocabulary.
std::int32_t check_vocab(const TokenStream& tokens, std::int64_t vocab);

}  // namespace weft::data
