#include "weft/tokenizer/utf8.h"

#include <algorithm>

namespace weft::tokenizer {
namespace {

unsigned byte_of(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// The length of the sequence that begins with this byte; 0: none does.
std::size_t length_of(unsigned first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Whether `second` may follow `first`: this reveals overlong forms, surrogates and codes above
// U+10FFFF.
bool may_follow(unsigned first, unsigned second) {
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

// How many bytes from `at` are a beginning of one well-formed sequence; 0: not even the first.
std::size_t well_formed(std::string_view text, std::size_t at) {
  const unsigned first = byte_of(text, at);
  const std::size_t length = length_of(first);
  if (length < 2) return length;
  std::size_t n = 1;
  while (n < length && at + n < text.size()) {
    const unsigned next = byte_of(text, at + n);
    if (n == 1 ? !may_follow(first, next) : (next & 0xC0) != 0x80) break;
    ++n;
  }
  return n;
}

}  // namespace

Character read_long_character(std::string_view text, std::size_t at) {
  const unsigned first = byte_of(text, at);
  const std::size_t length = length_of(first);
  if (length == 0 || well_formed(text, at) < length) return {kNoCode, 1};
  char32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (byte_of(text, at + i) & 63);
  return {code, length};
}

std::size_t valid_utf8(std::string_view text) {
  return std::min(io::find_invalid_utf8(text), text.size());
}

std::size_t incomplete_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::size_t at = text.size() - back;
    if ((byte_of(text, at) & 0xC0) == 0x80) continue;
    return length_of(byte_of(text, at)) > back && well_formed(text, at) == back ? back : 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = valid_utf8(text.substr(at));
    out.append(text.substr(at, valid));
    at += valid;
    if (at == text.size()) break;
    out += "\xEF\xBF\xBD";
    const std::size_t part = well_formed(text, at);
    at += part ? part : 1;
  }
  return out;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  if (text.size() <= kMost) return replace_invalid_utf8(text);
  const std::string_view cut = text.substr(0, kMost);
  return replace_invalid_utf8(cut.substr(0, cut.size() - incomplete_utf8(cut))) + "...";
}

}  // namespace weft::tokenizer
