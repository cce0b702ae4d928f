#pragma once
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "weft/core/error.h"

namespace weft {

// A settings struct lists each setting once:
//
//   struct SgdOptions {
//     double lr = 0.1;
//     template <class V>
//     void fields(V& v) {
//       v("lr", lr, "learning rate", above(0));
//     }
//   };
//
// Command lines, files, checks and help are visitors. A visitor is called with (name, value, help,
// rule), and for an enum with (name, value, words, help, rule). Names are flag names without the
// leading dashes; a file may write '_' for '-'. Command lines check `needs`; a library type checks
// rules between its members in validate().

/// An enum value, or an optional one, and its word in flags, files and messages.
template <class E>
struct Word {
  const char* name;
  E value;
};

/// The constraints of a setting, beyond its type.
struct Rule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_out = false, high_is_out = false;
  /// Its key in a checkpoint's state; null: the name with '_' for '-'.
  const char* key = nullptr;
  bool saved = false;     ///< stored in checkpoints: a resumed run must have the same value
  bool required = false;  ///< present in every checkpoint so far
  bool first = false;     ///< shown in the short help
  struct Need {
    bool holds;
    std::string what;
  };
  std::vector<Need> needed = {};  ///< for settings that are not at their default

  /// The setting is valid only where `holds` is true: "--sp: needs --tp of at least 2, got 1".
  Rule needs(bool holds, std::string what) const;
  Rule of_model(const char* key_in_state = nullptr) const;
  Rule of_first_model(const char* key_in_state = nullptr) const;
  /// Checkpoints for which this holds have always contained the setting.
  Rule required_where(bool holds) const;
  Rule shown_first() const;
};

Rule at_least(double low);
Rule above(double low);
Rule between(double low, double high);
/// [0, 1)
Rule fraction();
inline Rule any() { return {}; }

/// Specialized as true for an enum whose values are sets of bits: its setting takes one word or a
/// list, "norms,mlp", which is the union. A word may stand for several bits.
template <class E>
inline constexpr bool is_word_set = false;

namespace detail {
[[noreturn]] void throw_no_word(int value);
/// The text, kept until the program ends.
const char* kept_text(const std::string& text);
}  // namespace detail

/// The word of an enum value; of a set, a list of words that give it. Throws Error for a
/// value without a word, since a file could not be read back.
template <class E, std::size_t N>
const char* word_of(const Word<E> (&words)[N], E value) {
  for (const Word<E>& w : words)
    if (w.value == value) return w.name;
  if constexpr (is_word_set<E>) {
    std::string list;
    auto rest = static_cast<unsigned>(value);
    for (const Word<E>& w : words) {
      const auto bits = static_cast<unsigned>(w.value);
      if (bits == 0 || (bits & (bits - 1)) != 0 || (rest & bits) == 0) continue;
      list += (list.empty() ? "" : ",") + std::string(w.name);
      rest &= ~bits;
    }
    if (rest == 0) return detail::kept_text(list);
  }
  if constexpr (std::is_enum_v<E>)
    detail::throw_no_word(static_cast<int>(value));
  else
    detail::throw_no_word(static_cast<int>(value.value()));  // a word stands for the unset one
}

namespace detail {
[[noreturn]] void throw_unknown_word(const std::string& who, std::string_view word,
                                     std::span<const char* const> known);
/// `who`, such as "gpt: layers" or "--layers:", starts the message.
void check_number(const std::string& who, std::int64_t value, const Rule& rule);
void check_number(const std::string& who, double value, const Rule& rule);
}  // namespace detail

/// The enum value of a word, or of a list of words for a set. Throws Error "{who} must be one of
/// {words}, got '{word}'".
template <class E, std::size_t N>
E value_of(const Word<E> (&words)[N], std::string_view word, const std::string& who) {
  if constexpr (is_word_set<E>) {
    if (const std::size_t comma = word.find(','); comma != word.npos)
      return static_cast<E>(static_cast<unsigned>(value_of(words, word.substr(0, comma), who)) |
                            static_cast<unsigned>(value_of(words, word.substr(comma + 1), who)));
  }
  const char* known[N];
  for (std::size_t i = 0; i < N; ++i) {
    if (word == words[i].name) return words[i].value;
    known[i] = words[i].name;
  }
  detail::throw_unknown_word(who, word, known);
}

namespace detail {
template <class T>
inline constexpr bool is_setting =
    std::is_same_v<T, bool> || std::is_same_v<T, std::int64_t> || std::is_same_v<T, double> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>> ||
    std::is_same_v<T, std::optional<bool>>;

struct CheckNumbers {
  const char* op;

  void group(const char*) {}
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& rule = {}) {
    static_assert(is_setting<T>, "a setting must be of a type that every visitor knows");
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>)
      check_number(who(name), value, rule);
  }
  template <class E, std::size_t N>
  void operator()(const char*, const E&, const Word<E> (&)[N], const char*, const Rule& = {}) {}

 private:
  std::string who(const char* name) const;
};
}  // namespace detail

/// Throws Error "{op}: {name} must be at least 1, got 0" for the first setting of `options` that
/// violates its rule.
template <class Options>
void check_fields(const char* op, const Options& options) {
  detail::CheckNumbers v{op};
  Options copy = options;
  copy.fields(v);
}

}  // namespace weft
