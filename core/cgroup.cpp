#include "weft/core/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace weft::detail {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// Number, controllers and name of a group; the name may contain colons.
std::vector<std::string> group_of(const std::string& line) {
  const std::size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == line.npos || second == line.npos) return {};
  return {line.substr(0, first), line.substr(first + 1, second - first - 1),
          line.substr(second + 1)};
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// The cgroup of one controller: the folders from the process's own group up to the mount.
std::vector<fs::path> folders(const std::string& root, const fs::path& mount,
                              const std::string& mounted, const std::string& group) {
  // A container may see the host's name of the group while only its own group is mounted.
  std::string below;
  if (mounted == "/")
    below = group;
  else if (group.starts_with(mounted + '/'))
    below = group.substr(mounted.size());
  const fs::path top(root + mount.string());
  fs::path folder(root + mount.string() + (below == "/" ? "" : below));
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) folder = top;
  std::vector<fs::path> out{folder};
  while (folder != top && folder.has_relative_path()) out.push_back(folder = folder.parent_path());
  return out;
}

/// The numbers in a file, up to the first word that is not a number ("max") or the end.
std::vector<double> numbers(const fs::path& file) {
  std::ifstream in(file);
  std::vector<double> out;
  for (double x = 0; in >> x;) out.push_back(x);
  return out;
}

template <class T>
void limit(std::optional<T>& value, double to) {
  if (to > 0 && to < 9e18) value = std::min(value.value_or(static_cast<T>(to)), static_cast<T>(to));
}

void limit_processors(CgroupLimits& limits, const fs::path& folder) {
  std::vector<double> of = numbers(folder / "cpu.max");  // cgroup v2: quota and period
  if (of.empty()) {
    of = numbers(folder / "cpu.cfs_quota_us");  // -1: no limit
    for (const double period : numbers(folder / "cpu.cfs_period_us")) of.push_back(period);
  }
  if (of.size() == 2 && of[1] > 0) limit(limits.processors, of[0] / of[1]);
}

void limit_memory(CgroupLimits& limits, const fs::path& folder) {
  for (const char* name : {"memory.max", "memory.limit_in_bytes"})
    for (const double bytes : numbers(folder / name)) limit(limits.memory, bytes);
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  // "4:memory:/name" is a v1 hierarchy, "0::/name" the v2 hierarchy.
  std::vector<std::vector<std::string>> groups;
  std::ifstream own(root + "/proc/self/cgroup");
  for (std::string line; std::getline(own, line);)
    if (auto parts = group_of(line); !parts.empty()) groups.push_back(std::move(parts));
  // "36 25 0:31 /mounted /where options - cgroup source memory"
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash =
        static_cast<std::size_t>(std::find(words.begin(), words.end(), "-") - words.begin());
    if (words.size() < 6 || dash + 3 >= words.size()) continue;
    const bool second = words[dash + 1] == "cgroup2";
    if (!second && words[dash + 1] != "cgroup") continue;
    const std::vector<std::string> controllers = split(words[dash + 3], ',');
    for (const auto& group : groups) {
      const std::vector<std::string> of = split(group[1], ',');
      for (const char* controller : {"cpu", "memory"}) {
        if (second ? !group[1].empty()
                   : !(contains(of, controller) && contains(controllers, controller)))
          continue;
        const bool cpu = controller == std::string("cpu");
        for (const fs::path& folder : folders(root, words[4], words[3], group[2]))
          cpu ? limit_processors(limits, folder) : limit_memory(limits, folder);
      }
    }
  }
  return limits;
}

}  // namespace weft::detail
