#pragma once
#include "weft/core/fields.h"
#include "weft/io/json.h"

namespace weft::io {

namespace detail {
std::string key_of(const char* name, const Rule& rule);

struct WriteFields {
  Json& out;
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& rule = {}) {
    if (rule.saved) out.set(key_of(name, rule), json(value));
  }
  template <class E, std::size_t N>
  void operator()(const char* name, const E& value, const Word<E> (&words)[N], const char*,
                  const Rule& rule = {}) {
    if (rule.saved) out.set(key_of(name, rule), word_of(words, value));
  }
  void group(const char*) {}

 private:
  template <class T>
  static Json json(const T& value) {
    return Json(value);
  }
  static Json json(const std::optional<bool>& value) { return value ? Json(*value) : Json(); }
};

struct ReadFields {
  const Json& in;
  const char* file;
  template <class T>
  void operator()(const char* name, T& value, const char*, const Rule& rule = {}) {
    if (const Json* found = find(name, rule)) read(*found, value);
  }
  template <class E, std::size_t N>
  void operator()(const char* name, E& value, const Word<E> (&words)[N], const char*,
                  const Rule& rule = {}) {
    const Json* const found = find(name, rule);
    if (!found) return;
    try {
      value = value_of(words, found->as_string(), message("{}: {}", file, key_of(name, rule)));
    } catch (const Error& e) {
      throw Error(e.what(), Fault::system);
    }
  }
  void group(const char*) {}

 private:
  const Json* find(const char* name, const Rule& rule) const;
  static void read(const Json& j, bool& v) { v = j.as_bool(); }
  static void read(const Json& j, std::int64_t& v) { v = j.as_int(); }
  static void read(const Json& j, double& v) { v = j.as_double(); }
  static void read(const Json& j, std::string& v) { v = j.as_string(); }
  static void read(const Json& j, std::optional<bool>& v) {
    v = j.is_null() ? std::nullopt : std::optional(j.as_bool());
  }
};
}  // namespace detail

/// The saved fields of `options`: an object with one member per field.
template <class Options>
Json fields_to_json(const Options& options) {
  Json out = Json::object();
  detail::WriteFields v{out};
  Options copy = options;
  copy.fields(v);
  return out;
}

/// Fills `options` from such an object. A member missing because the checkpoint is older keeps its
/// default. `file` names the source in messages.
/// Throws Error (Fault::system) on a member of another type, an unknown word, or a missing member
/// that checkpoints have always had.
template <class Options>
void fields_from_json(const Json& in, const char* file, Options& options) {
  detail::ReadFields v{in, file};
  options.fields(v);
}

}  // namespace weft::io
