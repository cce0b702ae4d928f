#include "weft/train/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "weft/train/help_text.h"
#include "weft/train/program_text.h"
#include "weft/train/unknown_flag.h"

namespace weft::train {
namespace {

std::string one_line(const std::string& text) {
  std::string shown;
  for (const char c : text) shown += c == '\n' ? "\\n" : std::string(1, c);
  return shown;
}

// The placeholder for a flag's value in --help.
std::string value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() == 0) return "";
  const bool list = option.get_items_expected_max() > 1;
  return std::string(type == "INT" ? " N" : type == "FLOAT" ? " X" : " TEXT") + (list ? "..." : "");
}

std::string help_of(const CLI::Option& option) {
  const std::string now = option.get_default_str();
  return option.get_description() + (now.empty() ? "" : " [" + now + "]");
}

HelpEntry entry_of(const CLI::Option& option) {
  return {option.get_name(false, true) + value_of(option), help_of(option)};
}

// CLI11 reads a list's value in brackets as several values, and "{}" as none. Such texts get a
// mark, which their options remove.
constexpr char kMark = '\x01';
bool looks_like_list(const std::string& text) {
  return !text.empty() && (text[0] == '[' || text[0] == '{' || text[0] == kMark);
}
// As CLI11 tells it: what follows the dashes begins a name.
bool is_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") && word[2] > ' ' && word[2] != '-' &&
         word[2] != '!';
}
void mark_value(std::string& word) {
  const std::size_t value = is_flag(word) ? word.find('=') + 1 : 0;
  if (is_flag(word) && value == 0) return;
  if (looks_like_list(word.substr(value))) word.insert(value, 1, kMark);
}
// CLI11 takes the words in reverse order, and "--name=" for a flag whose value is the next word.
std::vector<std::string> as_cli11_reads(const CLI::App& app,
                                        const std::vector<std::string>& given) {
  std::vector<std::string> words;
  for (std::string word : given) {
    mark_value(word);
    const bool is_empty = is_flag(word) && word.find('=') == word.size() - 1;
    if (is_empty) {
      word.pop_back();
      const CLI::Option* const option = app.get_option_no_throw(word);
      check(!option || option->get_items_expected_max() > 0, "{}: takes no value, got ''", word);
    }
    words.push_back(word);
    if (is_empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}
std::string unmarked(std::string text) {
  if (!text.empty() && text[0] == kMark) text.erase(0, 1);
  return text;
}

// CLI11 takes "010" for 8, numbers that are too large for the largest, and nothing for 0.
template <class T>
T number_of(const std::string& flag, const std::string& given) {
  const std::string text = unmarked(given);
  constexpr const char* kWhat = std::is_same_v<T, double> ? "number" : "whole number";
  T value{};
  const char* const end = text.data() + text.size();
  const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
  const auto [stop, error] = std::from_chars(text.data() + plus, end, value);
  check(error != std::errc::result_out_of_range, "{}: must be a {} that 64 bits can hold, got '{}'",
        flag, kWhat, text);
  check(error == std::errc() && stop == end, "{}: must be a {}, got '{}'", flag, kWhat, text);
  return value;
}

// What every program has.
const std::vector<FlagText>& common_flags() {
  static const std::vector<FlagText> flags{{"--help", "", "this text", "Help", {}, "-h"},
                                           {"--version", "", "the version", "Help"},
                                           {"--completion",
                                            "TEXT",
                                            "a completion file for this shell (bash, zsh or fish)",
                                            "Help",
                                            {"bash", "zsh", "fish"}},
                                           {"--man", "", "a manual page, for man -l -", "Help"}};
  return flags;
}

}  // namespace

struct CommandLine::App : CLI::App {
  using CLI::App::App;
  std::vector<CLI::Option*> later;  // shown only in --help all
  std::vector<std::string> examples;
  std::map<std::string, std::string> lines;  // of flags in the config file
  std::map<std::string, std::vector<std::string>> words;
  std::vector<CLI::Option*> refused;

  ProgramText text() const;
  std::vector<std::string> names() const;
  std::string help_of(bool all) const;
  void take_our_names(Arguments& args) const;
  void check_lists(const Arguments& args) const;
};

CommandLine::CommandLine(const std::string& what, const std::string& program)
    : app_(std::make_unique<App>(what, program)) {}
CommandLine::~CommandLine() = default;

template <class T>
void CommandLine::add(const std::string& flag, T& value, const char* help, const char* group,
                      bool first) {
  CLI::Option* option;
  if constexpr (std::is_same_v<T, bool>) {
    option = app_->add_flag(flag, value, help);
  } else if constexpr (std::is_arithmetic_v<T>) {
    const auto set = [&value, flag](const std::string& text) { value = number_of<T>(flag, text); };
    std::ostringstream now;
    now << value;
    option = app_->add_option_function<std::string>(flag, set, help)
                 ->type_name(std::is_same_v<T, double> ? "FLOAT" : "INT")
                 ->default_str(now.str());
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const auto set = [&value](const std::vector<std::string>& given) {
      value.clear();
      for (const std::string& text : given) value.push_back(unmarked(text));
    };
    option = app_->add_option_function<std::vector<std::string>>(flag, set, help);
  } else {
    option = app_->add_option(flag, value, help)->transform(unmarked);
    if constexpr (std::is_same_v<T, std::string>) option->default_str(one_line(value));
  }
  if constexpr (!std::is_same_v<T, bool> && !std::is_same_v<T, std::vector<std::string>>)
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (group) option->group(group);
  if (!first) app_->later.push_back(option);
}

template void CommandLine::add(const std::string&, bool&, const char*, const char*, bool);
template void CommandLine::add(const std::string&, std::int64_t&, const char*, const char*, bool);
template void CommandLine::add(const std::string&, double&, const char*, const char*, bool);
template void CommandLine::add(const std::string&, std::string&, const char*, const char*, bool);
template void CommandLine::add(const std::string&, std::vector<std::string>&, const char*,
                               const char*, bool);

void CommandLine::add_word(const std::string& flag, const char* now, const std::string& help,
                           const char* group, bool first,
                           const std::function<void(const std::string&)>& set) {
  CLI::Option* const option = app_->add_option_function<std::string>(flag, set, help)
                                  ->transform(unmarked)
                                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
                                  ->default_str(now)
                                  ->group(group);
  if (!first) app_->later.push_back(option);
}

void CommandLine::refuse(const char* flag, const char* help, const std::string& why,
                         const char* group) {
  const auto refusal = [flag = std::string(flag), why](const std::vector<std::string>&) {
    check(false, "{}: {}", flag, why);
  };
  app_->later.push_back(app_->add_option_function<std::vector<std::string>>(flag, refusal, help)
                            ->expected(0, -1)
                            ->group(group));
  app_->refused.push_back(app_->later.back());
}

void CommandLine::words(const std::string& flag, std::vector<std::string> words) {
  app_->words[flag] = std::move(words);
}

ProgramText CommandLine::App::text() const {
  ProgramText out{get_name(), get_description(), examples, {}};
  for (const std::string& group : get_groups())
    for (const CLI::Option* option : get_options()) {
      const bool is_refused = std::find(refused.begin(), refused.end(), option) != refused.end();
      if (option->get_group() != group || option == get_help_ptr() || is_refused) continue;
      const std::string flag = option->get_name(false, false), value = value_of(*option);
      const auto known = words.find(flag);
      out.flags.push_back({flag, value.empty() ? "" : value.substr(1), train::help_of(*option),
                           group, known == words.end() ? std::vector<std::string>() : known->second,
                           option->get_snames().empty() ? "" : "-" + option->get_snames()[0]});
    }
  out.flags.insert(out.flags.end(), common_flags().begin(), common_flags().end());
  return out;
}

void CommandLine::examples(std::vector<std::string> lines) { app_->examples = std::move(lines); }

std::vector<std::string> CommandLine::App::names() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : get_options()) names.push_back(option->get_name());
  return names;
}

std::string CommandLine::App::help_of(bool all) const {
  std::vector<HelpGroup> groups;
  for (const std::string& name : get_groups()) {
    groups.push_back({name, {}});
    for (const CLI::Option* option : get_options()) {
      if (option->get_group() != name || option == get_help_ptr()) continue;
      if (!all && std::find(later.begin(), later.end(), option) != later.end()) continue;
      groups.back().entries.push_back(entry_of(*option));
    }
  }
  groups.push_back({"Help", {}});
  for (const FlagText& f : common_flags())
    groups.back().entries.push_back({f.flag + (f.value.empty() ? "" : " " + f.value), f.help});
  if (!later.empty())
    groups.back().entries.insert(groups.back().entries.begin() + 1, {"--help all", "every flag"});
  return help_text(get_description(), examples, groups);
}

void CommandLine::App::take_our_names(Arguments& args) const {
  const std::vector<std::string> known = names();
  std::map<std::string, std::string> lines;
  for (const auto& [flag, line] : args.lines) lines[our_name(flag, known)] = line;
  std::map<std::string, std::size_t> lists;
  for (const auto& [flag, values] : args.lists) lists[our_name(flag, known)] = values;
  args.lists = std::move(lists);
  for (std::size_t i = 0; i < args.words.size(); ++i) {
    std::string& word = args.words[i];
    word = our_name(word, known);
    if (i >= args.from_file) lines.erase(word.substr(0, word.find('=')));
  }
  args.lines = std::move(lines);
}

bool CommandLine::parse(Arguments given) {
  const std::vector<std::string>& args = given.words;
  const auto asks = [&](const char* flag) {
    return std::find(args.begin(), args.end(), flag) != args.end();
  };
  if (asks("--version")) {
    std::printf("%s %s (Weft)\n", app_->get_name().c_str(), WEFT_VERSION);
    return false;
  }
  if (asks("--help") || asks("-h")) {
    const auto help = std::find_if(args.begin(), args.end(),
                                   [](const std::string& a) { return a == "--help" || a == "-h"; });
    std::fputs(app_->help_of(help + 1 != args.end() && help[1] == "all").c_str(), stdout);
    return false;
  }
  if (const auto shell = std::find(args.begin(), args.end(), "--completion"); shell != args.end()) {
    const std::string name = shell + 1 == args.end() ? "" : shell[1];
    std::fputs(completion_text(app_->text(), name).c_str(), stdout);
    return false;
  }
  if (asks("--man")) {
    std::fputs(man_page(app_->text(), WEFT_VERSION).c_str(), stdout);
    return false;
  }
  app_->take_our_names(given);
  app_->lines = given.lines;
  app_->check_lists(given);
  app_->allow_extras();
  try {
    std::vector<std::string> words = as_cli11_reads(*app_, given.words);
    app_->parse(words);
    if (const std::vector<std::string> unknown = app_->remaining(true); !unknown.empty())
      throw_unknown_flag(unmarked(unknown.front()), app_->names(),
                         app_->later.empty() ? "--help" : "--help all");
  } catch (const CLI::ParseError& e) {
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw located(Error(line));
  } catch (const Error& e) {
    throw located(e);
  }
  return true;
}

// A list in the config file belongs to a flag that takes several values.
void CommandLine::App::check_lists(const Arguments& args) const {
  for (const auto& [flag, values] : args.lists) {
    const CLI::Option* const option = get_option_no_throw(flag);
    if (option && option->get_items_expected_max() <= 1)
      throw Error(message("{}: takes one value, got a list of {} ({})", flag, values,
                          lines.contains(flag) ? lines.at(flag) : "config file"));
  }
}

Error CommandLine::located(const Error& e) const {
  const std::string text = e.what();
  const std::size_t begin = text.find("--");
  // The text of a violated rule begins with its flag; an unknown flag is quoted.
  if (begin != 0 && text.rfind("unknown flag '--", 0) != 0) return e;
  const std::size_t end = text.find_first_of(":'= ", begin);
  const auto found = app_->lines.find(text.substr(begin, end - begin));
  if (found == app_->lines.end()) return e;
  return Error(message("{} ({})", text, found->second), e.fault());
}

void print_text(const std::string& text) { std::fputs(text.c_str(), stdout); }

}  // namespace weft::train
