#include "weft/train/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <type_traits>

#include "weft/core/error.h"
#include "weft/train/unknown_flag.h"

namespace weft::train {
namespace {

std::string one_line(const std::string& text) {
  std::string shown;
  for (const char c : text) shown += c == '\n' ? "\\n" : std::string(1, c);
  return shown;
}

}  // namespace

struct CommandLine::App : CLI::App {
  using CLI::App::App;
  std::vector<CLI::Option*> later;  // shown only in --help all
};

CommandLine::CommandLine(const std::string& what, const std::string& program)
    : app_(std::make_unique<App>(what, program)) {}
CommandLine::~CommandLine() = default;

template <class T>
void CommandLine::add(const std::string& flag, T& value, const char* help, const char* group,
                      bool first) {
  CLI::Option* option;
  if constexpr (std::is_same_v<T, bool>)
    option = app_->add_flag(flag, value, help);
  else
    option = app_->add_option(flag, value, help);
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>)
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->capture_default_str();
  if constexpr (std::is_same_v<T, std::string>)
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->default_str(one_line(value));
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
}

bool CommandLine::parse(std::vector<std::string> args) {
  const auto help = std::find_if(args.begin(), args.end(),
                                 [](const std::string& a) { return a == "--help" || a == "-h"; });
  if (help != args.end() && !app_->later.empty()) {
    const bool all = help + 1 != args.end() && help[1] == "all";
    if (!all)
      for (CLI::Option* option : app_->later) option->group("");  // CLI11 does not list these
    std::fputs(app_->help().c_str(), stdout);
    if (!all) std::puts("\n--help all lists every flag.");
    return false;
  }
  app_->allow_extras();
  std::reverse(args.begin(), args.end());  // CLI11 takes the arguments in reverse order
  try {
    app_->parse(args);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw Error(line);
  }
  if (const std::vector<std::string> unknown = app_->remaining(true); !unknown.empty()) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app_->get_options()) known.push_back(option->get_name());
    throw_unknown_flag(unknown.front(), known, app_->later.empty() ? "--help" : "--help all");
  }
  return true;
}

void print_text(const std::string& text) { std::fputs(text.c_str(), stdout); }

}  // namespace weft::train
