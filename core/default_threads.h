#pragma once
#include <cstddef>
#include <string>

namespace weft {

/// Of one machine: what Linux can be built for.
inline constexpr std::size_t kMostProcessors = 8192;

/// The processors that this process may run on, by its affinity and the quota of its control group,
/// at least 1. `root`: see cgroup_limits().
int allowed_processors(const std::string& root = {});

/// num_threads() of a process that shares its processors with others: n, where neither
/// OMP_NUM_THREADS nor set_num_threads() says anything.
void set_default_threads(int n);

}  // namespace weft
