#pragma once
#include <string>
#include <vector>

namespace weft::train {

/// A flag with its value ("--lr X"), and its description.
struct HelpEntry {
  std::string flag, help;
};
struct HelpGroup {
  std::string name;
  std::vector<HelpEntry> entries;
};

/// The text of --help, in lines of at most 80 columns: the description `what`, examples, flags by
/// group. Groups without entries are omitted.
std::string help_text(const std::string& what, const std::vector<std::string>& examples,
                      const std::vector<HelpGroup>& groups);

}  // namespace weft::train
