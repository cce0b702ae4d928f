#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/json.h"

namespace weft::io {

/// Appends to a file with one JSON object per line. Each line is written at once, so that a reader
/// may follow the file and a killed run loses nothing that was written.
class MetricsWriter {
 public:
  explicit MetricsWriter(std::string path) : path_(std::move(path)) {}
  /// Members keep their order, doubles their full precision; a non-finite double becomes null.
  /// Throws Error when the file cannot be written.
  void write(const Json& object) const;
  /// Makes the lines written so far survive a power failure. A missing file is fine.
  void sync() const;

 private:
  std::string path_;
};

/// Reads one object per line. Skips blank lines, and a last line without newline, which a killed
/// writer leaves.
/// Throws Error naming file and line of anything else that is not a JSON object.
std::vector<Json> read_metrics(const std::string& path);
/// The same, skipping lines that are not JSON objects.
std::vector<Json> read_whole_metrics(const std::string& path);

/// Removes the lines after `step` and an incomplete last line, so that a resumed run continues
/// there. Also removes lines that are not JSON objects: the original file is then kept as
/// PATH.damaged, and log_line() reports it. A missing file is fine.
void truncate_to_step(const std::string& path, std::int64_t step);

}  // namespace weft::io
