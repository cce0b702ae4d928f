#pragma once
#include <cstdint>

namespace weft::distributed {

/// What a group communicates for. Collectives of one lane run one after another in call order, and
/// beside those of other lanes: a layer waits for its own collectives, and they must not queue
/// behind gradients that nobody waits for yet.
enum class Lane : std::uint8_t {
  model,     ///< inside layers: tp, ep, cp; also small exchanges of all ranks
  data,      ///< gradients, and parameters gathered from their owners
  pipeline,  ///< between the stages of a pipeline
};
inline constexpr int kLanes = 3;

constexpr const char* name(Lane lane) {
  constexpr const char* kNames[kLanes] = {"model", "data", "pipeline"};
  return kNames[static_cast<int>(lane)];
}

/// The queue of a lane if a world has this many. With one, all lanes share it; with two, the
/// pipeline uses that of the model.
constexpr int queue_of(Lane lane, int queues) { return static_cast<int>(lane) % queues; }

}  // namespace weft::distributed
