#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tokenizer {

struct EncodeOptions {
  /// Whether the text may name added tokens such as "<|im_end|>". Off by default, so that the text
  /// of a user cannot forge the marks between the turns of a conversation: their letters are
  /// encoded as ordinary text.
  bool added_tokens = false;
  /// Whether the tokens that the file puts around a text, such as "<s>", are added.
  bool around = false;
};

struct DecodeOptions {
  bool special = false;  ///< whether special tokens are written as their text
};

/// Converts text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The highest id plus one. Not every id below needs to have a token.
  virtual std::int64_t vocab() const = 0;
  /// Any bytes are a text; docs/tokenizers.md says what becomes of bytes that are not UTF-8.
  virtual std::vector<std::int32_t> encode(std::string_view text,
                                           const EncodeOptions& options = {}) const = 0;

  /// The bytes that a token stands for. One token may be a part of a character.
  /// Throws  Error on an id without a token
  virtual std::string_view bytes_of(std::int32_t token) const = 0;
  /// Whether ids have a token: ids of an embedding beyond the vocabulary must not be sampled.
  virtual bool has(std::int64_t token) const { return token >= 0 && token < vocab(); }
  /// Whether a token is a mark such as "<s>" rather than text.
  virtual bool is_special(std::int32_t) const { return false; }
  /// Whether decoding leaves out a space before the first word, which encoding has put there.
  virtual bool drops_first_space() const { return false; }
  /// The id of a token by its text as in the file, for "</s>" and its like.
  virtual std::optional<std::int32_t> find(std::string_view) const { return std::nullopt; }

  /// The bytes of a text: the text that was encoded, up to the tokenizer's normalization. Tokens
  /// cut in the middle of a character leave bytes that are not UTF-8; see StreamDecoder for
  /// display. Throws  Error on an id without a token
  std::string decode(std::span<const std::int32_t> tokens, const DecodeOptions& options = {}) const;
};

/// Every byte is a token: needs no training and covers every text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocab() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options = {}) const override;
  std::string_view bytes_of(std::int32_t token) const override;
};

/// Text of tokens that come one by one. Holds the bytes of a character until it is complete.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this object.
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  /// The valid UTF-8 that this token completes, with U+FFFD in place of wrong bytes; may be empty.
  /// Throws  Error on an id without a token
  std::string next(std::int32_t token);
  /// U+FFFD for a character that no token completed; starts a new text.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  bool began_ = false;
  std::string held_;
};

struct OpenOptions {
  /// How a .tiktoken file cuts text, a regular expression that docs/tokenizers.md lists; empty:
  /// that of the published vocabulary with this number of ranks.
  std::string split = {};
};

/// The tokenizer in a file or folder, known by its content: Hugging Face's tokenizer.json with a
/// BPE model, a .tiktoken list of ranks, Mistral's tekken.json, or a BPE .model of SentencePiece;
/// in a folder the first of tokenizer.json, tekken.json and tokenizer.model. "bytes" is
/// ByteTokenizer. Throws  Error that names the file and the part that is wrong or not supported
std::unique_ptr<Tokenizer> open(const std::string& path, const OpenOptions& options = {});

/// The same from the content of a file; `what` names it in errors.
std::unique_ptr<Tokenizer> read(std::string_view content, const std::string& what,
                                const OpenOptions& options = {});

/// Throws Error if a file is larger than any tokenizer, before it is read.
void check_size(const std::string& file);

/// The file that open() reads for a path: itself, or the one in a folder.
/// Throws  Error when a folder holds none
std::string file_of(const std::string& path);

}  // namespace weft::tokenizer
