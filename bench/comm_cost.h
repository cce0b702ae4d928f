#pragma once
#include <cstdint>
#include <vector>

#include "weft/distributed/operation.h"

/// What collectives cost on a cluster that is not there.
namespace weft::bench {

/// One way from a device to another.
struct LinkCost {
  double hop_us = 0;       ///< of one message
  double bytes_per_s = 1;  ///< of each device, one way
};

/// Hosts of equal devices; rank r is on host r / devices_per_host.
struct Cluster {
  int devices_per_host = 8;
  double base_us = 6.6;  ///< of every collective
  LinkCost inside, across;
  bool trees = false;  ///< all_reduce takes a tree where that is faster than the ring
};

/// Do these ranks of the world lie on more than one host?
bool crosses_hosts(const Cluster& cluster, const std::vector<int>& ranks);

/// Microseconds of a collective over these ranks of the world; 0 for a single one. `bytes` are
/// those of the whole: of what an all_gather gives, what a reduce_scatter gets, and what a rank
/// hands to any other.
///
/// In a ring every rank passes on an n-th of the bytes in each of n - 1 hops; an all_reduce goes
/// round twice. A group that crosses hosts is as slow as its slowest link, all the way. In an
/// all_to_all a rank sends an n-th of its bytes to each, inside the host and across at the same
/// time. A tree of all_reduce goes up and down its levels with all of the bytes in pieces.
/// Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2"
/// (latency and bandwidth); Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"
/// (rings); Sanders, Speck and Traff 2009, "Two-tree algorithms for full bandwidth broadcast,
/// reduction and scan" (trees).
double collective_us(const Cluster& cluster, distributed::Collective kind, std::int64_t bytes,
                     const std::vector<int>& ranks);

}  // namespace weft::bench
