#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weft::tokenizer {

/// A token that is found in a text as a whole, before anything is merged.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = false;              ///< a mark rather than text
  bool normalized = false;           ///< looked for in the normalized text, else in the raw one
  bool left = false, right = false;  ///< takes the white space before it, or after it
  bool always = false;  ///< part of the model: found whether or not the text may name added tokens
};

/// Finds added tokens from left to right, the longest where several begin.
class AddedMatcher {
 public:
  void add(const AddedToken& token);
  bool empty() const { return nodes_.empty(); }

  /// Calls on_text(begin, end) and on_token(id) for the parts of a text, in order.
  template <class OnText, class OnToken>
  void split(std::string_view text, const OnText& on_text, const OnToken& on_token) const {
    std::size_t kept = 0;
    for (Match m; next(text, kept, m); kept = m.end) {
      if (m.begin > kept) on_text(kept, m.begin);
      on_token(m.id);
    }
    if (kept < text.size()) on_text(kept, text.size());
  }

 private:
  struct Match {
    std::size_t begin = 0, end = 0;
    std::int32_t id = 0;
  };
  bool next(std::string_view text, std::size_t from, Match& m) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::int32_t> nodes_;  ///< a trie of bytes: the token that ends at each node, or -1
  std::array<std::int32_t, 256> roots_{};
  std::unordered_map<std::uint64_t, std::int32_t> children_;  ///< node << 8 | byte
};

}  // namespace weft::tokenizer
