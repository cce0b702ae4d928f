#include <utility>

#include "weft/tokenizer/bpe.h"
#include "weft/tokenizer/unicode.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (std::size_t hit; (hit = text.find(from, at)) != std::string::npos; at = hit + from.size()) {
    out.append(text, at, hit - at);
    out += to;
  }
  out.append(text, at);
  text = std::move(out);
}

}  // namespace

std::string only_valid(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = valid_utf8(text.substr(at));
    out.append(text.substr(at, valid));
    at += valid;
    if (at < text.size()) {
      out += "\xEF\xBF\xBD";
      ++at;
    }
  }
  return out;
}

std::string normalize(std::string_view text, const std::vector<NormalStep>& steps, bool at_begin) {
  std::string out(text);
  for (const NormalStep& s : steps) {
    switch (s.kind) {
      case NormalStep::Kind::nfc:
        out = nfc(out);
        break;
      case NormalStep::Kind::prepend:
        if (!out.empty()) out.insert(0, s.to);
        break;
      case NormalStep::Kind::replace:
        replace_all(out, s.from, s.to);
        break;
      case NormalStep::Kind::first:
      case NormalStep::Kind::first_of_all:
        if (!out.empty() && !out.starts_with(s.from) &&
            (at_begin || s.kind == NormalStep::Kind::first))
          out.insert(0, s.to);
        break;
    }
  }
  return out;
}

}  // namespace weft::tokenizer
