#pragma once
#include <optional>
#include <string>
#include <vector>

#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/options.h"

// Visitors of fields(): options as flags, as the text of config.toml, and their checks.
namespace weft::train {

/// "a, b or c", for help.
template <class E, std::size_t N>
std::string alternatives(const Word<E> (&words)[N]) {
  std::string out;
  for (std::size_t i = 0; i < N; ++i)
    out += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i].name);
  return out;
}

/// For CommandLine::words().
template <class E, std::size_t N>
std::vector<std::string> names_of(const Word<E> (&words)[N]) {
  std::vector<std::string> out;
  for (const Word<E>& w : words) out.emplace_back(w.name);
  return out;
}

namespace flag_visitors {

enum class OnOff : std::uint8_t { automatic, on, off };
inline constexpr Word<OnOff> kOnOffWords[] = {
    {"auto", OnOff::automatic}, {"on", OnOff::on}, {"off", OnOff::off}};
inline OnOff on_off(const std::optional<bool>& v) {
  return !v ? OnOff::automatic : *v ? OnOff::on : OnOff::off;
}
inline std::optional<bool> from_on_off(OnOff v) {
  return v == OnOff::automatic ? std::nullopt : std::optional(v == OnOff::on);
}

/// Throws Error for a reserved word whose feature does not exist yet.
void refuse_reserved(std::string_view flag, std::string_view word, const std::string& known);
/// Throws Error unless the text is valid UTF-8, as config.toml requires.
void check_text(const std::string& who, const std::string& value);

// Adds a flag for each field.
struct Bind {
  CommandLine& line;
  const char* heading = "";

  void group(const char* name) { heading = name; }
  template <class T>
  void operator()(const char* name, T& value, const char* help, const Rule& rule = {}) {
    line.add(flag(name), value, help, heading, rule.first);
  }
  void operator()(const char* name, std::optional<bool>& value, const char* help,
                  const Rule& rule = {}) {
    add(name, kOnOffWords, on_off(value), help, rule,
        [&value](OnOff v) { value = from_on_off(v); });
  }
  template <class E, std::size_t N>
  void operator()(const char* name, E& value, const Word<E> (&words)[N], const char* help,
                  const Rule& rule = {}) {
    add(name, words, value, help, rule, [&value](E v) { value = v; });
  }

 private:
  static std::string flag(const char* name) { return std::string("--") + name; }
  template <class E, std::size_t N, class Set>
  void add(const char* name, const Word<E> (&words)[N], E now, const char* help, const Rule& rule,
           Set set) {
    line.add_word(flag(name), word_of(words, now), message("{} ({})", help, alternatives(words)),
                  heading, rule.first, [name, &words, set](const std::string& word) {
                    refuse_reserved(name, word, alternatives(words));
                    set(value_of(words, word, message("--{}:", name)));
                  });
    line.words(flag(name), names_of(words));
  }
};

struct ToToml {
  std::string out;

  void group(const char*) {}
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& = {}) {
    out += message("{} = {}\n", name, toml_value(value));
  }
  void operator()(const char* name, const std::optional<bool>& value, const char*,
                  const Rule& = {}) {
    (*this)(name, std::string(word_of(kOnOffWords, on_off(value))), "");
  }
  template <class E, std::size_t N>
  void operator()(const char* name, const E& value, const Word<E> (&words)[N], const char*,
                  const Rule& = {}) {
    (*this)(name, std::string(word_of(words, value)), "");
  }
};

// The addresses of the fields, in order.
struct Addresses {
  std::vector<const void*> at;

  void group(const char*) {}
  template <class T>
  void operator()(const char*, T& value, const char*, const Rule& = {}) {
    at.push_back(&value);
  }
  template <class E, std::size_t N>
  void operator()(const char*, E& value, const Word<E> (&)[N], const char*, const Rule& = {}) {
    at.push_back(&value);
  }
};

// Throws for the first field that violates its rule.
struct CheckRules {
  const std::vector<const void*>& defaults;
  std::size_t next = 0;

  void group(const char*) {}
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& rule = {}) {
    const std::string who = message("--{}:", name);
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>)
      weft::detail::check_number(who, value, rule);
    if constexpr (std::is_same_v<T, std::string>) check_text(who, value);
    if constexpr (std::is_same_v<T, std::vector<std::string>>)
      for (const std::string& item : value) check_text(who, item);
    check_needs(who, value, rule);
  }
  template <class E, std::size_t N>
  void operator()(const char* name, const E& value, const Word<E> (&)[N], const char*,
                  const Rule& rule = {}) {
    check_needs(message("--{}:", name), value, rule);
  }

 private:
  template <class T>
  void check_needs(const std::string& who, const T& value, const Rule& rule) {
    if (value == *static_cast<const T*>(defaults[next++])) return;
    for (const Rule::Need& need : rule.needed) check(need.holds, "{} needs --{}", who, need.what);
  }
};

}  // namespace flag_visitors

/// The text of a complete --config file with these options.
template <class O>
std::string to_toml(const O& options) {
  flag_visitors::ToToml toml;
  O copy = options;
  copy.fields(toml);
  return toml.out;
}
inline std::string config_of(const Options& o) { return o.config.empty() ? to_toml(o) : o.config; }

/// Throws Error for the first setting that violates a rule, its own or one between settings.
template <class O>
void check_options(const O& options) {
  O plain, copy = options;
  flag_visitors::Addresses defaults;
  plain.fields(defaults);
  flag_visitors::CheckRules rules{defaults.at};
  copy.fields(rules);
  options.check();
}

/// Reads flags and --config into `options`, whose current values are the defaults, and checks every
/// value. `line` may define more flags. Returns false if --help or --print-config has printed: the
/// program should end.
/// Throws Error (Fault::user) with one line: an unknown name with the nearest match, a value out of
/// range, or a flag whose feature does not exist yet.
template <class O>
bool parse_options(CommandLine& line, O& options, Arguments args) {
  flag_visitors::Bind bind{line};
  options.fields(bind);
  bool print_config = false;
  std::string config;  // expand_config() has removed it from the arguments; declared for --help
  line.add("--config", config, "TOML file with the same names; a flag wins", "Run");
  line.add("--print-config", print_config, "print a complete --config file and stop", "Run");
  if (!line.parse(std::move(args))) return false;
  try {
    check_options(options);
  } catch (const Error& e) {
    throw line.located(e);
  }
  if (print_config) print_text(to_toml(options));
  return !print_config;
}

}  // namespace weft::train
