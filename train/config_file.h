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
  std::size_t from_file = 0;  ///< the first words
  /// Where the file has each flag: "'run.toml' line 3".
  std::map<std::string, std::string> lines = {};
};

/// What --resume without --config reads: the config.toml of the run, in the folder of --out.
struct ResumeFrom {
  std::string out;              ///< without --out
  const char* whole = nullptr;  ///< a command line with this flag stands for itself
};

/// The command line without the program's name, with "--config FILE" replaced by the settings of
/// that TOML file in front of everything else, as flags of the same names: so a flag wins over the
/// file. A list becomes a flag with several values, and is left out when the command line has it.
/// Throws Error (Fault::user) on a file that is missing or no flat TOML table.
Arguments expand_config(int argc, char** argv, const ResumeFrom& resume = {});

/// The settings of a config.toml, by name, as their text; empty when it cannot be read.
std::map<std::string, std::string> settings_of(const std::string& toml);

/// A value as TOML writes it. Text is UTF-8.
std::string toml_value(bool v);
std::string toml_value(std::int64_t v);
std::string toml_value(double v);
std::string toml_value(const std::string& v);
std::string toml_value(const std::vector<std::string>& v);

}  // namespace weft::train
