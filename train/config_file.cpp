#include "weft/train/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/train/unknown_flag.h"

namespace weft::train {
namespace {

constexpr std::int64_t kMostBytes = 16 << 20;  // a run may name 100,000 files

std::string text_of(const toml::node& value, const std::string& key, const std::string& line) {
  if (const auto* v = value.as_string()) return v->get();
  if (const auto* v = value.as_integer()) return toml_value(v->get());
  if (const auto* v = value.as_floating_point()) return toml_value(v->get());
  if (const auto* v = value.as_boolean()) return toml_value(v->get());
  throw Error(
      message("--config: {}: '{}' must be text, a number, a bool or a list of them", line, key));
}

// toml++ reports a line break before the closing quote as a control character.
std::string readable(std::string problem) {
  if (problem.find("control character") != std::string::npos)
    problem += "; is a quote missing before the end of the line?";
  return problem;
}

toml::table parse_file(const std::string& path) {
  const io::PathKind kind = io::path_kind(path);
  check(kind != io::PathKind::none, "--config: no file '{}'", path);
  check(kind != io::PathKind::folder, "--config: '{}' is a folder", path);
  check(kind == io::PathKind::file || kind == io::PathKind::pipe,
        "--config: '{}' must be a file or a pipe, got a device", path);
  check(kind == io::PathKind::pipe || io::file_size(path) <= kMostBytes,
        "--config: '{}' must have at most {} bytes, got {}", path, kMostBytes, io::file_size(path));
  const std::string content =
      kind == io::PathKind::pipe ? io::read_pipe(path, {.bytes = kMostBytes}) : io::read_file(path);
  try {
    return toml::parse(content);
  } catch (const toml::parse_error& e) {
    throw Error(message("--config: '{}' line {}: {}", path, e.source().begin.line,
                        readable(std::string(e.description()))));
  }
}

Arguments read_config(const std::string& path, const std::vector<std::string>& command_line) {
  std::vector<std::string> flags;
  std::map<std::string, std::string> lines;
  std::map<std::string, std::size_t> lists;
  for (const auto& [key, value] : parse_file(path)) {
    const std::string name(key.str()),
        flag = "--" + name, line = message("'{}' line {}", path, value.source().begin.line);
    check(name != "config", "--config: {}: '{}' cannot name another config file", line, path);
    for (const char* const asks : {"help", "version", "completion", "man"})
      check(name != asks, "--config: {}: '{}' is no setting", line, name);
    check(!value.is_table(), "--config: {}: settings stand at the top, without a table '{}'", line,
          name);
    // Either side may use another trainer's name for the flag.
    const auto names_it = [&](const std::string& a) {
      const std::string word = a.substr(0, a.find('='));
      return our_name(word, {flag}) == flag || our_name(flag, {word}) == word;
    };
    // Of a flag with several values the command line's would otherwise be added to the file's.
    const bool given = (value.is_array() || value.is_string()) &&
                       std::any_of(command_line.begin(), command_line.end(), names_it);
    const auto add = [&](const toml::node& item) {
      const std::string text = text_of(item, name, line);
      if (!given) flags.push_back(flag + "=" + text);
    };
    const auto* const list = value.as_array();
    if (list || !given) lines[flag] = line;
    if (list) {
      lists[flag] = list->size();
      for (const toml::node& item : *list) add(item);
    } else {
      add(value);
    }
  }
  Arguments out(std::move(flags));
  out.from_file = out.words.size();
  out.lines = std::move(lines);
  out.lists = std::move(lists);
  return out;
}

// The value of the flag's last occurrence, or `otherwise`.
std::string last_value(const std::vector<std::string>& args, const std::string& flag,
                       std::string otherwise) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string word = our_name(args[i], {flag});
    if (word == flag && i + 1 < args.size()) otherwise = args[i + 1];
    if (word.rfind(flag + "=", 0) == 0) otherwise = word.substr(flag.size() + 1);
  }
  return otherwise;
}

// The path of the config.toml that a resumed run reads; empty: none.
std::string config_to_resume(const std::vector<std::string>& args, const ResumeFrom& resume) {
  const auto has = [&](const std::string& flag) {
    return std::any_of(args.begin(), args.end(), [&](const std::string& a) {
      const std::string word = our_name(a, {flag});
      return word == flag || word.rfind(flag + "=", 0) == 0;
    });
  };
  const std::string out = last_value(args, "--out", resume.out);
  if (!switched_on(args, "--resume") || out.empty() || (resume.whole && has(resume.whole)))
    return {};
  const std::string path = out + "/config.toml";
  return io::path_kind(path) == io::PathKind::file ? path : "";
}

}  // namespace

bool switched_on(const std::vector<std::string>& words, const std::string& flag) {
  bool on = false;
  for (const std::string& word : words) {
    if (word == flag) on = true;
    if (!word.starts_with(flag + "=")) continue;
    const std::string value = word.substr(flag.size() + 1);
    if (value.empty()) continue;  // CommandLine refuses it
    check(value == "true" || value == "false", "{}: must be true or false, got '{}'", flag, value);
    on = value == "true";
  }
  return on;
}

Arguments expand_config(int argc, char** argv, const ResumeFrom& resume) {
  std::vector<std::string> rest;
  std::string path;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--config") {
      check(i + 1 < argc, "--config: name a file");
      path = argv[++i];
    } else if (arg.rfind("--config=", 0) == 0) {
      path = arg.substr(9);
    } else {
      rest.push_back(arg);
    }
  }
  const bool resumes = path.empty();
  if (resumes) path = config_to_resume(rest, resume);
  if (path.empty()) return rest;
  Arguments all = read_config(path, rest);
  all.resumes = resumes;
  all.words.insert(all.words.end(), rest.begin(), rest.end());
  return all;
}

std::map<std::string, std::string> settings_of(const std::string& toml) {
  std::map<std::string, std::string> out;
  try {
    for (const auto& [key, value] : toml::parse(toml)) {
      std::string text;
      if (const auto* list = value.as_array())
        for (const toml::node& item : *list)
          text += (text.empty() ? "" : " ") + text_of(item, "", "");
      else
        text = text_of(value, "", "");
      out[std::string(key.str())] = text;
    }
  } catch (const toml::parse_error&) {
    return {};
  } catch (const Error&) {
    return {};
  }
  return out;
}

std::string toml_value(bool v) { return v ? "true" : "false"; }
std::string toml_value(std::int64_t v) { return std::to_string(v); }
std::string toml_value(double v) { return message("{}", v); }  // the shortest text that round-trips
std::string toml_value(const std::string& v) {
  std::string out = "\"";
  for (const char c : v) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04X", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}
std::string toml_value(const std::vector<std::string>& v) {
  std::string out = "[";
  for (const std::string& item : v) out += (out.size() > 1 ? ", " : "") + toml_value(item);
  return out + "]";
}

}  // namespace weft::train
