#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "weft/core/dtype.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {

/// One collective as the recorder keeps it.
struct FlightEntry {
  enum class State : std::uint8_t { queued, running, done, failed };
  std::int64_t number = 0;    ///< among all of this rank
  std::int64_t sequence = 0;  ///< among those of its group
  Collective kind = Collective::barrier;
  Reduce reduce = Reduce::sum;
  DType dtype = DType::u8;
  State state = State::queued;
  char group[24] = {};
  std::int64_t out_elements = 0, in_elements = 0;
  std::int64_t bytes_sent = 0;                      ///< by this rank
  double called_s = 0, started_s = 0, ended_s = 0;  ///< since the recorder was made
  double waited_s = 0;                              ///< when Work::wait() was called; 0: not yet

  /// The same on every rank whenever the layout is what decides: no times, no numbers of elements
  /// for collectives whose rows may differ between ranks.
  std::string text() const;
};

/// A ring of the latest collectives of one rank: cheap enough to be always on. The communication
/// thread writes, anybody may read.
class FlightRecorder {
 public:
  /// Throws Error unless capacity is at least 1.
  explicit FlightRecorder(int capacity = 2048);
  std::int64_t called(const Operation& op);
  void started(std::int64_t number);
  void ended(std::int64_t number, bool well);
  void waited(std::int64_t number);

  /// Oldest first.
  std::vector<FlightEntry> entries() const;
  /// Seconds since the recorder was made.
  double now() const;
  /// Collectives called so far, also those that are no longer kept.
  std::int64_t count() const;
  /// One line an entry.
  std::string dump() const;
  /// Writes why the job stopped, and the dump, to rank_<rank>.txt in `folder`, which is made. A
  /// disk that refuses is no reason to end worse: then nothing is written.
  void write(const std::string& folder, int rank, const std::string& why) const;

 private:
  mutable std::mutex mutex_;
  std::vector<FlightEntry> ring_;
  std::int64_t count_ = 0;
  std::chrono::steady_clock::time_point start_;
};

/// The texts of the collectives that whole groups make, oldest first: where the layout is what
/// decides, the same on every rank. Messages between two ranks are left out.
std::vector<std::string> collective_trace(const FlightRecorder& recorder);

}  // namespace weft::distributed
