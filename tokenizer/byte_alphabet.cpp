#include <array>

#include "weft/tokenizer/read.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

constexpr char32_t kOthers = 256;  // the code of the first byte that does not print
constexpr std::size_t kAlphabetCodes = 256 + 68;

bool prints(unsigned b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

struct Alphabet {
  std::array<char32_t, 256> codes{};
  std::array<int, kAlphabetCodes> bytes{};
  Alphabet() {
    bytes.fill(-1);
    char32_t next = kOthers;
    for (unsigned b = 0; b < 256; ++b) {
      codes[b] = prints(b) ? b : next++;
      bytes[codes[b]] = static_cast<int>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet all;
  return all;
}

}  // namespace

std::string byte_alphabet(unsigned char byte) {
  std::string out;
  append_utf8(out, alphabet().codes[byte]);
  return out;
}

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const Character c = read_character(text, at);
    if (c.code >= kAlphabetCodes || alphabet().bytes[c.code] < 0) return false;
    bytes += static_cast<char>(alphabet().bytes[c.code]);
    at += c.bytes;
  }
  return true;
}

int byte_piece(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const std::size_t high = kHex.find(text[3]), low = kHex.find(text[4]);
  return high == kHex.npos || low == kHex.npos ? -1 : static_cast<int>(high * 16 + low);
}

}  // namespace weft::tokenizer
