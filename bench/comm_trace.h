#pragma once
#include <map>
#include <string>
#include <vector>

#include "weft/bench/comm_timeline.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/train/train_step.h"

namespace weft::bench {

/// Runs one training step and returns its collectives.
/// Throws Error when the world's flight recorder keeps fewer.
std::vector<distributed::FlightEntry> record_step(distributed::World& world,
                                                  train::TrainStep& train_step, std::int64_t step,
                                                  const data::Batch& rows);

/// The size of the whole of a collective in bytes: see collective_us().
std::int64_t whole_bytes(const distributed::FlightEntry& entry);

/// The communication of one rank in a step, with its timing.
struct StepTrace {
  std::vector<distributed::FlightEntry> calls;
  std::vector<train::Phase> phases;  ///< the phase of each call
  std::vector<StepEvent> events;
  std::map<std::string, std::vector<int>> groups;  ///< the world ranks of each group
  double flops = 0;                                ///< of this rank
  std::int64_t tokens = 0;                         ///< of all ranks
};

/// Traces a step of rank options.rank on the meta device, with the other ranks simulated.
///
/// On a device that computes nothing, the compute position of a collective cannot be measured. The
/// trace assumes that forward takes a third of the compute (a quarter with recompute). In the last
/// backward, a gradient bucket is sent when backward has passed its parameters; parameters of a
/// sharded optimizer are waited for when forward reaches them. All other collectives are spread
/// evenly in between.
StepTrace trace_step(const examples::GptOptions& options);

}  // namespace weft::bench
