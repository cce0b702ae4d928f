#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/train/config_file.h"

namespace weft::train {

/// The flags of a program, parsed by CLI11. Only command_line.cpp includes its header, which takes
/// ten seconds to compile.
class CommandLine {
 public:
  /// `what` describes the program; --help prints it first.
  CommandLine(const std::string& what, const std::string& program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;

  /// Sets the example command lines at the top of --help.
  void examples(std::vector<std::string> lines);

  /// Binds a bool, std::int64_t, double, std::string or std::vector<std::string>. Its current value
  /// is the default that --help shows. A bool flag needs no value. If a flag other than a list is
  /// repeated, the last one wins, so that scripts can append to a base command line. Without
  /// `first` the flag appears only in `--help all`.
  template <class T>
  void add(const std::string& flag, T& value, const char* help, const char* group = nullptr,
           bool first = true);
  /// A flag whose value goes to set(), which may throw; `now` is the default that --help shows.
  void add_word(const std::string& flag, const char* now, const std::string& help,
                const char* group, bool first, const std::function<void(const std::string&)>& set);

  /// The words that a flag takes, for completion; add_word() checks them.
  void words(const std::string& flag, std::vector<std::string> words);

  /// A flag that --help lists under `group`; parse() rejects it with an Error that says `why`.
  void refuse(const char* flag, const char* help, const std::string& why, const char* group);

  /// Fills the bound variables. Returns false if --help, --version, --completion or --man was
  /// requested and printed.
  /// Throws Error (Fault::user) with one line on an unknown flag or a value of the wrong type.
  bool parse(Arguments args);
  /// The same error. If it begins with a flag that only the config file sets, the result also names
  /// the line of the file.
  Error located(const Error& e) const;

 private:
  struct App;
  std::unique_ptr<App> app_;
};

/// Prints a text unchanged to standard output.
void print_text(const std::string& text);

}  // namespace weft::train
