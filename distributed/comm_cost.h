#pragma once
#include <cstdint>
#include <vector>

#include "weft/distributed/operation.h"

/// Cost model of collectives on a cluster.
namespace weft::distributed {

/// One direction of a link between devices.
struct LinkCost {
  double hop_us = 0;       ///< per message
  double bytes_per_s = 1;  ///< per device and direction
};

/// Hosts with equal devices; rank r is on host r / devices_per_host.
struct Cluster {
  int devices_per_host = 8;
  double base_us = 6.6;  ///< fixed cost of every collective
  LinkCost inside, across;
  bool trees = false;  ///< all_reduce uses a tree where that is faster than the ring
};

/// Whether these ranks of the world span more than one host.
bool crosses_hosts(const Cluster& cluster, const std::vector<int>& ranks);

/// Microseconds of a collective over these ranks of the world; 0 for a single rank. `bytes` is the
/// size of the whole: the output of an all_gather, the input of a reduce_scatter, otherwise what
/// one rank contributes.
///
/// In a ring, every rank forwards 1/n of the bytes in each of n - 1 hops; an all_reduce goes round
/// twice. A group that spans hosts runs at the speed of its slowest link throughout. In an
/// all_to_all a rank sends 1/n of its bytes to each other rank, within the host and across hosts at
/// the same time. The tree of an all_reduce sends all of the bytes up and down its levels, in
/// pieces.
/// Source: Hockney 1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2"
/// (latency and bandwidth); Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"
/// (rings); Sanders, Speck and Traff 2009, "Two-tree algorithms for full bandwidth broadcast,
/// reduction and scan" (trees).
double collective_us(const Cluster& cluster, Collective kind, std::int64_t bytes,
                     const std::vector<int>& ranks);

}  // namespace weft::distributed
