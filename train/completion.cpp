#include <algorithm>

#include "weft/core/error.h"
#include "weft/train/program_text.h"

namespace weft::train {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : " ") + w;
  return out;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// A text between single quotes of a shell.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

bool is_path(const FlagText& f) { return f.value.starts_with("TEXT") && f.words.empty(); }

// The name of a function of bash.
std::string function_name(const std::string& program) { return "_" + replaced(program, "-", "_"); }

std::string bash(const ProgramText& p) {
  const std::string name = function_name(p.name);
  std::vector<std::string> all, paths, numbers;
  std::string cases;
  for (const FlagText& f : p.flags) {
    for (const std::string& flag : f.forms()) {
      all.push_back(flag);
      if (!f.words.empty())
        cases += "    " + flag + ") choices=" + quoted(joined(f.words)) + " ;;\n";
      else if (is_path(f))
        paths.push_back(flag);
      else if (!f.value.empty())
        numbers.push_back(flag);
    }
  }
  const auto any_of = [](const std::vector<std::string>& flags, const char* action) {
    return flags.empty() ? ""
                         : "    " + replaced(joined(flags), " ", " | ") + ") " + action + " ;;\n";
  };
  // '=' is a word of its own in bash: --arch=gp is three.
  return "# Completion of " + p.name + " in bash, written by " + p.name + " --completion bash.\n" +
         name + "() {\n" +
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} choices=\n"
         "  if [[ $word == '=' ]]; then word=\n"
         "  elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "  fi\n"
         "  COMPREPLY=()\n"
         "  case $before in\n" +
         cases + any_of(paths, "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return") +
         any_of(numbers, "return") + "    *)\n      if [[ $word != -* ]]; then\n" +
         "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n        return\n      fi\n"
         "      choices=" +
         quoted(joined(all)) +
         " ;;\n  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$word\")\n"
         "}\ncomplete -o filenames -F " +
         name + " " + p.name + "\n";
}

std::string zsh(const ProgramText& p) {
  std::string out = "#compdef " + p.name + "\n# Completion of " + p.name + " in zsh, written by " +
                    p.name + " --completion zsh.\n_arguments";
  for (const FlagText& f : p.flags) {
    std::string help = f.help;
    for (const char* const special : {"\\", "[", "]", ":"})
      help = replaced(help, special, std::string("\\") + special);
    std::string value;
    if (!f.words.empty())
      value = ":word:(" + joined(f.words) + ")";
    else if (!f.value.empty())
      value = is_path(f) ? ":path:_files" : ":number: ";
    for (const std::string& flag : f.forms()) {
      const bool joins = !f.value.empty() && flag.starts_with("--");
      out += " \\\n  " + quoted("*" + flag + (joins ? "=" : "") + "[" + help + "]" + value);
    }
  }
  return out + " \\\n  '*:path:_files'\n";
}

std::string fish(const ProgramText& p) {
  std::string out =
      "# Completion of " + p.name + " in fish, written by " + p.name + " --completion fish.\n";
  for (const FlagText& f : p.flags) {
    out += "complete -c " + p.name + (f.letter.empty() ? "" : " -s " + f.letter.substr(1)) +
           " -l " + f.flag.substr(2);
    if (!f.words.empty())
      out += " -x -a '" + joined(f.words) + "'";
    else if (!f.value.empty())
      out += is_path(f) ? " -r -F" : " -x";
    out += " -d '" + replaced(replaced(f.help, "\\", "\\\\"), "'", "\\'") + "'\n";
  }
  return out;
}

}  // namespace

std::string completion_text(const ProgramText& program, const std::string& shell) {
  if (shell == "bash") return bash(program);
  if (shell == "zsh") return zsh(program);
  check(shell == "fish", "--completion: must be one of bash, zsh, fish, got '{}'", shell);
  return fish(program);
}

}  // namespace weft::train
