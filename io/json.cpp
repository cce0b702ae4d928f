#include "weft/io/json.h"

#include <charconv>
#include <cmath>

#include "weft/core/error.h"

namespace weft::io {
namespace {

constexpr const char* kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                  "a string", "an array",  "an object"};

template <class T>
void append_number(std::string& out, T v) {
  char buffer[32];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr);
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

}  // namespace

Json Json::object() {
  Json v;
  v.value_ = Object();
  return v;
}

std::string Json::dump(Doubles doubles) const {
  std::string out;
  append_to(out, doubles);
  return out;
}

void Json::append_to(std::string& out, Doubles doubles) const {
  switch (value_.index()) {
    case 0:
      out += "null";
      return;
    case 1:
      out += std::get<bool>(value_) ? "true" : "false";
      return;
    case 2:
      return append_number(out, std::get<std::int64_t>(value_));
    case 3: {
      const double v = std::get<double>(value_);
      if (!std::isfinite(v)) {
        out += "null";
        return;
      }
      const std::size_t begin = out.size();
      append_number(out, v);
      if (doubles == Doubles::marked && out.find_first_of(".e", begin) == out.npos) out += ".0";
      return;
    }
    case 4:
      return append_quoted(out, std::get<std::string>(value_));
    case 5: {
      const char* before = "[";
      for (const Json& v : std::get<Array>(value_)) {
        out += std::exchange(before, ",");
        v.append_to(out, doubles);
      }
      out += std::get<Array>(value_).empty() ? "[]" : "]";
      return;
    }
    default: {
      const char* before = "{";
      for (const JsonMember& m : std::get<Object>(value_)) {
        out += std::exchange(before, ",");
        append_quoted(out, m.key);
        out += ':';
        m.value.append_to(out, doubles);
      }
      out += std::get<Object>(value_).empty() ? "{}" : "}";
    }
  }
}

void Json::throw_kind(const char* expected) const {
  weft::detail::raise(Fault::system, "json: expected {}, got {}",
                      {expected, kKinds[value_.index()]});
}

bool Json::as_bool() const {
  if (!is_bool()) throw_kind("a boolean");
  return std::get<bool>(value_);
}

std::int64_t Json::as_int() const {
  if (!is_int()) throw_kind("an integer");
  return std::get<std::int64_t>(value_);
}

double Json::as_double() const {
  if (is_int()) return static_cast<double>(as_int());
  if (!is_number()) throw_kind("a number");
  return std::get<double>(value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) throw_kind("a string");
  return std::get<std::string>(value_);
}

const Json::Array& Json::items() const {
  if (!is_array()) throw_kind("an array");
  return std::get<Array>(value_);
}

const Json::Object& Json::members() const {
  if (!is_object()) throw_kind("an object");
  return std::get<Object>(value_);
}

std::string Json::take_string() {
  if (!is_string()) throw_kind("a string");
  return std::exchange(std::get<std::string>(value_), {});
}

Json::Object Json::take_members() {
  if (!is_object()) throw_kind("an object");
  return std::exchange(std::get<Object>(value_), {});
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const JsonMember& m : std::get<Object>(value_))
    if (m.key == key) return &m.value;
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (!is_object()) throw_kind("an object");
  const Json* v = find(key);
  check_system(v != nullptr, "json: no key \"{}\"", key);
  return *v;
}

Json& Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object();
  if (!is_object()) throw_kind("an object");
  for (JsonMember& m : std::get<Object>(value_)) {
    if (m.key != key) continue;
    m.value = std::move(value);
    return *this;
  }
  return append(std::move(key), std::move(value));
}

Json& Json::append(std::string key, Json value) {
  if (is_null()) value_ = Object();
  if (!is_object()) throw_kind("an object");
  std::get<Object>(value_).push_back({std::move(key), std::move(value)});
  return *this;
}

Json& Json::push_back(Json value) {
  if (is_null()) value_ = Array();
  if (!is_array()) throw_kind("an array");
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

std::string json_quote(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

}  // namespace weft::io
