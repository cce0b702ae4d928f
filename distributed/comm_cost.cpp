#include "weft/distributed/comm_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

// A rank sends to every other one: over the inner link to ranks on its host, over the outer link to
// the rest. The host with the fewest members of the group has most to send.
double all_to_all_us(const Cluster& c, double bytes, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  for (const int r : ranks) hosts.push_back(r / c.devices_per_host);
  std::sort(hosts.begin(), hosts.end());
  auto fewest = static_cast<std::ptrdiff_t>(ranks.size());
  for (auto host = hosts.begin(); host != hosts.end();) {
    const auto next = std::upper_bound(host, hosts.end(), *host);
    fewest = std::min(fewest, next - host);
    host = next;
  }
  const auto n = static_cast<double>(ranks.size()), near = static_cast<double>(fewest) - 1;
  const double far = n - 1 - near;
  const double inside = near * bytes / n / c.inside.bytes_per_s;
  const double across = far * bytes / n / c.across.bytes_per_s;
  return c.base_us + near * c.inside.hop_us + far * c.across.hop_us +
         1e6 * std::max(inside, across);
}

}  // namespace

bool crosses_hosts(const Cluster& cluster, const std::vector<int>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int r) {
    return r / cluster.devices_per_host != ranks[0] / cluster.devices_per_host;
  });
}

double collective_us(const Cluster& c, Collective kind, std::int64_t bytes,
                     const std::vector<int>& ranks) {
  check(c.devices_per_host >= 1 && c.inside.bytes_per_s > 0 && c.across.bytes_per_s > 0,
        "collective_us: a cluster needs devices and bandwidths above 0, got {} per host, {} and {} "
        "bytes/s",
        c.devices_per_host, c.inside.bytes_per_s, c.across.bytes_per_s);
  if (ranks.size() <= 1) return 0;
  const LinkCost& link = crosses_hosts(c, ranks) ? c.across : c.inside;
  const auto n = static_cast<double>(ranks.size());
  const auto levels = static_cast<double>(std::bit_width(ranks.size() - 1));
  const double once_us = 1e6 * static_cast<double>(bytes) / link.bytes_per_s;
  const double part_us = once_us * (n - 1) / n;
  switch (kind) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return c.base_us + (n - 1) * link.hop_us + part_us;
    case Collective::all_reduce: {
      const double ring = 2 * ((n - 1) * link.hop_us + part_us);
      const double tree = 2 * (levels * link.hop_us + once_us);
      return c.base_us + (c.trees ? std::min(ring, tree) : ring);
    }
    case Collective::all_to_all:
      return all_to_all_us(c, static_cast<double>(bytes), ranks);
    case Collective::broadcast:  // in pieces, pipelined
      return c.base_us + (n - 1) * link.hop_us + once_us;
    case Collective::exchange:
    case Collective::send:
    case Collective::receive:
    case Collective::batch:
      return c.base_us + link.hop_us + once_us;
    case Collective::barrier:
      return c.base_us + levels * link.hop_us;
  }
  return 0;
}

}  // namespace weft::distributed
