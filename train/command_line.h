#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/train/config_file.h"

namespace weft::train {

/// The flags of a program, read by CLI11, whose header only command_line.cpp includes: it takes ten
/// seconds to compile.
class CommandLine {
 public:
  /// `what` the program does comes first in --help.
  CommandLine(const std::string& what, const std::string& program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;

  /// Command lines that --help shows first.
  void examples(std::vector<std::string> lines);

  /// Binds a bool, std::int64_t, double, std::string or std::vector<std::string>. What it holds now
  /// is the default that --help shows. A flag of a bool needs no value. Of any flag but a list's
  /// the last one wins, so that a script can append to a base command line. Without `first` the
  /// flag is in `--help all` only.
  template <class T>
  void add(const std::string& flag, T& value, const char* help, const char* group = nullptr,
           bool first = true);
  /// A flag whose word goes to set(), which may throw; `now` is the default that --help shows.
  void add_word(const std::string& flag, const char* now, const std::string& help,
                const char* group, bool first, const std::function<void(const std::string&)>& set);

  /// A flag that --help lists under `group` and parse() refuses with an Error that says `why`.
  void refuse(const char* flag, const char* help, const std::string& why, const char* group);

  /// Fills the bound variables. False when --help or --version was asked for and printed.
  /// Throws Error (Fault::user) with one line on a flag that is unknown or has a value of another
  /// type.
  bool parse(Arguments args);
  /// The same error; where it begins with a flag that only the config file has, it also names the
  /// line of the file.
  Error located(const Error& e) const;

 private:
  struct App;
  std::unique_ptr<App> app_;
};

/// Prints a text to standard output as it is.
void print_text(const std::string& text);

}  // namespace weft::train
