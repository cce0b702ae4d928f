#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/json.h"

namespace weft::io {

/// Appends to a file of one JSON object a line. Every line reaches the file whole at once, so a
/// reader may follow it and a killed run loses nothing that was written.
class MetricsWriter {
 public:
  explicit MetricsWriter(std::string path) : path_(std::move(path)) {}
  /// Members keep their order, doubles their full precision; a non-finite double becomes null.
  /// Throws Error when the file cannot be written.
  void write(const Json& object) const;
  /// From here on a power cut loses none of the lines written so far. No file is fine.
  void sync() const;

 private:
  std::string path_;
};

/// One object a line; blank lines, and a last line without its newline, which is what a killed
/// writer left, are skipped.
/// Throws Error naming file and line of anything else that is no JSON object.
std::vector<Json> read_metrics(const std::string& path);
/// The same without the lines that are no JSON objects.
std::vector<Json> read_whole_metrics(const std::string& path);

/// Drops the lines after `step` and a torn last line, so that a resumed run goes on from there.
/// Where others are no JSON objects these go as well: the file as it was stays beside it, as
/// PATH.damaged, and log_line() says so. A file that does not exist stays so.
void truncate_to_step(const std::string& path, std::int64_t step);

}  // namespace weft::io
