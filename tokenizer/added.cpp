#include "weft/tokenizer/added.h"

#include "weft/tokenizer/unicode.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

std::uint64_t child_key(std::int32_t node, char byte) {
  return std::uint64_t{static_cast<std::uint32_t>(node)} << 8 | static_cast<unsigned char>(byte);
}

std::size_t space_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character c = read_character(text, at);
    if (class_of(c.code) != CharClass::space) break;
    at += c.bytes;
  }
  return at;
}

// The begin of the white space that ends at `at`, not before `least`.
std::size_t space_begin(std::string_view text, std::size_t least, std::size_t at) {
  for (std::size_t begin = at; begin > least;) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) continue;
    const Character c = read_character(text, begin);
    if (class_of(c.code) != CharClass::space || begin + c.bytes != at) break;
    at = begin;
  }
  return at;
}

}  // namespace

void AddedMatcher::add(const AddedToken& token) {
  if (nodes_.empty()) {
    roots_.fill(-1);
    nodes_.push_back(-1);
  }
  std::int32_t node = 0;
  const auto fresh = static_cast<std::int32_t>(tokens_.size());
  for (std::size_t i = 0; i < token.text.size(); ++i) {
    const auto [place, is_new] = children_.try_emplace(child_key(node, token.text[i]),
                                                       static_cast<std::int32_t>(nodes_.size()));
    if (is_new) nodes_.push_back(-1);
    if (i == 0) roots_[static_cast<unsigned char>(token.text[0])] = place->second;
    node = place->second;
  }
  nodes_[static_cast<std::size_t>(node)] = fresh;
  tokens_.push_back(token);
}

bool AddedMatcher::next(std::string_view text, std::size_t from, Match& m) const {
  if (nodes_.empty()) return false;
  for (std::size_t at = from; at < text.size(); ++at) {
    std::int32_t node = roots_[static_cast<unsigned char>(text[at])], found = -1;
    std::size_t end = at;
    for (std::size_t i = at + 1; node >= 0; ++i) {
      if (const std::int32_t t = nodes_[static_cast<std::size_t>(node)]; t >= 0) {
        found = t;
        end = i;
      }
      if (i == text.size()) break;
      const auto child = children_.find(child_key(node, text[i]));
      node = child == children_.end() ? -1 : child->second;
    }
    if (found < 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(found)];
    m = {token.left ? space_begin(text, from, at) : at, token.right ? space_end(text, end) : end,
         token.id};
    return true;
  }
  return false;
}

}  // namespace weft::tokenizer
