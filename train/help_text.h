#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// A flag with its value ("--lr X"), and what it does.
struct HelpEntry {
  std::string flag, help;
};
struct HelpGroup {
  std::string name;
  std::vector<HelpEntry> entries;
};

/// The text of --help, in lines of at most 80 columns: what the program does, examples, flags by
/// group. Groups without entries are left out.
std::string help_text(const std::string& what, const std::vector<std::string>& examples,
                      const std::vector<HelpGroup>& groups);

}  // namespace weft::train
