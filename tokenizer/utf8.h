#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "weft/io/json.h"

namespace weft::tokenizer {

/// The code of a byte that begins no well-formed UTF-8 sequence; such a byte is read by itself.
inline constexpr char32_t kNoCode = 0xFFFF'FFFF;

struct Character {
  char32_t code;
  std::size_t bytes;
};

/// The character of two bytes and more that begins at text[at].
Character read_long_character(std::string_view text, std::size_t at);

/// The character that begins at text[at], where at < text.size(). Overlong forms, surrogates and
/// codes above U+10FFFF are not well-formed.
inline Character read_character(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  return read_long_character(text, at);
}

using io::append_utf8;

/// The length of the well-formed beginning of `text`, which ends before the first wrong byte.
std::size_t valid_utf8(std::string_view text);

/// How many bytes at the end of `text` may become a character with more bytes: 0 to 3.
std::size_t incomplete_utf8(std::string_view text);

/// `text` with U+FFFD in place of each maximal part that is not well-formed, as Python's
/// errors="replace" and browsers do.
std::string replace_invalid_utf8(std::string_view text);

/// The same of at most 80 bytes of `text`, for an error that names a part of a file.
std::string shown(std::string_view text);

}  // namespace weft::tokenizer
