#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace weft::io {

struct JsonMember;

/// Bounds on what parse() builds, so that a small hostile text cannot take the stack or all memory:
/// a value of two bytes takes 40 to 150.
struct JsonLimits {
  int depth = 64;                 ///< nested arrays and objects
  std::int64_t values = 500'000;  ///< values of all kinds, the nested ones included
};

/// A JSON value. Objects keep the order of their members. Numbers written without fraction and
/// exponent that fit 64 bits are integers and stay exact; all others are doubles.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  Json() = default;
  Json(bool v) : value_(v) {}
  Json(int v) : value_(std::int64_t{v}) {}
  Json(std::int64_t v) : value_(v) {}
  Json(double v) : value_(v) {}
  Json(std::string v) : value_(std::move(v)) {}
  Json(const char* v) : value_(std::string(v)) {}
  Json(Array v) : value_(std::move(v)) {}
  static Json object();

  /// Reads one value and nothing after it. Strict: UTF-8 without errors, no duplicate keys, no
  /// comments, no trailing commas, no NaN.
  /// Throws Error (Fault::system) "what: reason at byte n".
  static Json parse(std::string_view text, std::string_view what = "json",
                    const JsonLimits& limits = {});
  /// Reads one object as parse() does and hands out each member as it comes, with the byte at which
  /// it begins, keeping none: for large texts of small members. The limits are those of a member;
  /// whether keys differ is the caller's to check. False, without a call, when `text` is no object.
  static bool each_member(
      std::string_view text, std::string_view what,
      const std::function<void(std::string key, Json value, std::size_t byte)>& f,
      const JsonLimits& limits = {});
  /// One line. Doubles are the shortest text that reads back the same; NaN and infinities are null.
  std::string dump() const;

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return value_.index() == 1; }
  bool is_int() const { return value_.index() == 2; }
  bool is_number() const { return value_.index() == 2 || value_.index() == 3; }
  bool is_string() const { return value_.index() == 4; }
  bool is_array() const { return value_.index() == 5; }
  bool is_object() const { return value_.index() == 6; }

  // Each throws Error when the value is of another kind: "json: expected an integer, got a string".
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;  ///< integers too
  const std::string& as_string() const;
  const Array& items() const;
  const Object& members() const;
  // The same, leaving the value empty.
  std::string take_string();
  Object take_members();

  /// The member of an object; null when there is none or this is no object.
  const Json* find(std::string_view key) const;
  /// Throws Error naming a key that is missing.
  const Json& at(std::string_view key) const;
  /// Adds a member at the end, or replaces the one of that name. A null becomes an object.
  Json& set(std::string key, Json value);
  /// The same for a key known to be new: no search, so that large objects build in linear time.
  Json& append(std::string key, Json value);
  /// Adds an item to an array. A null becomes an array.
  Json& push_back(Json value);

 private:
  friend class JsonParser;
  void append_to(std::string& out) const;
  [[noreturn]] void throw_kind(const char* expected) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

/// `text` as a JSON string with its quotes.
std::string json_quote(std::string_view text);

/// Offset of the first byte that is not part of well-formed UTF-8; npos when all is well.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace weft::io
