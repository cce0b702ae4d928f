#include "weft/core/fields.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

namespace weft {

Rule Rule::needs(bool holds, std::string what) const {
  Rule r = *this;
  r.needed.push_back({holds, std::move(what)});
  return r;
}

Rule Rule::of_model(const char* key_in_state) const {
  Rule r = *this;
  r.saved = true;
  r.key = key_in_state;
  return r;
}

Rule Rule::of_first_model(const char* key_in_state) const {
  Rule r = of_model(key_in_state);
  r.required = true;
  return r;
}

Rule Rule::required_where(bool holds) const {
  Rule r = *this;
  r.required = holds;
  return r;
}

Rule Rule::shown_first() const {
  Rule r = *this;
  r.first = true;
  return r;
}

Rule at_least(double low) { return {.low = low}; }
Rule above(double low) { return {.low = low, .low_is_out = true}; }
Rule between(double low, double high) { return {.low = low, .high = high}; }
Rule fraction() { return {.low = 0, .high = 1, .high_is_out = true}; }

namespace detail {
namespace {

// Limits are mostly whole numbers: print 1000000, not 1e+06.
std::string text_of(double x) {
  const bool whole = std::abs(x) < 1e15 && x == std::floor(x);
  return whole ? std::to_string(static_cast<std::int64_t>(x)) : message("{}", x);
}

template <class T>
void check_limits(const std::string& who, T value, const Rule& rule) {
  const auto x = static_cast<double>(value);
  const bool low_holds = rule.low_is_out ? x > rule.low : x >= rule.low;
  const bool high_holds = rule.high_is_out ? x < rule.high : x <= rule.high;
  if (low_holds && high_holds) return;
  const std::string low = text_of(rule.low), high = text_of(rule.high);
  if (rule.high_is_out)
    throw Error(message("{} must be in {}{}, {}), got {}", who, rule.low_is_out ? "(" : "[", low,
                        high, value));
  if (rule.low_is_out && std::isfinite(rule.high))
    throw Error(message("{} must be above {} and at most {}, got {}", who, low, high, value));
  throw Error(low_holds         ? message("{} must be at most {}, got {}", who, high, value)
              : rule.low_is_out ? message("{} must be above {}, got {}", who, low, value)
                                : message("{} must be at least {}, got {}", who, low, value));
}

}  // namespace

const char* kept_text(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> all;
  const std::lock_guard lock(mutex);
  return all.insert(text).first->c_str();
}

void throw_no_word(int value) {
  throw Error(message("settings: value {} of an enum must have a word in its table", value));
}

void throw_unknown_word(const std::string& who, std::string_view word,
                        std::span<const char* const> known) {
  std::string list;
  for (const char* name : known) list += (list.empty() ? "" : ", ") + std::string(name);
  throw Error(message("{} must be one of {}, got '{}'", who, list, word));
}

void check_number(const std::string& who, std::int64_t value, const Rule& rule) {
  check_limits(who, value, rule);
}
void check_number(const std::string& who, double value, const Rule& rule) {
  check(std::isfinite(value), "{} must be finite, got {}", who, value);
  check_limits(who, value, rule);
}

std::string CheckNumbers::who(const char* name) const {
  std::string text = name;
  std::replace(text.begin(), text.end(), '-', '_');
  return message("{}: {}", op, text);
}

}  // namespace detail
}  // namespace weft
