#include "weft/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

#include "weft/tokenizer/unicode_tables.inc"

constexpr char32_t kCodes = 0x110000;
constexpr std::uint8_t kUnstable = 0x80;  // NFC may change the character or its order

// Hangul syllables are composed by arithmetic (Unicode, chapter 3.12).
constexpr char32_t kSyllables = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28;

struct Tables {
  std::vector<std::uint8_t> classes = std::vector<std::uint8_t>(kCodes);
  std::unordered_map<char32_t, std::uint8_t> marks;  // combining classes
  std::unordered_map<char32_t, std::pair<const std::uint32_t*, std::uint32_t>> decomposed;
  std::unordered_map<std::uint64_t, char32_t> composed;

  Tables() {
    for (std::size_t i = 0; i < std::size(kClassRuns); ++i) {
      const auto end = i + 1 < std::size(kClassRuns) ? kClassRuns[i + 1] >> 4 : kCodes;
      std::fill(classes.begin() + (kClassRuns[i] >> 4), classes.begin() + end,
                static_cast<std::uint8_t>(kClassRuns[i] & 15));
    }
    const auto unstable = [this](char32_t c) { classes[c] |= kUnstable; };
    for (const std::uint32_t m : kMarks) {
      marks[m >> 8] = static_cast<std::uint8_t>(m & 255);
      unstable(m >> 8);
    }
    for (std::size_t i = 0; i < std::size(kDecompositions);) {
      const std::uint32_t code = kDecompositions[i] >> 3, length = kDecompositions[i] & 7;
      decomposed[code] = {kDecompositions + i + 1, length};
      unstable(code);
      i += 1 + length;
    }
    for (std::size_t i = 0; i < std::size(kCompositions); i += 3) {
      composed[std::uint64_t{kCompositions[i]} << 32 | kCompositions[i + 1]] = kCompositions[i + 2];
      classes[kCompositions[i + 2]] &= static_cast<std::uint8_t>(~kUnstable);  // composed already
    }
    for (std::size_t i = 0; i < std::size(kCompositions); i += 3) unstable(kCompositions[i + 1]);
    for (char32_t c = kVowel; c < kVowel + kVowels; ++c) unstable(c);
    for (char32_t c = kTrail + 1; c < kTrail + kTrails; ++c) unstable(c);
  }
  std::uint8_t mark(char32_t c) const {
    const auto found = marks.find(c);
    return found == marks.end() ? 0 : found->second;
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

void decompose(char32_t c, std::u32string& out) {
  if (c >= kSyllables && c < kSyllables + kLeads * kVowels * kTrails) {
    const char32_t i = c - kSyllables;
    out += kLead + i / (kVowels * kTrails);
    out += kVowel + i / kTrails % kVowels;
    if (i % kTrails) out += kTrail + i % kTrails;
    return;
  }
  const auto found = tables().decomposed.find(c);
  if (found == tables().decomposed.end()) {
    out += c;
    return;
  }
  out.append(found->second.first, found->second.first + found->second.second);
}

// The character that both compose to; 0: none.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels)
    return kSyllables + ((a - kLead) * kVowels + (b - kVowel)) * kTrails;
  if (a >= kSyllables && a < kSyllables + kLeads * kVowels * kTrails &&
      (a - kSyllables) % kTrails == 0 && b > kTrail && b < kTrail + kTrails)
    return a + (b - kTrail);
  const auto found = tables().composed.find(std::uint64_t{a} << 32 | b);
  return found == tables().composed.end() ? 0 : found->second;
}

// Sorts runs of marks by class, which keeps the order of equal ones.
void reorder(std::u32string& s) {
  const Tables& t = tables();
  for (std::size_t i = 0; i < s.size();) {
    std::size_t end = i;
    while (end < s.size() && t.mark(s[end]) != 0) ++end;
    std::stable_sort(s.begin() + static_cast<std::ptrdiff_t>(i),
                     s.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](char32_t a, char32_t b) { return t.mark(a) < t.mark(b); });
    i = end + 1;
  }
}

// Composes in place: each character with the last starter, unless one between blocks it.
void compose_all(std::u32string& s) {
  std::size_t out = 0, starter = std::u32string::npos;
  std::uint8_t last = 0;  // class of the character before, after the starter
  for (std::size_t i = 0; i < s.size(); ++i) {
    const char32_t c = s[i];
    const std::uint8_t mark = tables().mark(c);
    if (starter != std::u32string::npos) {
      const bool adjacent = out == starter + 1;
      if (adjacent || last < mark) {
        if (const char32_t both = compose(s[starter], c)) {
          s[starter] = both;
          continue;
        }
      }
    }
    s[out] = c;
    if (mark == 0) starter = out;
    last = mark;
    ++out;
  }
  s.resize(out);
}

bool is_unstable(char32_t c) { return c < kCodes && (tables().classes[c] & kUnstable) != 0; }

}  // namespace

CharClass class_of(char32_t code) {
  static const std::uint8_t* const classes = tables().classes.data();
  return code < kCodes ? static_cast<CharClass>(classes[code] & 15) : CharClass::other;
}

std::string nfc(std::string_view text) {
  std::string out;
  std::size_t kept = 0;     // text before it has been written
  std::size_t starter = 0;  // the stable character before `at`
  std::u32string part;
  for (std::size_t at = 0; at < text.size();) {
    Character c = read_character(text, at);
    if (!is_unstable(c.code)) {
      starter = at;
      at += c.bytes;
      continue;
    }
    // The part from the stable character before to the next one, which nothing composes with.
    const bool with_starter =
        starter < at && starter >= kept && read_character(text, starter).code != kNoCode;
    const std::size_t begin = with_starter ? starter : at;
    out.append(text.substr(kept, begin - kept));
    part.clear();
    std::size_t end = begin;
    while (end < text.size()) {
      c = read_character(text, end);
      if (end > begin && !is_unstable(c.code)) break;
      decompose(c.code, part);
      end += c.bytes;
    }
    reorder(part);
    compose_all(part);
    for (const char32_t code : part) append_utf8(out, code);
    kept = starter = at = end;
  }
  out.append(text.substr(kept));
  return out;
}

}  // namespace weft::tokenizer
