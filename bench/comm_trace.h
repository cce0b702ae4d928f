#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/bench/comm_timeline.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/train/train_step.h"

namespace weft::bench {

/// One training step, and the collectives that it made. Throws Error when the world's flight
/// recorder keeps fewer.
std::vector<distributed::FlightEntry> record_step(distributed::World& world,
                                                  train::TrainStep& train_step, std::int64_t step,
                                                  const data::Batch& rows);

/// The bytes of the whole that a collective is about: see collective_us().
std::int64_t whole_bytes(const distributed::FlightEntry& entry);

/// What a step of one rank says to the others, and when.
struct StepTrace {
  std::vector<distributed::FlightEntry> calls;
  std::vector<train::Phase> phases;  ///< that they were called in
  std::vector<StepEvent> events;
  std::map<std::string, std::vector<int>> groups;  ///< the ranks of the world in each
  double flops = 0;                                ///< of this rank
  std::int64_t tokens = 0;                         ///< of all ranks
};

/// A real step of rank options.rank, on the meta device, among ranks that are not there.
///
/// Where in a step's computing a collective is called cannot be seen on a device that computes
/// nothing. A third of it is taken for forward (a quarter, when backward runs forward again). In
/// the last backward a bucket of gradients is sent when its part of the parameters has been gone
/// through, and parameters of a sharded optimizer are waited for when forward has gone through
/// those before. All others are spread evenly in between.
StepTrace trace_step(const examples::GptOptions& options);

}  // namespace weft::bench
