#include "weft/tests/generated/ops_page.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "weft/core/error.h"

namespace weft::generated {
namespace {

// Start of the second direction in a cell such as "`a`, `b`; backward: `c`".
constexpr const char* kBackward = "backward:";

Directions ops_in(const std::string& cell) {
  Directions found;
  const std::size_t backward = cell.find(kBackward);
  for (std::size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at)) {
    const std::size_t end = cell.find('`', at + 1);
    (at < backward ? found.forward : found.backward).insert(cell.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return found;
}

// "[a](file), [b](file); backward: [c](file)"; the files go into `row`.
Directions kernels_in(const std::string& cell, const std::string& space, OpRow& row) {
  Directions found;
  const std::size_t backward = cell.find(kBackward);
  for (std::size_t at = cell.find('['); at != std::string::npos; at = cell.find('[', at)) {
    const std::size_t middle = cell.find("](", at), end = cell.find(')', middle);
    const std::string name = cell.substr(at + 1, middle - at - 1);
    (at < backward ? found.forward : found.backward).insert(name);
    row.files[space + name] = std::filesystem::path(WEFT_OPS_PAGE).parent_path() /
                              cell.substr(middle + 2, end - middle - 2);
    at = end;
  }
  return found;
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  check(file.good(), "ops page: must be able to read {}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, OpRow> read_ops_page() {
  std::map<std::string, OpRow> found;
  std::istringstream lines(read_text(WEFT_OPS_PAGE));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| [`")) continue;
    std::vector<std::string> cells;
    for (std::size_t at = 2; at < line.size();) {
      const std::size_t end = line.find(" |", at);
      cells.push_back(line.substr(at, end - at));
      at = end + 3;
    }
    check(cells.size() == 7, "ops page: a row must have 7 cells, got {}", cells.size());
    OpRow& row = found[*ops_in(cells[0]).forward.begin()];
    row.cpu = kernels_in(cells[3], "cpu::", row);
    row.cuda = kernels_in(cells[4], "cuda::", row);
    row.calls = ops_in(cells[5]);
  }
  return found;
}

}  // namespace weft::generated
