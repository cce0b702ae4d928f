#include "weft/io/metrics.h"

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::io {
namespace {

/// Calls f(line, object) for every whole line.
template <class F>
void for_each_line(const std::string& path, F&& f) {
  const std::string text = read_file(path);
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    Json object = Json::parse(line, message("metrics: '{}' line {}", path, ++number));
    check_system(object.is_object(), "metrics: '{}' line {}: expected a JSON object", path, number);
    f(line, std::move(object));
    at = end + 1;
  }
}

}  // namespace

void MetricsWriter::write(const Json& object) const { append_file(path_, object.dump() + "\n"); }

std::vector<Json> read_metrics(const std::string& path) {
  std::vector<Json> lines;
  for_each_line(path, [&](std::string_view, Json object) { lines.push_back(std::move(object)); });
  return lines;
}

void truncate_to_step(const std::string& path, std::int64_t step) {
  if (!exists(path)) return;
  std::string kept;
  for_each_line(path, [&](std::string_view line, const Json& object) {
    const Json* at = object.find("step");
    if (at && at->is_int() && at->as_int() > step) return;
    kept += line;
    kept += '\n';
  });
  write_file(path, kept);
}

}  // namespace weft::io
