#include "weft/tokenizer/bpe.h"

#include <algorithm>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// The symbol of a character that is no token, and back. A byte that is no character follows the
// last code point.
constexpr char32_t kWrongBytes = 0x110000;
std::int32_t stranger(char32_t code) { return -2 - static_cast<std::int32_t>(code); }
char32_t stranger(std::int32_t symbol) { return static_cast<char32_t>(-2 - symbol); }

}  // namespace

void BpeParts::set(std::int64_t id, std::string bytes, TokenKind kind, const std::string& what) {
  check_system(id >= 0 && id < most_ids, "{}: a token id must be in [0, {}), got {}", what,
               most_ids, id);
  const auto i = static_cast<std::size_t>(id);
  if (i >= text.size()) {
    text.resize(i + 1);
    kinds.resize(i + 1);
  }
  text[i] = std::move(bytes);
  kinds[i] = kind;
}

void BpeParts::merge_by_rank(const std::vector<std::int64_t>& rank, const std::string& what) {
  // Each token is cut at every place, and its parts are looked up.
  constexpr std::uint64_t kMostWork = 2'000'000'000;
  std::uint64_t work = 0;
  for (const auto& entry : ids) work += entry.first.size() * entry.first.size();
  check_system(work < kMostWork, "{}: its tokens are too long to be those of a language", what);
  const auto id_of = [&](std::string_view part) {
    const auto found = ids.find(std::string(part));
    if (found != ids.end()) return found->second;
    const Character c = read_character(part, 0);
    return characters && c.bytes == part.size() && c.code != kNoCode ? stranger(c.code) : -1;
  };
  for (const auto& [symbol, id] : ids) {
    const std::int64_t r =
        static_cast<std::size_t>(id) < rank.size() ? rank[static_cast<std::size_t>(id)] : -1;
    if (r < 0) continue;
    for (std::size_t cut = 1; cut < symbol.size(); ++cut) {
      if (characters && (static_cast<unsigned char>(symbol[cut]) & 0xC0) == 0x80) continue;
      const std::int32_t left = id_of(std::string_view(symbol).substr(0, cut));
      if (left == -1) continue;
      const std::int32_t right = id_of(std::string_view(symbol).substr(cut));
      if (right != -1) merges.add(left, right, static_cast<std::uint32_t>(r), id);
    }
  }
}

void check_added_text(const std::string& text, const std::string& what) {
  constexpr std::size_t kLongest = 1024;
  check_system(!text.empty() && text.size() <= kLongest,
               "{}: an added token must have 1 to {} bytes, got {}", what, kLongest, text.size());
}

BpeTokenizer::BpeTokenizer(BpeParts parts, const std::string& what) : parts_(std::move(parts)) {
  check_system(!parts_.text.empty(), "{}: has no tokens", what);
  if (!parts_.characters)
    for (std::size_t b = 0; b < 256; ++b)
      check_system(parts_.bytes[b] >= 0 || parts_.unknown >= 0,
                   "{}: has no token for byte {}, so that text would be lost", what, b);
  check_system(!parts_.characters || parts_.unknown >= 0 ||
                   std::all_of(parts_.bytes.begin(), parts_.bytes.end(),
                               [](std::int32_t id) { return id >= 0; }),
               "{}: has neither an unknown token nor all bytes, so that text would be lost", what);
  for (AddedToken& token : parts_.added) {
    check_added_text(token.text, what);
    added_ids_.emplace(parts_.text[static_cast<std::size_t>(token.id)], token.id);
    // White space alone cannot forge a mark.
    if (!token.special)
      token.always |= std::all_of(token.text.begin(), token.text.end(),
                                  [](char c) { return c == ' ' || c == '\t' || c == '\n'; });
    AddedMatcher* const matcher = token.normalized ? normalized_ : raw_;
    matcher[1].add(token);
    if (token.always) matcher[0].add(token);
  }
  // No token crosses a mark of a space that follows another character: words can be cut there.
  if (parts_.characters && parts_.splits.empty() && !parts_.whole_first) {
    const std::string mark = "\u2581";
    const bool crosses = std::any_of(parts_.ids.begin(), parts_.ids.end(), [&](const auto& entry) {
      const std::string& s = entry.first;
      for (std::size_t at = s.find(mark, 1); at != std::string::npos; at = s.find(mark, at + 1))
        if (at < mark.size() || s.compare(at - mark.size(), mark.size(), mark) != 0) return true;
      return false;
    });
    if (!crosses) parts_.splits.push_back(Split::marked);
  }
}

/// Encodes one text.
class BpeTokenizer::Encoder {
 public:
  Encoder(const BpeTokenizer& t, const EncodeOptions& o, std::vector<std::int32_t>& out)
      : t_(t), parts_(t.parts_), all_(o.added_tokens ? 1 : 0), out_(out) {}

  void run(std::string_view text) {
    std::string valid;
    if (parts_.valid_only && valid_utf8(text) < text.size()) text = valid = only_valid(text);
    t_.raw_[all_].split(
        text,
        [&](std::size_t begin, std::size_t end) {
          const std::string_view part = text.substr(begin, end - begin);
          if (parts_.normal.empty()) return normalized(part, begin == 0);
          normalized(normalize(part, parts_.normal, begin == 0), begin == 0);
        },
        [&](std::int32_t id) { out_.push_back(id); });
  }

 private:
  void normalized(std::string_view text, bool at_begin) {
    t_.normalized_[all_].split(
        text,
        [&](std::size_t begin, std::size_t end) {
          const std::string_view part = text.substr(begin, end - begin);
          if (parts_.pre_split.empty()) return pieces(part);
          pieces(normalize(part, parts_.pre_split, at_begin && begin == 0));
        },
        [&](std::int32_t id) { out_.push_back(id); });
  }

  void pieces(std::string_view text) {
    remembered_.clear();
    constexpr std::size_t kMost = std::size_t{1} << 14;
    std::size_t places = 16;
    while (places < kMost && places < text.size() / 8) places *= 2;
    remembered_.resize(places);
    each_piece(text, parts_.splits, [&](std::string_view piece) { remember(piece); });
  }

  // Words repeat: the tokens of an earlier one in this text are copied.
  void remember(std::string_view piece) {
    constexpr std::size_t kMost = 64;
    if (piece.size() > kMost) return merge(piece);
    std::uint64_t h = piece.size();
    std::size_t i = 0;
    for (; i + 8 <= piece.size(); i += 8) h = mix(h, load(piece.data() + i, 8));
    if (i < piece.size()) h = mix(h, load(piece.data() + i, piece.size() - i));
    Remembered& r = remembered_[(h >> 32) & (remembered_.size() - 1)];
    if (r.text == piece) {
      out_.resize(out_.size() + r.count);
      std::copy_n(out_.begin() + static_cast<std::ptrdiff_t>(r.first), r.count,
                  out_.end() - r.count);
      return;
    }
    const std::size_t first = out_.size();
    merge(piece);
    r = {piece, first, static_cast<std::uint32_t>(out_.size() - first)};
  }

  void merge(std::string_view piece) {
    if (parts_.whole_first) {
      const auto whole = parts_.ids.find(std::string(piece));
      // The text of a user must not forge a mark.
      if (whole != parts_.ids.end() && !t_.is_special(whole->second))
        return out_.push_back(whole->second);
    }
    check(piece.size() < UINT32_MAX, "encode: a word must have less than 4 GB, got {} bytes",
          piece.size());
    symbols_.clear();
    if (parts_.characters)
      characters(piece);
    else
      for (const char c : piece) byte(c);
    parts_.merges.apply(symbols_);
    bool was_unknown = false;
    for (const std::int32_t symbol : symbols_) {
      const bool is_unknown = symbol < 0 && !fall_back(symbol);
      if (is_unknown && !(was_unknown && parts_.fuse_unknown)) out_.push_back(parts_.unknown);
      if (symbol >= 0) out_.push_back(symbol);
      was_unknown = is_unknown;
    }
  }

  void byte(char c) {
    const std::int32_t id = parts_.bytes[static_cast<unsigned char>(c)];
    symbols_.push_back(id >= 0 ? id : parts_.unknown);
  }

  void characters(std::string_view piece) {
    for (std::size_t at = 0; at < piece.size();) {
      const Character c = read_character(piece, at);
      const auto found = parts_.ids.find(std::string(piece.substr(at, c.bytes)));
      symbols_.push_back(found != parts_.ids.end() ? found->second
                         : c.code != kNoCode
                             ? stranger(c.code)
                             : stranger(char32_t{kWrongBytes + byte_at(piece, at)}));
      at += c.bytes;
    }
  }

  // Writes the bytes of a character without a token of its own; false: they have no tokens either.
  bool fall_back(std::int32_t symbol) {
    const char32_t code = stranger(symbol);
    std::string bytes;
    if (code >= kWrongBytes)
      bytes += static_cast<char>(code - kWrongBytes);
    else
      append_utf8(bytes, code);
    for (const char c : bytes)
      if (parts_.bytes[static_cast<unsigned char>(c)] < 0) return false;
    for (const char c : bytes) out_.push_back(parts_.bytes[static_cast<unsigned char>(c)]);
    return true;
  }

  struct Remembered {
    std::string_view text;
    std::size_t first = 0;
    std::uint32_t count = 0;
  };
  static std::uint64_t load(const char* from, std::size_t n) {
    std::uint64_t v = 0;
    std::copy_n(from, n, reinterpret_cast<char*>(&v));
    return v;
  }
  static std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
    h = (h ^ v) * 0x9E37'79B9'7F4A'7C15U;
    return h ^ h >> 29;
  }

  const BpeTokenizer& t_;
  const BpeParts& parts_;
  int all_;
  std::vector<std::int32_t>& out_;
  std::vector<std::int32_t> symbols_;
  std::vector<Remembered> remembered_;
};

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<std::int32_t> out;
  if (options.around) out = parts_.before;
  out.reserve(out.size() + text.size() / 3);
  Encoder(*this, options, out).run(text);
  if (options.around) out.insert(out.end(), parts_.after.begin(), parts_.after.end());
  return out;
}

std::string_view BpeTokenizer::bytes_of(std::int32_t token) const {
  check(has(token), "decode: a token must be in [0, {}) and in the vocabulary, got {}", vocab(),
        token);
  return parts_.text[static_cast<std::size_t>(token)];
}

bool BpeTokenizer::has(std::int64_t token) const {
  return token >= 0 && token < vocab() &&
         parts_.kinds[static_cast<std::size_t>(token)] != BpeParts::TokenKind::absent;
}

bool BpeTokenizer::is_special(std::int32_t token) const {
  return has(token) &&
         parts_.kinds[static_cast<std::size_t>(token)] == BpeParts::TokenKind::special;
}

std::optional<std::int32_t> BpeTokenizer::find(std::string_view text) const {
  const std::string key(text);
  if (const auto found = added_ids_.find(key); found != added_ids_.end()) return found->second;
  if (const auto found = parts_.ids.find(key); found != parts_.ids.end()) return found->second;
  return std::nullopt;
}

}  // namespace weft::tokenizer
