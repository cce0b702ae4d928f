#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weft::train {

/// The command line without the program's name. "--config FILE" is replaced by flags for the
/// settings of that TOML file, placed before all other arguments so that flags override the file. A
/// list becomes a flag with several values and is omitted if the command line has that flag.
/// Throws Error (Fault::user) if the file is missing or is not a flat TOML table.
std::vector<std::string> expand_config(int argc, char** argv);

/// The value in TOML syntax. Text must be UTF-8.
std::string toml_value(bool v);
std::string toml_value(std::int64_t v);
std::string toml_value(double v);
std::string toml_value(const std::string& v);
std::string toml_value(const std::vector<std::string>& v);

}  // namespace weft::train
