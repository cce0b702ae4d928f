#include "weft/distributed/processor_share.h"

#include <sched.h>

#include <algorithm>

namespace weft::distributed {

Processors own_processors() {
  Processors own;
  cpu_set_t allowed[kMaxProcessors / CPU_SETSIZE];
  if (sched_getaffinity(0, sizeof allowed, allowed) != 0) return own;
  for (std::size_t p = 0; p < own.size(); ++p) own[p] = CPU_ISSET_S(p, sizeof allowed, allowed);
  return own;
}

int processor_share(std::span<const Processors> allowed, std::size_t own) {
  double share = 0;
  for (std::size_t p = 0; p < allowed[own].size(); ++p) {
    if (!allowed[own][p]) continue;
    const auto users = std::count_if(allowed.begin(), allowed.end(),
                                     [&](const Processors& other) { return other[p]; });
    share += 1.0 / static_cast<double>(users);
  }
  return std::max(1, static_cast<int>(share + 1e-6));  // 6 thirds make 2
}

}  // namespace weft::distributed
