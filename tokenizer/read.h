#pragma once
// The readers of each format, for read() in open.cpp. `what` is the file in error texts.
#include <memory>
#include <string>
#include <string_view>

#include "weft/io/json.h"
#include "weft/tokenizer/bpe.h"

namespace weft::tokenizer {

BpeParts read_tokenizer_json(const io::Json& file, const std::string& what);
/// Mistral's tekken.json.
BpeParts read_tekken(const io::Json& file, const std::string& what);
BpeParts read_tiktoken(std::string_view content, const std::string& what,
                       const OpenOptions& options);
BpeParts read_sentencepiece(std::string_view content, const std::string& what);

/// The split with this regular expression. Throws Error that lists those known.
Split split_of(std::string_view regex, const std::string& what);

/// The byte that each character of a byte-level vocabulary stands for, and back (GPT-2's table: a
/// printable byte is itself, the others follow from U+0100).
std::string byte_alphabet(unsigned char byte);
/// False, when the text has a character that stands for no byte.
bool from_byte_alphabet(std::string_view text, std::string& bytes);

/// The byte of "<0x0A>"; -1: the text is something else.
int byte_piece(std::string_view text);

}  // namespace weft::tokenizer
