#include "weft/train/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

constexpr std::int64_t kMostBytes = 1 << 20;

std::string text_of(const toml::node& value, const std::string& key) {
  if (const auto* v = value.as_string()) return v->get();
  if (const auto* v = value.as_integer()) return toml_value(v->get());
  if (const auto* v = value.as_floating_point()) return toml_value(v->get());
  if (const auto* v = value.as_boolean()) return toml_value(v->get());
  throw Error(message("--config: '{}' must be text, a number, a bool or a list of them", key));
}

std::vector<std::string> read_config(const std::string& path,
                                     const std::vector<std::string>& command_line) {
  const io::PathKind kind = io::path_kind(path);
  check(kind != io::PathKind::none, "--config: no file '{}'", path);
  check(kind != io::PathKind::folder, "--config: '{}' is a folder", path);
  check(kind == io::PathKind::file || kind == io::PathKind::pipe,
        "--config: '{}' must be a file or a pipe, got a device", path);
  check(kind == io::PathKind::pipe || io::file_size(path) <= kMostBytes,
        "--config: '{}' must have at most {} bytes, got {}", path, kMostBytes, io::file_size(path));
  const std::string content =
      kind == io::PathKind::pipe ? io::read_pipe(path, {.bytes = kMostBytes}) : io::read_file(path);
  toml::table table;
  try {
    table = toml::parse(content);
  } catch (const toml::parse_error& e) {
    throw Error(message("--config: '{}' line {}: {}", path, e.source().begin.line,
                        std::string(e.description())));
  }
  std::vector<std::string> flags;
  for (const auto& [key, value] : table) {
    const std::string name(key.str()), flag = "--" + name;
    check(name != "config", "--config: '{}' cannot name another config file", path);
    if (const auto* list = value.as_array()) {
      const auto given = [&](const std::string& a) {
        return a == flag || a.rfind(flag + "=", 0) == 0;
      };
      if (list->empty() || std::any_of(command_line.begin(), command_line.end(), given)) continue;
      flags.push_back(flag);
      for (const toml::node& item : *list) flags.push_back(text_of(item, name));
    } else {
      // CLI11 reads "--name=" as a flag whose value is the next argument.
      const std::string text = text_of(value, name);
      flags.push_back(text.empty() ? flag : flag + "=" + text);
      if (text.empty()) flags.push_back(text);
    }
  }
  return flags;
}

}  // namespace

std::vector<std::string> expand_config(int argc, char** argv) {
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
  if (path.empty()) return rest;
  std::vector<std::string> all = read_config(path, rest);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
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
