#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace weft::detail {

/// The limits of this process's control groups; nullopt where they set none.
struct CgroupLimits {
  std::optional<double> processors;    ///< processor seconds per second
  std::optional<std::int64_t> memory;  ///< bytes
};

/// Reads cgroup v1 and v2, each group up to the root of its mount. Tests pass their own tree as
/// `root`, which is put before every path.
CgroupLimits cgroup_limits(const std::string& root = {});

}  // namespace weft::detail
