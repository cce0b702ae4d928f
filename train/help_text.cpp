#include "weft/train/help_text.h"

#include <sstream>

namespace weft::train {
namespace {

constexpr std::size_t kColumns = 80, kHelpAt = 30;

// Appends words to `line`, then to lines that begin at column `indent`.
std::string wrapped(std::string line, const std::string& text, std::size_t indent) {
  std::string out, word;
  bool begins = true;
  for (std::istringstream words(text); words >> word; begins = false) {
    if (!begins && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.assign(indent, ' ');
      begins = true;
    }
    line += (begins ? "" : " ") + word;
  }
  return out + line + "\n";
}

std::string entry_text(const HelpEntry& e) {
  std::string line = "  " + e.flag;
  if (line.size() + 2 > kHelpAt)
    return line + "\n" + wrapped(std::string(kHelpAt, ' '), e.help, kHelpAt);
  line.resize(kHelpAt, ' ');
  return wrapped(line, e.help, kHelpAt);
}

}  // namespace

std::string help_text(const std::string& what, const std::vector<std::string>& examples,
                      const std::vector<HelpGroup>& groups) {
  std::string out, paragraph;
  for (std::istringstream lines(what); std::getline(lines, paragraph);)
    out += wrapped("", paragraph, 0);
  if (!examples.empty()) out += "\nExamples\n";
  for (const std::string& e : examples) out += "  " + e + "\n";
  for (const HelpGroup& g : groups) {
    if (g.entries.empty()) continue;
    out += "\n" + g.name + "\n";
    for (const HelpEntry& e : g.entries) out += entry_text(e);
  }
  return out;
}

}  // namespace weft::train
