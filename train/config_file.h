#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weft::train {

/// The command line without the program's name, with "--config FILE" replaced by the settings of
/// that TOML file in front of everything else, as flags of the same names: so a flag wins over the
/// file. A list becomes a flag with several values, and is left out when the command line has it.
/// Throws Error (Fault::user) on a file that is missing or no flat TOML table.
std::vector<std::string> expand_config(int argc, char** argv);

/// A value as TOML writes it. Text is UTF-8.
std::string toml_value(bool v);
std::string toml_value(std::int64_t v);
std::string toml_value(double v);
std::string toml_value(const std::string& v);
std::string toml_value(const std::vector<std::string>& v);

}  // namespace weft::train
