#include <algorithm>
#include <cstdio>
#include <utility>

#include "weft/tokenizer/merge_scores.h"
#include "weft/tokenizer/vocabulary_parts.h"

namespace weft::tokenizer {
namespace {

using NormalKind = NormalStep::Kind;

constexpr const char* kWordStart = "\u2581";

/// Whether a token holds the mark of a space behind its first character.
bool has_inner_mark(const BpeParts& p) {
  return std::any_of(p.ids.begin(), p.ids.end(), [](const auto& entry) {
    return entry.first.find(kWordStart, 1) != std::string::npos;
  });
}

// What writes spaces as marks and adds one before the text.
void read_spaces(const BpeParts& p, Vocabulary& out) {
  bool replaces = false, behind = false;  // an added token comes another
  const auto read = [&](const NormalStep& s, bool cuts_later) {
    if (s.to != kWordStart || s.kind == NormalKind::nfc)
      refuse("this normalizer before a model of characters");
    if (s.kind == NormalKind::replace) {
      if (s.from != " ") refuse("this normalizer before a model of characters");
      replaces = true;
      return;
    }
    out.space_prefix = true;
    if (s.kind != NormalKind::prepend)
      add_difference(out, "texts that begin with a space get one more");
    // Added tokens of the normalized text are looked for when the space is there.
    behind = behind || s.kind == NormalKind::first_of_all ||
             (cuts_later && std::any_of(p.added.begin(), p.added.end(),
                                        [](const AddedToken& t) { return t.normalized; }));
  };
  for (const NormalStep& s : p.normal) read(s, true);
  for (const NormalStep& s : p.pre_split) read(s, false);
  if (!replaces) refuse("a model of characters that does not write spaces as \u2581");
  if (behind) add_difference(out, "text behind an added token gets a space");
}

void check_characters(const BpeParts& p) {
  if (std::any_of(p.bytes.begin(), p.bytes.end(), [](std::int32_t id) { return id < 0; }))
    refuse("a model of characters without tokens for all bytes");
  if (p.whole_first) refuse("pieces that are tokens and are not merged, of a model of characters");
  for (const Split s : p.splits) {
    if (s != Split::marked && s != Split::metaspace) refuse("a cut before a model of characters");
    if (s == Split::metaspace && has_inner_mark(p))
      refuse("a cut before each \u2581 where tokens have it inside");
  }
}

/// The merges by the texts of the file; nothing if one joins a line break and something else, as
/// llama.cpp cuts text there.
std::vector<std::string> character_merges(const BpeParts& p) {
  std::vector<std::string_view> texts(p.text.size());
  for (const auto& [text, id] : p.ids) texts[static_cast<std::size_t>(id)] = text;
  std::vector<MergeTable::Entry> all = p.merges.entries();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.merge.rank < b.merge.rank; });
  std::vector<std::string> out;
  for (const MergeTable::Entry& e : all) {
    const std::string left(texts[static_cast<std::size_t>(e.left)]),
        right(texts[static_cast<std::size_t>(e.right)]), both = left + right;
    if (both.find('\n') != both.npos && both.find_first_not_of('\n') != both.npos) return {};
    out.push_back(left + " " + right);
  }
  return out;
}

/// How characters merge: by scores that the file has; by its list, if there is no space before the
/// text, which llama.cpp adds to a model of scores alone; else by scores from the list.
void add_merges(const BpeParts& p, Vocabulary& out) {
  out.model = "llama";
  out.scores = p.scores;
  if (!out.scores.empty()) return;
  if (!out.space_prefix) out.merges = character_merges(p);
  if (!out.merges.empty()) {
    out.model = "gpt2";
    out.pre = "sarvam-moe";
    return;
  }
  MergeScores made = scores_of(p);
  out.scores = std::move(made.scores);
  add_difference(out, made.differs);
}

}  // namespace

void add_characters(const BpeParts& p, Vocabulary& out, Tokens& tokens) {
  check_characters(p);
  read_spaces(p, out);
  add_merges(p, out);
  out.scores.resize(out.tokens.size());
  for (std::size_t i = 0; i < p.text.size(); ++i)
    if (p.kinds[i] != BpeParts::TokenKind::absent)
      tokens.set(static_cast<std::int64_t>(i), p.text[i], TokenType::user_defined);
  for (const auto& [text, id] : p.ids) tokens.set(id, text, TokenType::normal);
  for (std::size_t b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02zX>", b);
    if (p.bytes[b] >= 0) tokens.set(p.bytes[b], text, TokenType::byte);
  }
}

}  // namespace weft::tokenizer
