#pragma once
#include <cstdint>

#include "weft/distributed/device_mesh.h"
#include "weft/examples/common/gpt_options.h"

/// What connects the ranks of a job on GPUs, and a prediction of how long that takes.
namespace weft::bench {

/// Assumed costs of connecting ranks over NCCL.
struct ConnectCost {
  double base_ms = 100;  ///< of each communicator: memory, threads, sockets
  double rank_ms = 1;    ///< of each rank in it: every rank reads the address of every other one
  double hop_us = 2.7;   ///< of a message that carries an id from host to host
};

struct StartUp {
  int communicators = 0;        ///< of one rank
  std::int64_t one_by_one = 0;  ///< initialisations of the job that wait for each other
  double seconds = 0;           ///< predicted time of these
};

/// Runs a training step of one simulated rank and counts the communicators that it makes over NCCL.
/// All lists of a name are split from the world at once: the time is that of connecting the world
/// for each, an upper bound.
StartUp start_up(const examples::GptOptions& options, const ConnectCost& cost);

/// The same if each list of ranks of each name in the mesh, also of one rank, were connected when
/// the mesh is made: rank 0 of the list sends an id to each rank of the world in turn.
StartUp eager_start_up(int world_size, const distributed::Degrees& degrees,
                       const ConnectCost& cost);

}  // namespace weft::bench
