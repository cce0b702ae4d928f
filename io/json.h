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

/// Limits of parse(), so that a small hostile text cannot exhaust the stack or memory: a value of
/// two bytes takes 40 to 150.
struct JsonLimits {
  int depth = 64;                 ///< nested arrays and objects
  std::int64_t values = 500'000;  ///< values of all kinds, including nested ones
};

/// A JSON value. Objects keep the order of their members. Numbers without fraction and exponent
/// that fit 64 bits are integers and stay exact; all others are doubles.
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

  /// Parses exactly one value. Strict: valid UTF-8, no duplicate keys, no comments, no trailing
  /// commas, no NaN.
  /// Throws Error (Fault::system) "what: reason at byte n".
  static Json parse(std::string_view text, std::string_view what = "json",
                    const JsonLimits& limits = {});
  /// Parses one object as parse() does and passes each member to the callback with its byte offset,
  /// storing none: for large texts of small members. The limits apply per member; the caller must
  /// check for duplicate keys. Returns false, without a call, when `text` is not an object.
  static bool each_member(
      std::string_view text, std::string_view what,
      const std::function<void(std::string key, Json value, std::size_t byte)>& f,
      const JsonLimits& limits = {});
  enum class Doubles : std::uint8_t { shortest, marked };
  /// One line. Doubles are written as the shortest text that reads back equal; NaN and infinities
  /// as null. `Doubles::marked` writes 1.0 and not 1, for readers that take the latter for an
  /// integer.
  std::string dump(Doubles doubles = Doubles::shortest) const;

  bool is_null() const { return value_.index() == 0; }
  bool is_bool() const { return value_.index() == 1; }
  bool is_int() const { return value_.index() == 2; }
  bool is_number() const { return value_.index() == 2 || value_.index() == 3; }
  bool is_string() const { return value_.index() == 4; }
  bool is_array() const { return value_.index() == 5; }
  bool is_object() const { return value_.index() == 6; }

  // Each throws Error when the value has another type: "json: expected an integer, got a string".
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;  ///< also integers
  const std::string& as_string() const;
  const Array& items() const;
  const Object& members() const;
  // The same, moved out of the value.
  std::string take_string();
  Object take_members();

  /// The member of an object; null when it is missing or the value is not an object.
  const Json* find(std::string_view key) const;
  /// Throws Error naming a missing key.
  const Json& at(std::string_view key) const;
  /// Appends a member, or replaces the one of that name. A null becomes an object.
  Json& set(std::string key, Json value);
  /// The same for a key known to be new: skips the search, so that large objects build in linear
  /// time.
  Json& append(std::string key, Json value);
  /// Appends an item to an array. A null becomes an array.
  Json& push_back(Json value);

 private:
  friend class JsonParser;
  void append_to(std::string& out, Doubles doubles) const;
  [[noreturn]] void throw_kind(const char* expected) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

/// `text` as a quoted JSON string.
std::string json_quote(std::string_view text);

/// Appends the UTF-8 of a code point.
void append_utf8(std::string& out, char32_t code);

/// Offset of the first byte that is not part of well-formed UTF-8; npos if there is none.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace weft::io
