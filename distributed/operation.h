#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/core/tensor.h"

namespace weft::distributed {

enum class Collective : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  exchange,
  send,
  receive,
  barrier
};
const char* name(Collective c);
/// Between two ranks: the others of the group do not call it.
inline bool is_message(Collective c) {
  return c >= Collective::exchange && c <= Collective::receive;
}

/// How the values of several ranks become one: Reduce::sum, max or min.
using Reduce = RankSum;

class Channel;

/// One collective of one rank, from the call until its result is there. Recycled: filling one in
/// touches no heap once its lists have grown.
struct Operation {
  Collective kind = Collective::barrier;
  Reduce reduce = Reduce::sum;
  std::int64_t sequence = 0;  ///< number of this call among those of its group
  std::shared_ptr<Channel> channel;
  Tensor out, in;                                 ///< contiguous; null where there is none
  std::vector<std::int64_t> out_count, in_count;  ///< elements by rank of the group
  int to = -1, from = -1;  ///< exchange, send, receive: ranks of the group; from: broadcast's root

  std::optional<cuda::Stream> stream;  ///< on a GPU: where the caller's kernels went

  // Of the communication thread.
  std::chrono::steady_clock::time_point started, ended;
  std::int64_t number = 0;  ///< in the flight recorder
  Operation* next = nullptr;
  bool failed = false;
  bool held = false;  ///< by a Work
  std::atomic<bool> done{true};
  // Marks in `stream` that other ranks on the GPU wait for: the inputs are there, this rank's share
  // is, and it has read what it needs of the others.
  cuda::Event ready, summed, read;

  DType dtype() const {
    return out.defined() ? out.dtype() : in.defined() ? in.dtype() : DType::u8;
  }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(size_of(dtype())); }
  /// Bytes that this rank sends to others.
  std::int64_t bytes_sent(int rank, int size) const;
};

/// What `rank` has in a list of counts by rank, and what all ranks before it have.
inline std::int64_t count_of(const std::vector<std::int64_t>& counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}
inline std::int64_t count_before(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

inline double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// What moves the bytes of one group, behind a ProcessGroup. A backend is a subclass.
class Channel {
 public:
  Channel(std::string name, std::vector<int> ranks, int rank)
      : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Carries the operation out. Called in program order, for all channels of a rank by one thread
  /// at a time: its communication thread, or its own one when that would only wait.
  /// Throws Error (Fault::system) when a rank is lost or the ranks called different things; after
  /// that nothing is called any more, on no channel of the rank.
  virtual void run(Operation& op) = 0;
  /// The rank's own thread waits for an operation that run() has begun on a GPU: what it does next
  /// has to come after it. Throws Error (Fault::system) when a rank is lost.
  virtual void finish(Operation&) {}
  /// Where tensors have to be, unless they are on the meta device.
  virtual Device device() const { return kCpu; }
  /// May they be there too?
  virtual bool takes(Device) const { return false; }

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }  ///< of the world
  int rank() const { return rank_; }                        ///< in the group
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  std::string name_;
  std::vector<int> ranks_;
  int rank_;
};

/// "all_reduce 17 of group dp, f32 [4096]": how an operation is called in messages.
std::string describe(const Operation& op);
/// "" when two ranks of a group called the same thing, else what differs.
std::string difference(const Operation& a, int rank_a, const Operation& b, int rank_b,
                       const Channel& channel);

}  // namespace weft::distributed
