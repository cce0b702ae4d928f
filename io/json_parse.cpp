#include <algorithm>
#include <charconv>
#include <numeric>
#include <system_error>

#include "weft/core/error.h"
#include "weft/io/json.h"

namespace weft::io {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void append_utf8(std::string& out, char32_t code) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 63));
    }
    add(0x80 | (code >> 6 & 63));
  }
  add(0x80 | (code & 63));
}

std::size_t find_invalid_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = byte(i);
    if (c < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = c >= 0xC2 && c < 0xE0   ? 2
                               : c >= 0xE0 && c < 0xF0 ? 3
                               : c >= 0xF0 && c < 0xF5 ? 4
                                                       : 0;
    if (length == 0 || text.size() - i < length) return i;
    for (std::size_t k = 1; k < length; ++k)
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    // The second byte reveals overlong forms, surrogates and codes above U+10FFFF.
    const unsigned char second = byte(i + 1);
    if ((c == 0xE0 && second < 0xA0) || (c == 0xED && second >= 0xA0) ||
        (c == 0xF0 && second < 0x90) || (c == 0xF4 && second >= 0x90))
      return i;
    i += length;
  }
  return std::string_view::npos;
}

/// Recursive-descent parser of one text; the depth limit bounds the recursion.
class JsonParser {
 public:
  JsonParser(std::string_view text, std::string_view what, const JsonLimits& limits)
      : text_(text),
        what_(what),
        limits_(limits),
        depth_left_(limits.depth),
        values_left_(limits.values) {}

  Json document() {
    check_utf8();
    Json v = value();
    end();
    return v;
  }

  template <class F>
  bool each_member_of_document(F&& f) {
    check_utf8();
    skip_space();
    if (peek() != '{') {
      value();
      end();
      return false;
    }
    --depth_left_;
    each_member([&](std::string key, std::size_t start) {
      values_left_ = limits_.values;
      f(std::move(key), value(), start);
    });
    end();
    return true;
  }

 private:
  [[noreturn]] void fail(std::string_view reason) const { fail(reason, at_); }
  [[noreturn]] void fail(std::string_view reason, std::size_t at) const {
    weft::detail::raise(Fault::system, "{}: {} at byte {}", {what_, reason, at});
  }

  void check_utf8() const {
    const std::size_t bad = find_invalid_utf8(text_);
    if (bad != std::string_view::npos) fail("invalid UTF-8", bad);
  }
  void end() {
    skip_space();
    if (at_ < text_.size()) fail("text after the value");
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  Json value() {
    skip_space();
    if (at_ >= text_.size()) fail("unexpected end");
    if (--values_left_ < 0) fail("too many values");
    switch (text_[at_]) {
      case '{':
        return nested([this] { return object(); });
      case '[':
        return nested([this] { return array(); });
      case '"':
        return Json(string());
      case 't':
        return word("true", Json(true));
      case 'f':
        return word("false", Json(false));
      case 'n':
        return word("null", Json());
      default:
        return number();
    }
  }

  template <class F>
  Json nested(F&& f) {
    if (--depth_left_ < 0) fail("nesting too deep");
    Json v = f();
    ++depth_left_;
    return v;
  }

  Json word(std::string_view expected, Json v) {
    if (text_.substr(at_, expected.size()) != expected) fail("unexpected character");
    at_ += expected.size();
    return v;
  }

  // Parses the object that begins here; f(key, byte of the key) reads each value.
  template <class F>
  void each_member(F&& f) {
    ++at_;
    skip_space();
    if (take('}')) return;
    do {
      skip_space();
      if (peek() != '"') fail("expected a key");
      const std::size_t start = at_;
      std::string key = string();
      skip_space();
      if (!take(':')) fail("expected ':'");
      f(std::move(key), start);
      skip_space();
    } while (take(','));
    if (!take('}')) fail("expected ',' or '}'");
  }

  Json object() {
    Json::Object members;
    std::vector<std::size_t> starts;
    each_member([&](std::string key, std::size_t start) {
      starts.push_back(start);
      Json v = value();
      members.push_back({std::move(key), std::move(v)});
    });
    check_keys(members, starts);
    Json out;
    out.value_ = std::move(members);
    return out;
  }

  void check_keys(const Json::Object& members, const std::vector<std::size_t>& starts) const {
    const std::size_t n = members.size();
    std::size_t repeats = n;  // the first member that repeats an earlier key
    if (n <= 8) {             // most objects: avoids list and sort
      for (std::size_t i = n; i-- > 1;)
        for (std::size_t k = 0; k < i; ++k)
          if (members[k].key == members[i].key) repeats = i;
    } else {
      std::vector<std::size_t> order(n);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const int c = members[a].key.compare(members[b].key);
        return c != 0 ? c < 0 : a < b;
      });
      for (std::size_t i = 1; i < n; ++i)
        if (members[order[i]].key == members[order[i - 1]].key)
          repeats = std::min(repeats, order[i]);
    }
    if (repeats < n) fail("duplicate key " + json_quote(members[repeats].key), starts[repeats]);
  }

  Json array() {
    ++at_;
    Json::Array items;
    skip_space();
    if (!take(']')) {
      do {
        items.push_back(value());
        skip_space();
      } while (take(','));
      if (!take(']')) fail("expected ',' or ']'");
    }
    return Json(std::move(items));
  }

  std::string string() {
    ++at_;  // skip the quote
    const auto is_plain = [](char c) {
      return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
    };
    std::string out;
    for (;;) {
      const std::size_t start = at_;
      while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
      out.append(text_, start, at_ - start);
      if (at_ >= text_.size()) fail("unexpected end");
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("control character in a string");
      if (text_[at_++] == '"') return out;
      escape(out);
    }
  }

  void escape(std::string& out) {
    const std::size_t start = at_ - 1;
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u':
        break;
      default:
        fail("unknown escape", start);
    }
    std::uint32_t code = hex4(start);
    if (code >= 0xDC00 && code < 0xE000) fail("lone surrogate", start);
    if (code >= 0xD800 && code < 0xDC00) {
      if (!take('\\') || !take('u')) fail("lone surrogate", start);
      const std::uint32_t low = hex4(start);
      if (low < 0xDC00 || low >= 0xE000) fail("lone surrogate", start);
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
  }

  std::uint32_t hex4(std::size_t start) {
    std::uint32_t code = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || end != digits.data() + 4) fail("unknown escape", start);
    at_ += 4;
    return code;
  }

  void digits() {
    if (!is_digit(peek())) fail("expected a digit");
    while (is_digit(peek())) ++at_;
  }

  Json number() {
    const std::size_t start = at_;
    if (!take('-') && !is_digit(peek())) fail("unexpected character");
    if (!take('0')) digits();
    bool integer = true;
    if (take('.')) {
      integer = false;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      integer = false;
      ++at_;
      if (!take('+')) take('-');
      digits();
    }
    const char* first = text_.data() + start;
    const char* last = text_.data() + at_;
    if (integer) {
      std::int64_t v = 0;
      if (std::from_chars(first, last, v).ec == std::errc()) return Json(v);
    }
    double v = 0;
    if (std::from_chars(first, last, v).ec != std::errc()) fail("number out of range", start);
    return Json(v);
  }

  std::string_view text_, what_;
  JsonLimits limits_;
  std::size_t at_ = 0;
  int depth_left_;
  std::int64_t values_left_;
};

Json Json::parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return JsonParser(text, what, limits).document();
}

bool Json::each_member(std::string_view text, std::string_view what,
                       const std::function<void(std::string key, Json value, std::size_t byte)>& f,
                       const JsonLimits& limits) {
  return JsonParser(text, what, limits).each_member_of_document(f);
}

}  // namespace weft::io
