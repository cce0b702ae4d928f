#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// A flag of a program, for completion files and manual pages.
struct FlagText {
  std::string flag;   ///< "--lr"
  std::string value;  ///< what --help calls its value: "N", "X", "TEXT", "TEXT..."; empty: none
  std::string help;   ///< with its default
  std::string group;
  std::vector<std::string> words = {};  ///< the values that it takes; empty: any
  std::string letter = {};              ///< its short form "-n"; empty: none

  /// The flag, and its short form.
  std::vector<std::string> forms() const {
    return letter.empty() ? std::vector{flag} : std::vector{letter, flag};
  }
};

/// What the command line of a program tells of it.
struct ProgramText {
  std::string name, what;
  std::vector<std::string> examples;
  std::vector<FlagText> flags;  ///< in the order of --help, without refused ones
};

/// The text of a file that completes flags, their words and paths in a shell.
/// Throws Error unless `shell` is "bash", "zsh" or "fish".
std::string completion_text(const ProgramText& program, const std::string& shell);

/// The source of a manual page, for section 1.
std::string man_page(const ProgramText& program, const std::string& version);

}  // namespace weft::train
