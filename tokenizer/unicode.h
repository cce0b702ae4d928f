#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::tokenizer {

/// The classes of Unicode 16 that the patterns of tokenizers tell apart. None overlap.
enum class CharClass : std::uint8_t {
  other,          ///< also a byte that is no character
  letter_upper,   ///< Lu
  letter_lower,   ///< Ll
  letter_title,   ///< Lt
  letter_modify,  ///< Lm
  letter_other,   ///< Lo
  mark,           ///< M
  number,         ///< N
  punctuation,    ///< P
  symbol,         ///< S
  space,          ///< \s: the 25 code points of White_Space
};

/// A set of classes, one bit each.
using ClassSet = std::uint16_t;
constexpr ClassSet set_of(CharClass c) {
  return static_cast<ClassSet>(1U << static_cast<unsigned>(c));
}

/// The class of a code point; `other` above U+10FFFF.
CharClass class_of(char32_t code);

/// `text` in Normalization Form C, with the compositions that the tokenizers library knows. Bytes
/// that are not well-formed UTF-8 stay as they are.
std::string nfc(std::string_view text);

}  // namespace weft::tokenizer
