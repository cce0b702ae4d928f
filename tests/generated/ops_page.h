#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace weft::generated {

using Names = std::set<std::string>;

/// What an op uses in each direction. `backward` holds what only the backward uses.
struct Directions {
  Names forward, backward;
};

/// One row of docs/ops.md.
struct OpRow {
  Directions cpu, cuda;                                ///< kernels
  std::map<std::string, std::filesystem::path> files;  ///< "cpu::softmax_fwd": its file
  Directions calls;                                    ///< other ops
};

/// The rows by op name.
std::map<std::string, OpRow> read_ops_page();
/// The whole text of a file.
std::string read_text(const std::filesystem::path& path);

}  // namespace weft::generated
