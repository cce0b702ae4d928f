#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/dtype.h"
#include "weft/core/shape.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {

/// A collective as the recorder stores it.
struct FlightEntry {
  /// running: on the host. enqueued: handed to a GPU, which may have begun it or not.
  enum class State : std::uint8_t { queued, running, enqueued, done, failed };
  std::int64_t number = 0;    ///< index among all collectives of this rank
  std::int64_t sequence = 0;  ///< index within its group
  Collective kind = Collective::barrier;
  Reduce reduce = Reduce::sum;
  Lane lane = Lane::model;
  DType dtype = DType::u8;
  State state = State::queued;
  char group[24] = {};
  std::int64_t out_elements = 0, in_elements = 0;
  Shape shape;                  ///< of the output, or of the input if there is none
  std::int64_t bytes_sent = 0;  ///< sent by this rank
  double called_s = 0, started_s = 0, ended_s = 0;  ///< since the recorder was created
  double waited_s = 0;                              ///< time of Work::wait(), or 0 before that

  /// A text that is equal on every rank if the layout alone decides the calls: it leaves out times,
  /// and element counts, which may differ between ranks for uneven collectives.
  std::string text() const;
  /// text() and the shape.
  std::string text_with_shape() const;
};

/// A ring buffer of the latest collectives of one rank, of all lanes, cheap enough to be always on.
/// The communication threads write; any thread may read.
class FlightRecorder {
 public:
  /// Throws Error unless capacity is at least 1.
  explicit FlightRecorder(int capacity = 2048);
  std::int64_t called(const Operation& op);
  void started(std::int64_t number);
  void enqueued(std::int64_t number);
  void ended(std::int64_t number, bool well);
  void waited(std::int64_t number);

  /// Entries, oldest first.
  std::vector<FlightEntry> entries() const;
  /// Seconds since the recorder was created.
  double now() const;
  /// Number of collectives called so far, including those no longer stored.
  std::int64_t count() const;
  /// One line per entry.
  std::string dump() const;
  /// Writes the reason of a failure and the dump to rank_<rank>.txt in `folder`, which is created.
  /// A write error is logged and not thrown, because it must not hide the failure.
  void write(const std::string& folder, int rank, const std::string& why) const;

 private:
  mutable std::mutex mutex_;
  mutable std::mutex write_mutex_;  // the threads of several lanes may fail at the same time
  std::vector<FlightEntry> ring_;
  std::int64_t count_ = 0;
  std::chrono::steady_clock::time_point start_;
};

/// The texts of the group collectives, oldest first, without point-to-point messages. If the layout
/// alone decides the calls, the result is equal on every rank.
std::vector<std::string> collective_trace(const FlightRecorder& recorder);
/// Those of one lane, which its queue runs in this order.
std::vector<std::string> collective_trace(const FlightRecorder& recorder, Lane lane);

}  // namespace weft::distributed
