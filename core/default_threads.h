#pragma once
#include <cstddef>
#include <string>

namespace weft {

/// Most processors of one machine that Linux can be built for.
inline constexpr std::size_t kMaxProcessors = 8192;

/// Number of processors that this process may use, from its affinity and the quota of its control
/// group; at least 1. `root`: see cgroup_limits().
int allowed_processors(const std::string& root = {});

/// Sets num_threads() for a process that shares its processors with others, unless OMP_NUM_THREADS
/// or set_num_threads() sets it.
void set_default_threads(int n);

}  // namespace weft
