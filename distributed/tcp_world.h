#pragma once
#include <functional>
#include <memory>

#include "weft/distributed/tcp_connect.h"
#include "weft/distributed/world.h"

namespace weft::distributed {

/// A rank of a job of processes without MPI, which TCP connects: see connect_ranks() for how they
/// find each other. Same bits, messages and behaviour as mpi_world(), and in addition each rank
/// notices at once when another one's process has ended. Connections are not encrypted: use a
/// network whose machines are trusted. Every rank keeps the world until it ends; the destructor
/// waits for the other ranks' destructors. Throws Error as tcp_place() and connect_ranks().
std::unique_ptr<World> tcp_world(const WorldOptions& options = {});
std::unique_ptr<World> tcp_world(const WorldOptions& options, const TcpPlace& place);

}  // namespace weft::distributed
