#include "weft/tokenizer/vocabulary.h"

#include <algorithm>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/bpe.h"
#include "weft/tokenizer/read.h"
#include "weft/tokenizer/vocabulary_parts.h"

namespace weft::tokenizer {
namespace {

using TokenKind = BpeParts::TokenKind;
using NormalKind = NormalStep::Kind;

std::string in_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += byte_alphabet(static_cast<unsigned char>(c));
  return out;
}

struct Cut {
  const char* name;
  std::vector<Split> splits;
  bool whole_first;  ///< llama.cpp takes a piece that is a token as it is
};

/// Whether merging gives every token that a piece may be, so that it does not matter.
bool merges_reach_all(const BpeParts& p) {
  std::vector<std::int32_t> symbols;
  for (const auto& [bytes, id] : p.ids) {
    if (p.kinds[static_cast<std::size_t>(id)] == TokenKind::special) continue;
    symbols.clear();
    for (const char c : bytes) symbols.push_back(p.bytes[static_cast<unsigned char>(c)]);
    p.merges.apply(symbols);
    if (symbols.size() != 1 || symbols[0] != id) return false;
  }
  return true;
}

std::string cut_of(const BpeParts& p) {
  static const Cut cuts[] = {
      {"gpt-2", {Split::gpt2}, false},
      {"llama-bpe", {Split::cl100k}, true},
      {"dbrx", {Split::cl100k}, false},
      {"qwen2", {Split::qwen2}, false},
      {"qwen35", {Split::qwen3_5}, false},
      {"gpt-4o", {Split::o200k}, false},
      {"tekken", {Split::tekken}, true},
      {"deepseek-v3", {Split::deepseek_digits, Split::deepseek_cjk, Split::deepseek_words}, false},
      {"smollm", {Split::digit, Split::gpt2}, false}};
  const char* other = nullptr;
  for (const Cut& c : cuts) {
    if (c.splits != p.splits) continue;
    if (c.whole_first == p.whole_first) return c.name;
    other = c.name;
  }
  if (other && merges_reach_all(p)) return other;
  std::string list;
  for (const Split s : p.splits) list += (list.empty() ? "" : ", then ") + std::string(regex_of(s));
  if (other) refuse("pieces that are tokens and that no merges reach, after the cut " + list);
  refuse(list.empty() ? "text that is not cut before it is merged" : "the cut " + list);
}

/// The two tokens that a merge of this rank joins. Files of ranks list tokens, each of which can
/// be cut at several places: it is the two that merging by the ranks below gives.
std::pair<std::int32_t, std::int32_t> parts_of(const BpeParts& p, std::string_view bytes,
                                               std::uint32_t rank) {
  std::vector<std::int32_t> symbols;
  for (const char c : bytes) symbols.push_back(p.bytes[static_cast<unsigned char>(c)]);
  while (symbols.size() > 2) {
    MergeTable::Merge best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const auto m = p.merges.find(symbols[i], symbols[i + 1]); m.rank < best.rank)
        best = m, at = i;
    if (best.rank >= rank) break;
    symbols[at] = best.token;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  return symbols.size() == 2 ? std::pair(symbols[0], symbols[1]) : std::pair(-1, -1);
}

std::vector<std::string> merges_of(const BpeParts& p) {
  std::vector<MergeTable::Entry> all = p.merges.entries();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.merge.rank, a.left) < std::pair(b.merge.rank, b.left);
  });
  std::vector<std::string> out;
  const auto bytes_of = [&](std::int32_t id) -> const std::string& {
    return p.text[static_cast<std::size_t>(id)];
  };
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i + 1;
    while (end < all.size() && all[end].merge.rank == all[i].merge.rank) ++end;
    std::pair parts(all[i].left, all[i].right);
    if (end - i > 1) parts = parts_of(p, bytes_of(all[i].merge.token), all[i].merge.rank);
    if (parts.first >= 0)
      out.push_back(in_byte_alphabet(bytes_of(parts.first)) + " " +
                    in_byte_alphabet(bytes_of(parts.second)));
    i = end;
  }
  return out;
}

void add_bytes(const BpeParts& p, Vocabulary& out, Tokens& tokens) {
  out.model = "gpt2";
  for (const NormalStep& s : p.normal)
    if (s.kind != NormalKind::nfc) refuse("a normalizer other than NFC before a byte-level model");
  if (!p.pre_split.empty()) refuse("a space that is added before the text");
  out.pre = cut_of(p);
  for (std::size_t i = 0; i < p.text.size(); ++i)
    if (p.kinds[i] != TokenKind::absent)
      tokens.set(static_cast<std::int64_t>(i), p.text[i], TokenType::user_defined);
  for (const auto& [bytes, id] : p.ids) tokens.set(id, in_byte_alphabet(bytes), TokenType::normal);
  out.merges = merges_of(p);
}

// A run's tokenizer of bytes: no merges.
Vocabulary of_bytes(std::int64_t size) {
  Vocabulary out;
  out.model = "gpt2";
  out.pre = "gpt-2";
  Tokens tokens(out, size);
  for (int b = 0; b < 256; ++b)
    tokens.set(b, byte_alphabet(static_cast<unsigned char>(b)), TokenType::normal);
  tokens.finish();
  return out;
}

}  // namespace

Vocabulary vocabulary_of(const Tokenizer& tokenizer, std::int64_t size) {
  check(tokenizer.vocab() <= size, "tokenizer: has {} ids, and the model {}", tokenizer.vocab(),
        size);
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (!bpe) return of_bytes(size);
  const BpeParts& p = bpe->parts();
  Vocabulary out;
  Tokens tokens(out, size);
  p.characters ? add_characters(p, out, tokens) : add_bytes(p, out, tokens);
  bool strips = false;
  for (const AddedToken& t : p.added) {
    const std::string& text = p.text[static_cast<std::size_t>(t.id)];
    tokens.set(t.id, text, t.special ? TokenType::control : TokenType::user_defined);
    strips = strips || t.left || t.right;
  }
  if (strips) add_difference(out, "added tokens do not take the spaces beside them");
  if (p.unknown >= 0) {
    out.unknown = p.unknown;
    const auto i = static_cast<std::size_t>(p.unknown);
    if (out.types[i] != TokenType::control) tokens.set(p.unknown, "<unk>", TokenType::unknown);
  }
  check(p.before.size() <= 1 && p.after.size() <= 1,
        "tokenizer: llama.cpp adds one token before a text and one after it, got {} and {}",
        p.before.size(), p.after.size());
  if (!p.before.empty()) out.first = p.before[0];
  if (!p.after.empty()) out.last = p.after[0];
  tokens.finish();
  return out;
}

}  // namespace weft::tokenizer
