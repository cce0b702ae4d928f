#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weft/tokenizer/added.h"
#include "weft/tokenizer/merges.h"
#include "weft/tokenizer/split.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::tokenizer {

/// A step that changes a text before it is cut.
struct NormalStep {
  enum class Kind : std::uint8_t {
    nfc,
    prepend,      ///< `to` before a part that is not empty
    replace,      ///< `to` for each `from`
    first,        ///< `to` before a part that does not begin with `from`
    first_of_all  ///< the same for the part at the beginning of the text
  } kind;
  std::string from, to;
};

/// What the files of all formats describe.
struct BpeParts {
  enum class TokenKind : std::uint8_t { absent, text, special };

  std::int64_t most_ids = 65'536;  ///< ids that set() allows: in proportion to the file
  // By id.
  std::vector<std::string> text;  ///< the bytes that decoding writes
  std::vector<TokenKind> kinds;
  /// The symbols that merging knows: bytes, or characters for `characters`.
  std::unordered_map<std::string, std::int32_t> ids;
  MergeTable merges;
  std::array<std::int32_t, 256> bytes{};  ///< ids of the bytes; -1: none
  bool characters = false;    ///< merging begins with characters, of which unknown ones are bytes
  bool whole_first = false;   ///< a piece that is a token is not merged
  bool valid_only = false;    ///< U+FFFD stands for each byte that is not UTF-8
  bool fuse_unknown = false;  ///< unknown characters in a row are one token
  bool drops_first_space = false;
  std::int32_t unknown = -1;

  std::vector<NormalStep> normal;     ///< before normalized added tokens are looked for
  std::vector<NormalStep> pre_split;  ///< after them
  std::vector<Split> splits;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> before, after;  ///< tokens around a text
  std::vector<float> scores;  ///< by id, of formats that have them: the highest merges first

  /// Makes place for an id. Throws Error on one out of bounds.
  void set(std::int64_t id, std::string bytes, TokenKind kind, const std::string& what);
  /// Adds merges for each pair of tokens that joins to a token, ranked by `rank[id]`; -1: not one.
  /// Throws Error when the tokens are too long for this.
  void merge_by_rank(const std::vector<std::int64_t>& rank, const std::string& what);
};

/// Byte-pair encoding, of bytes or of characters.
class BpeTokenizer final : public Tokenizer {
 public:
  /// Throws Error on parts that do not fit together.
  BpeTokenizer(BpeParts parts, const std::string& what);

  std::int64_t vocab() const override { return static_cast<std::int64_t>(parts_.text.size()); }
  std::vector<std::int32_t> encode(std::string_view text,
                                   const EncodeOptions& options = {}) const override;
  std::string_view bytes_of(std::int32_t token) const override;
  bool has(std::int64_t token) const override;
  bool is_special(std::int32_t token) const override;
  bool drops_first_space() const override { return parts_.drops_first_space; }
  std::optional<std::int32_t> find(std::string_view text) const override;
  const BpeParts& parts() const { return parts_; }

 private:
  class Encoder;

  BpeParts parts_;
  std::unordered_map<std::string, std::int32_t> added_ids_;
  /// Added tokens of the raw text and of the normalized one: those that are always found, and all.
  AddedMatcher raw_[2], normalized_[2];
};

/// Throws Error on the text of an added token that is empty or too long to be looked for anywhere.
void check_added_text(const std::string& text, const std::string& what);
/// `text` after the steps; `at_begin` says whether the text begins here.
std::string normalize(std::string_view text, const std::vector<NormalStep>& steps, bool at_begin);
/// `text` with U+FFFD for each byte that is not part of a character.
std::string only_valid(std::string_view text);

}  // namespace weft::tokenizer
