#pragma once
#include <string>
#include <vector>

#include "weft/distributed/socket.h"

namespace weft::distributed {

/// A process's place in a job that TCP connects.
struct TcpPlace {
  int rank = 0, size = 1;
  Endpoint master{"127.0.0.1", 29500};  ///< where rank 0 listens
  /// What all ranks know and nobody else, at most 127 characters. Needed unless rank 0 listens at a
  /// loopback address.
  std::string token = {};
};

/// The place that RANK, WORLD_SIZE, MASTER_ADDR (127.0.0.1), MASTER_PORT (29500) and WEFT_TOKEN
/// (none) give. Throws Error if RANK or WORLD_SIZE is missing, and on values out of range.
TcpPlace tcp_place();

/// What connect_ranks() finds out.
struct TcpPeers {
  std::vector<Socket> sockets;  ///< by rank; its own is not open
  int processors = 1;           ///< this rank's share of its machine
};

/// Connects each rank with each other one. The ranks meet at rank 0, which tells each where the
/// others listen, and how many of a machine's processors it may use. Each listens at the address
/// from which it reaches rank 0, so ranks of one machine at a loopback address only. A connection
/// that does not begin with this job's token is refused with a log line, and the job goes on
/// waiting.
///
/// Throws Error: (Fault::system) when a rank does not come within timeout_s (at least 10 s), which
/// names those missing, and when the port is in use; (Fault::user) when rank 0 refuses this rank.
TcpPeers connect_ranks(const TcpPlace& place, double timeout_s);

/// Whether connect_ranks() was called in this process: if it failed, the ranks cannot meet.
bool has_tried_to_connect();

}  // namespace weft::distributed
