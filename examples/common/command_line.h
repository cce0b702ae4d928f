#pragma once
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/examples/common/unknown_flag.h"

namespace weft::train {

/// Fills the variables bound to the app's options. False when --help was asked for and printed.
/// Throws Error (Fault::user) with one line on a flag that is unknown or has a value of another
/// type.
inline bool parse_command_line(CLI::App& app, std::vector<std::string> args) {
  app.allow_extras();
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its end
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& e) {
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw Error(line);
  }
  if (const std::vector<std::string> unknown = app.remaining(true); !unknown.empty()) {
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
    throw_unknown_flag(unknown.front(), known);
  }
  return true;
}

}  // namespace weft::train
