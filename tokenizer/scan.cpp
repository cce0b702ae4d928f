// The scanners: each finds what its regular expression matches first, with its order of
// alternatives and its backtracking. All take time linear in the text.
#include <algorithm>

#include "weft/tokenizer/split.h"
#include "weft/tokenizer/unicode.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

constexpr ClassSet kUpperOnly = set_of(CharClass::letter_upper) | set_of(CharClass::letter_title);
constexpr ClassSet kLowerOnly = set_of(CharClass::letter_lower);
constexpr ClassSet kMarkSet = set_of(CharClass::mark);
constexpr ClassSet kCaseless =
    set_of(CharClass::letter_modify) | set_of(CharClass::letter_other) | kMarkSet;
constexpr ClassSet kUpper = kUpperOnly | kCaseless, kLower = kLowerOnly | kCaseless;
constexpr ClassSet kLetter = (kUpper | kLower) & ~kMarkSet;
constexpr ClassSet kNumber = set_of(CharClass::number);
constexpr ClassSet kSpace = set_of(CharClass::space);
constexpr ClassSet kSigns = set_of(CharClass::punctuation) | set_of(CharClass::symbol);
constexpr ClassSet kAll = 0x7FF;

/// Reads one text by classes.
class Scanner {
 public:
  Scanner(std::string_view text, std::size_t begin) : text_(text), begin_(begin) {}

  bool at_end(std::size_t at) const { return at >= text_.size(); }
  char byte(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  bool is_break(std::size_t at) const { return byte(at) == '\r' || byte(at) == '\n'; }

  /// The end of the character at `at` if its class is in the set; else `at`.
  std::size_t one(std::size_t at, ClassSet set) const {
    if (at_end(at)) return at;
    const Character c = read_character(text_, at);
    return set & set_of(class_of(c.code)) ? at + c.bytes : at;
  }
  /// The end of the longest run of the set.
  std::size_t run(std::size_t at, ClassSet set) const {
    for (std::size_t next; (next = one(at, set)) != at;) at = next;
    return at;
  }
  std::size_t run(std::size_t at, ClassSet set, int most) const {
    for (std::size_t next; most-- > 0 && (next = one(at, set)) != at;) at = next;
    return at;
  }
  std::size_t breaks(std::size_t at, bool slashes = false) const {
    while (!at_end(at) && (is_break(at) || (slashes && text_[at] == '/'))) ++at;
    return at;
  }

  /// 's 't 're 've 'm 'll 'd; `folded` also in capitals and with the long s.
  std::size_t suffix(std::size_t at, bool folded) const {
    if (byte(at) != '\'') return at;
    const auto letter = [&](std::size_t i) {
      const char c = byte(i);
      return folded && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char c = letter(at + 1);
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return at + 2;
    if (folded && text_.substr(at + 1, 2) == "\u017F") return at + 3;
    const char d = letter(at + 2);
    const bool two = (c == 'r' && d == 'e') || (c == 'v' && d == 'e') || (c == 'l' && d == 'l');
    return two ? at + 3 : at;
  }

  /// `[^\r\n\p{L}\p{N}]?[letters]+`; `kept_out` are the classes that cannot lead.
  std::size_t word(ClassSet letters, ClassSet kept_out) const {
    const std::size_t lead = lead_end(kept_out);
    if (lead != begin_)
      if (const std::size_t end = run(lead, letters); end != lead) return end;
    return run(begin_, letters);
  }

  /// Words that change from lower to upper case at no place; see WEFT_UPPER in split.cpp.
  std::size_t cased_word() const {
    const std::size_t lead = lead_end(kLetter | kNumber);
    for (const bool lower : {true, false}) {
      if (lead != begin_)
        if (const std::size_t end = cased(lead, lower); end != lead) return end;
      if (const std::size_t end = cased(begin_, lower); end != begin_) return end;
    }
    return begin_;
  }

  /// ` ?[set]+`
  std::size_t spaced(ClassSet set) const {
    const std::size_t first = byte(begin_) == ' ' ? begin_ + 1 : begin_;
    const std::size_t end = run(first, set);
    return end == first ? begin_ : end;
  }

  /// `\s*[\r\n]+|\s+(?!\S)|\s+`, the first part only with `breaks`.
  std::size_t white(bool breaks) const {
    std::size_t end = begin_, last = begin_, line = begin_;
    for (std::size_t next; (next = one(end, kSpace)) != end; end = next) {
      last = end;
      if (is_break(end)) line = next;
    }
    if (breaks && line != begin_) return line;
    if (end == text_.size() || last == begin_) return end;
    return last;
  }

 private:
  // The end of the optional character before a word.
  std::size_t lead_end(ClassSet kept_out) const {
    return is_break(begin_) ? begin_ : one(begin_, kAll & ~kept_out);
  }

  // `[upper]*[lower]+` from `at` with `lower`, else `[upper]+[lower]*`; `at`: no match.
  std::size_t cased(std::size_t at, bool lower) const {
    std::size_t end = at, both = at;  // after the last character that is in both sets
    for (std::size_t next; (next = one(end, kUpper)) != end; end = next)
      if (one(end, kCaseless) != end) both = next;
    if (!lower) return end == at ? at : run(end, kLower);
    const std::size_t more = run(end, kLower);
    return more != end ? more : both;
  }

  std::string_view text_;
  std::size_t begin_;
};

std::size_t gpt2(std::string_view text, std::size_t at) {
  const Scanner s(text, at);
  if (const std::size_t end = s.suffix(at, false); end != at) return end;
  for (const ClassSet set : {kLetter, kNumber, ClassSet(kAll & ~(kSpace | kLetter | kNumber))})
    if (const std::size_t end = s.spaced(set); end != at) return end;
  return s.white(false);
}

// What differs between the descendants of GPT-4's expression.
struct Modern {
  ClassSet letters = kLetter;
  int digits = 3;
  bool cased = false, suffix_first = true, suffix_after = false, slashes = false;
  bool white_end = false;  ///< `\s++$` comes before the line breaks
};

std::size_t modern(std::string_view text, std::size_t at, const Modern& m) {
  const Scanner s(text, at);
  if (m.suffix_first)
    if (const std::size_t end = s.suffix(at, true); end != at) return end;
  const std::size_t word = m.cased ? s.cased_word() : s.word(m.letters, kLetter | kNumber);
  if (word != at) return m.suffix_after ? s.suffix(word, true) : word;
  if (const std::size_t end = s.run(at, kNumber, m.digits); end != at) return end;
  const std::size_t signs = s.spaced(kAll & ~(kSpace | m.letters | kLetter | kNumber));
  if (signs != at) return s.breaks(signs, m.slashes);
  if (m.white_end && s.run(at, kSpace) == text.size()) return text.size();
  return s.white(true);
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_sign(char c) {
  return c > ' ' && c < 0x7F && !is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

// `at` where nothing matches.
std::size_t deepseek_words(std::string_view text, std::size_t at) {
  const Scanner s(text, at);
  if (is_ascii_sign(text[at]) && is_ascii_letter(s.byte(at + 1))) {
    std::size_t end = at + 2;
    while (is_ascii_letter(s.byte(end))) ++end;
    return end;
  }
  if (const std::size_t end = s.word(kLetter | kMarkSet, kLetter | kSigns); end != at) return end;
  if (const std::size_t end = s.spaced(kSigns); end != at) return s.breaks(end);
  return s.white(true);
}

std::size_t deepseek_cjk(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character c = read_character(text, at);
    if (!((c.code >= 0x4E00 && c.code <= 0x9FA5) || (c.code >= 0x3040 && c.code <= 0x30FF))) break;
    at += c.bytes;
  }
  return at;
}

// Before the next mark of a space; with `runs` marks in a row stay together.
std::size_t marked(std::string_view text, std::size_t at, bool runs) {
  constexpr std::string_view kSpaceMark = "\u2581";
  do {
    if (text.substr(at, kSpaceMark.size()) != kSpaceMark) break;
    at += kSpaceMark.size();
  } while (runs);
  return std::min(text.find(kSpaceMark, at), text.size());
}

// The end of the match at `at`; `at`: none.
std::size_t match(Split split, std::string_view text, std::size_t at) {
  switch (split) {
    case Split::gpt2:
      return gpt2(text, at);
    case Split::cl100k:
      return modern(text, at, {});
    case Split::gpt4:
      return modern(text, at, {.white_end = true});
    case Split::qwen2:
      return modern(text, at, {.digits = 1});
    case Split::qwen3_5:
      return modern(text, at, {.letters = kLetter | kMarkSet, .digits = 1});
    case Split::o200k:
      return modern(text, at,
                    {.cased = true, .suffix_first = false, .suffix_after = true, .slashes = true});
    case Split::tekken:
      return modern(text, at, {.digits = 1, .cased = true, .suffix_first = false, .slashes = true});
    case Split::nanochat:
      return modern(text, at, {.digits = 2});
    case Split::deepseek_digits:
      return Scanner(text, at).run(at, kNumber, 3);
    case Split::deepseek_cjk:
      return deepseek_cjk(text, at);
    case Split::deepseek_words:
      return deepseek_words(text, at);
    case Split::digit:
      return Scanner(text, at).one(at, kNumber);
    case Split::digits:
      return Scanner(text, at).run(at, kNumber);
    case Split::marked:
      return marked(text, at, true);
    case Split::metaspace:
      return marked(text, at, false);
  }
  return at;
}

}  // namespace

std::size_t piece_end(Split split, std::string_view text, std::size_t at) {
  std::size_t end = match(split, text, at);
  if (end != at) return end;
  // What lies between two matches is a piece.
  while (end < text.size() && match(split, text, end) == end)
    end += read_character(text, end).bytes;
  return end;
}

}  // namespace weft::tokenizer
