#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace weft::detail {

/// What the control groups of this process let it use; nothing where they set no limit.
struct CgroupLimits {
  std::optional<double> processors;    ///< processor seconds in a second
  std::optional<std::int64_t> memory;  ///< bytes
};

/// Reads versions 1 and 2, each group up to the root of its mount. `root` stands in front of every
/// path: a test's own tree.
CgroupLimits cgroup_limits(const std::string& root = {});

}  // namespace weft::detail
