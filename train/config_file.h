#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::train {

/// A command line, which may begin with the settings of a file.
struct Arguments {
  Arguments(std::vector<std::string> all) : words(std::move(all)) {}

  std::vector<std::string> words;
  std::size_t from_file = 0;  ///< number of leading words that come from the file
  bool resumes = false;  ///< true if the file is the config.toml of the run that --resume continues
  /// The place of each flag in the file: "'run.toml' line 3".
  std::map<std::string, std::string> lines = {};
  std::map<std::string, std::size_t> lists = {};  ///< how many values the file's lists have
};

/// Names the file that --resume without --config reads: config.toml in the folder of --out.
struct ResumeFrom {
  std::string out;              ///< the folder if there is no --out
  const char* whole = nullptr;  ///< if the command line has this flag, no file is read
};

/// Whether the last occurrence of a flag that takes no value turns it on: "--resume" or
/// "--resume=true", not "--resume=false". Throws Error (Fault::user) on another value.
bool switched_on(const std::vector<std::string>& words, const std::string& flag);

/// The command line without the program's name. "--config FILE" is replaced by flags for the
/// settings of that TOML file, placed before all other arguments so that flags override the file. A
/// list becomes a flag with several values and is omitted if the command line has that flag.
/// Throws Error (Fault::user) if the file is missing or is not a flat TOML table.
Arguments expand_config(int argc, char** argv, const ResumeFrom& resume = {});

/// The settings of a config.toml: their values as text, by name; empty if it cannot be read.
std::map<std::string, std::string> settings_of(const std::string& toml);

/// The value in TOML syntax. Text must be UTF-8.
std::string toml_value(bool v);
std::string toml_value(std::int64_t v);
std::string toml_value(double v);
std::string toml_value(const std::string& v);
std::string toml_value(const std::vector<std::string>& v);

}  // namespace weft::train
