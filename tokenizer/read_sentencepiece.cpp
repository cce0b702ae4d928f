// sentencepiece_model.proto, read by hand: the fields that a BPE model uses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/read.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

constexpr const char* kSpaceMark = "\u2581";  // a space

/// Reads the fields of one message.
class Message {
 public:
  Message(std::string_view bytes, const std::string& what) : left_(bytes), what_(what) {}

  /// Reads the next field; false at the end.
  bool next() {
    if (left_.empty()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    number_ = 0;  // a field of another wire type than expected has neither
    bytes_ = {};
    switch (key & 7) {
      case 0:
        number_ = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        check_system(false, "{}: is no protobuf message (wire type {})", what_, key & 7);
    }
    check_system(field_ != 0, "{}: is no protobuf message (field 0)", what_);
    return true;
  }
  std::uint64_t field() const { return field_; }
  std::uint64_t number() const { return number_; }
  std::string_view bytes() const { return bytes_; }
  float real() const {
    float v = 0;
    if (bytes_.size() == sizeof v) std::memcpy(&v, bytes_.data(), sizeof v);
    return v;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      check_system(!left_.empty(), "{}: ends within a number", what_);
      const auto byte = static_cast<unsigned char>(left_[0]);
      left_.remove_prefix(1);
      v |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) return v;
    }
    check_system(false, "{}: has a number of more than 64 bits", what_);
    return 0;
  }
  std::string_view take(std::uint64_t n) {
    check_system(n <= left_.size(), "{}: a field of {} bytes in {} bytes", what_, n, left_.size());
    const std::string_view part = left_.substr(0, n);
    left_.remove_prefix(n);
    return part;
  }

  std::string_view left_, bytes_;
  const std::string& what_;
  std::uint64_t field_ = 0, number_ = 0;
};

enum class Type : std::uint64_t { normal = 1, unknown, control, user_defined, unused, byte };

struct Piece {
  std::string text;
  float score = 0;
  Type type = Type::normal;
};

Piece read_piece(std::string_view bytes, const std::string& what) {
  Piece p;
  for (Message m(bytes, what); m.next();) {
    if (m.field() == 1) p.text = m.bytes();
    if (m.field() == 2) p.score = m.real();
    if (m.field() == 3) p.type = static_cast<Type>(m.number());
  }
  constexpr std::size_t kLongest = 4096;
  check_system(!p.text.empty() && p.text.size() <= kLongest,
               "{}: a piece must have 1 to {} bytes, got {}", what, kLongest, p.text.size());
  check_system(valid_utf8(p.text) == p.text.size(), "{}: a piece must be text, got '{}'", what,
               shown(p.text));
  check_system(std::isfinite(p.score), "{}: the score of a piece must be finite, got {}", what,
               p.score);
  return p;
}

struct Model {
  std::vector<Piece> pieces;
  std::string unknown_text = " \u2047 ";
  std::uint64_t kind = 1, byte_fallback = 0, suffix = 0;
  std::uint64_t dummy_prefix = 1, removes_spaces = 1, marks_spaces = 1;
  bool maps = false;  // characters to others
};

Model read_model(std::string_view content, const std::string& what) {
  Model all;
  for (Message m(content, what); m.next();) {
    if (m.field() == 1) all.pieces.push_back(read_piece(m.bytes(), what));
    if (m.field() == 2)
      for (Message trainer(m.bytes(), what); trainer.next();) {
        if (trainer.field() == 3) all.kind = trainer.number();
        if (trainer.field() == 24) all.suffix = trainer.number();
        if (trainer.field() == 35) all.byte_fallback = trainer.number();
        if (trainer.field() == 44) all.unknown_text = trainer.bytes();
      }
    if (m.field() == 3)
      for (Message normal(m.bytes(), what); normal.next();) {
        if (normal.field() == 2) all.maps = !normal.bytes().empty();
        if (normal.field() == 3) all.dummy_prefix = normal.number();
        if (normal.field() == 4) all.removes_spaces = normal.number();
        if (normal.field() == 5) all.marks_spaces = normal.number();
      }
  }
  return all;
}

void check_supported(const Model& m, const std::string& what) {
  check_system(!m.pieces.empty(), "{}: is no SentencePiece model: it has no pieces", what);
  check_system(m.kind == 2, "{}: model_type must be 2 (BPE), got {}", what, m.kind);
  check_system(!m.maps, "{}: normalization by a character map is not supported", what);
  check_system(!m.removes_spaces, "{}: remove_extra_whitespaces is not supported", what);
  check_system(m.marks_spaces, "{}: escape_whitespaces false is not supported", what);
  check_system(!m.suffix, "{}: treat_whitespace_as_suffix is not supported", what);
}

std::string with_spaces(std::string text) {
  const std::string mark = kSpaceMark;
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; ++at)
    text.replace(at, mark.size(), " ");
  return text;
}

// Ranks of the pieces that merge: the highest score first, equal scores alike.
std::vector<std::int64_t> ranks_of(const std::vector<Piece>& pieces) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].type == Type::normal || pieces[i].type == Type::user_defined) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return pieces[a].score > pieces[b].score; });
  std::vector<std::int64_t> ranks(pieces.size(), -1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool tie = i > 0 && pieces[order[i]].score == pieces[order[i - 1]].score;
    ranks[order[i]] = tie ? ranks[order[i - 1]] : static_cast<std::int64_t>(i);
  }
  return ranks;
}

}  // namespace

BpeParts read_sentencepiece(std::string_view content, const std::string& what) {
  const Model model = read_model(content, what);
  check_supported(model, what);
  using Kind = BpeParts::TokenKind;
  BpeParts parts;
  parts.characters = parts.valid_only = parts.fuse_unknown = true;
  parts.bytes.fill(-1);
  parts.most_ids = static_cast<std::int64_t>(model.pieces.size());
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& p = model.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    parts.scores.push_back(p.score);
    const auto set = [&](std::string bytes, Kind kind) {
      parts.set(id, std::move(bytes), kind, what);
    };
    switch (p.type) {
      case Type::normal:
      case Type::user_defined: {
        check_system(parts.ids.emplace(p.text, id).second, "{}: two pieces are '{}'", what,
                     shown(p.text));
        set(with_spaces(p.text), Kind::text);
        if (p.type == Type::user_defined)
          parts.added.push_back({.text = p.text, .id = id, .normalized = true, .always = true});
        break;
      }
      case Type::unknown:
        parts.unknown = id;
        set(model.unknown_text, Kind::text);
        break;
      case Type::control:
        set(p.text, Kind::special);
        parts.added.push_back({.text = p.text, .id = id, .special = true});
        break;
      case Type::byte: {
        const int byte = byte_piece(p.text);
        check_system(byte >= 0, "{}: a byte piece must read <0x00> to <0xFF>, got '{}'", what,
                     shown(p.text));
        if (model.byte_fallback) parts.bytes[static_cast<std::size_t>(byte)] = id;
        set(std::string(1, static_cast<char>(byte)), Kind::text);
        break;
      }
      default:
        check_system(false, "{}: piece '{}' has type {}, which is not supported", what,
                     shown(p.text), static_cast<std::uint64_t>(p.type));
    }
  }
  if (model.dummy_prefix) parts.normal.push_back({NormalStep::Kind::prepend, "", kSpaceMark});
  parts.normal.push_back({NormalStep::Kind::replace, " ", kSpaceMark});
  parts.drops_first_space = model.dummy_prefix != 0;
  parts.merge_by_rank(ranks_of(model.pieces), what);
  return parts;
}

}  // namespace weft::tokenizer
