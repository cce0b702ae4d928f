#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace weft::generated {

using Names = std::set<std::string>;

/// What an op uses in each direction. `backward` is what only that one uses.
struct Directions {
  Names forward, backward;
};

/// One row of docs/ops.md.
struct OpRow {
  Directions cpu, cuda;                                ///< kernels
  std::map<std::string, std::filesystem::path> files;  ///< "cpu::softmax_fwd": where it is defined
  Directions calls;                                    ///< other ops
};

/// The rows by the names of their ops.
std::map<std::string, OpRow> read_ops_page();
/// All of a file.
std::string read_text(const std::filesystem::path& path);

}  // namespace weft::generated
