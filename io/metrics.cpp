#include "weft/io/metrics.h"

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::io {
namespace {

/// Calls f(line, object, fault) for every complete line that is not blank. `fault` is the reason
/// why the line is not an object, or "".
template <class F>
void for_each_line(std::string_view text, const std::string& path, F&& f) {
  std::int64_t number = 0;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = text.substr(at, end - at);
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = message("metrics: '{}' line {}", path, number);
    Json object;
    std::string fault;
    try {
      object = Json::parse(line, place);
      if (!object.is_object()) fault = place + ": expected a JSON object";
    } catch (const Error& e) {
      fault = e.what();
    }
    f(line, std::move(object), fault);
  }
}

/// "x.damaged", or "x.damaged.2" and so on when such a file exists.
std::string unused_name(const std::string& path) {
  std::string name = path + ".damaged";
  for (std::int64_t i = 2; exists(name); ++i) name = message("{}.damaged.{}", path, i);
  return name;
}

}  // namespace

void MetricsWriter::write(const Json& object) const { append_file(path_, object.dump() + "\n"); }

void MetricsWriter::sync() const {
  if (exists(path_)) sync_file(path_);
}

std::vector<Json> read_metrics(const std::string& path) {
  std::vector<Json> lines;
  for_each_line(read_file(path), path,
                [&](std::string_view, Json object, const std::string& fault) {
                  check_system(fault.empty(), "{}", fault);
                  lines.push_back(std::move(object));
                });
  return lines;
}

std::vector<Json> read_whole_metrics(const std::string& path) {
  std::vector<Json> lines;
  for_each_line(read_file(path), path,
                [&](std::string_view, Json object, const std::string& fault) {
                  if (fault.empty()) lines.push_back(std::move(object));
                });
  return lines;
}

void truncate_to_step(const std::string& path, std::int64_t step) {
  if (!exists(path)) return;
  const std::string text = read_file(path);
  std::string kept, first_fault;
  std::int64_t damaged = 0;
  for_each_line(text, path,
                [&](std::string_view line, const Json& object, const std::string& fault) {
                  if (!fault.empty()) {
                    if (damaged++ == 0) first_fault = fault;
                    return;
                  }
                  const Json* at = object.find("step");
                  if (at && at->is_int() && at->as_int() > step) return;
                  kept += line;
                  kept += '\n';
                });
  if (damaged > 0) {
    const std::string beside = unused_name(path);
    write_file(beside, text);
    log_line(message("{}; {} damaged {} dropped, the original file is '{}'", first_fault, damaged,
                     damaged == 1 ? "line" : "lines", beside));
  }
  write_file(path, kept);
}

}  // namespace weft::io
