#include <algorithm>
#include <cctype>
#include <sstream>

#include "weft/train/program_text.h"

namespace weft::train {
namespace {

// A text without meaning to roff: a dot at the start of a line is a command there, and a plain
// minus is a hyphen.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// "Trains a model" of "Trains a model. More."
std::string first_sentence(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.substr(0, std::min(line.find(". "), line.rfind('.')));
}

std::string paragraphs(const std::string& text) {
  std::string out, line;
  for (std::istringstream lines(text); std::getline(lines, line);)
    out += line.empty() ? ".PP\n" : roff(line) + "\n";
  return out;
}

}  // namespace

std::string man_page(const ProgramText& p, const std::string& version) {
  std::string out = ".TH " + upper(p.name) + " 1 \"\" \"Weft " + version + "\"\n.SH NAME\n" +
                    roff(p.name) + " \\- " + roff(first_sentence(p.what)) + "\n.SH SYNOPSIS\n.B " +
                    roff(p.name) + "\n[\\fIflags\\fR]\n.SH DESCRIPTION\n" + paragraphs(p.what) +
                    ".SH OPTIONS\n";
  std::string group;
  for (const FlagText& f : p.flags) {
    if (f.group != group) out += ".SS " + roff(f.group) + "\n";
    group = f.group;
    out += ".TP\n" + (f.letter.empty() ? "" : "\\fB" + roff(f.letter) + "\\fR, ") + "\\fB" +
           roff(f.flag) + "\\fR" + (f.value.empty() ? "" : " \\fI" + roff(f.value) + "\\fR") +
           "\n" + roff(f.help) + "\n";
  }
  if (!p.examples.empty()) out += ".SH EXAMPLES\n.nf\n";
  for (const std::string& e : p.examples) out += roff(e) + "\n";
  if (!p.examples.empty()) out += ".fi\n";
  return out +
         ".SH EXIT STATUS\n"
         ".TP\n0\nsuccess\n"
         ".TP\n1\na file, memory or a lost rank\n"
         ".TP\n2\na wrong flag or input: one line says what to change\n"
         ".TP\n3\na loss that is not finite\n"
         ".TP\n130\ninterrupted, after a checkpoint where one was due\n";
}

}  // namespace weft::train
