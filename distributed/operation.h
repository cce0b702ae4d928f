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
#include "weft/core/tensor.h"
#include "weft/distributed/channel.h"
#include "weft/distributed/lane.h"
#include "weft/distributed/transfer.h"

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
  batch,
  barrier
};
const char* name(Collective c);
/// Whether it is a point-to-point call: the other ranks of the group do not take part.
inline bool is_message(Collective c) { return c >= Collective::exchange && c <= Collective::batch; }

/// One collective of one rank, from the call until its result is available. Operations are
/// recycled: filling one in allocates nothing once its vectors have grown.
struct Operation {
  Collective kind = Collective::barrier;
  Reduce reduce = Reduce::sum;
  std::int64_t sequence = 0;  ///< index of this call within its group
  Lane lane = Lane::model;    ///< of the group
  std::shared_ptr<Channel> channel;
  Tensor out, in;                                 ///< contiguous; null if unused
  std::vector<std::int64_t> out_count, in_count;  ///< number of elements by group rank
  int root = -1;                                  ///< group rank, of a broadcast
  std::vector<Transfer> sends, receives;          ///< point-to-point calls use these alone

  std::optional<cuda::Stream> stream;  ///< on a GPU: the caller's current stream

  // Used by the communication thread.
  std::chrono::steady_clock::time_point started, ended;
  std::int64_t number = 0;  ///< index in the flight recorder
  Operation* next = nullptr;
  bool failed = false;
  bool enqueued = false;  ///< set by Channel::run(): a GPU runs it, and the channel records its end
  bool joined = false;    ///< Channel::finish() has returned
  bool held = false;      ///< a Work refers to it
  std::atomic<bool> done{true};
  // Events in `stream` that other ranks on the same GPU wait for: the inputs are ready, this rank's
  // share of the reduction is done, and this rank has read all it needs from its peers.
  cuda::Event ready, summed, read;

  /// A tensor of the call, of whose device all are; null if it has none.
  const Tensor& some_tensor() const {
    return out.defined()       ? out
           : !receives.empty() ? receives[0].tensor
           : !sends.empty()    ? sends[0].tensor
                               : in;
  }
  template <class F>
  void for_each_tensor(F f) const {
    for (const Tensor& t : {out, in})
      if (t.defined()) f(t);
    for (const auto* const list : {&sends, &receives})
      for (const Transfer& t : *list) f(t.tensor);
  }
  DType dtype() const {
    const Tensor& t = some_tensor();
    return t.defined() ? t.dtype() : DType::u8;
  }
  bool is_meta() const {
    const Tensor& t = some_tensor();
    return t.defined() && t.is_meta();
  }
  /// Whether it needs this rank of its group.
  bool needs(int rank) const;
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(size_of(dtype())); }
  /// Bytes that this rank sends to other ranks.
  std::int64_t bytes_sent(int rank, int size) const;
};

/// The entry of `rank` in a list of counts by rank, and the sum of the entries before it.
inline std::int64_t count_of(const std::vector<std::int64_t>& counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}
inline std::int64_t count_before(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

inline char* bytes_of(const Tensor& t, std::int64_t element) {
  return static_cast<char*>(t.raw()) + element * static_cast<std::int64_t>(size_of(t.dtype()));
}
inline double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// Describes an operation in messages: "all_reduce 17 of group dp, f32 [4096]".
std::string describe(const Operation& op);
/// The same of a single message: "send 3 of group pp, f32 [4096]".
std::string describe(const Operation& op, const Transfer& transfer);
/// Empty when two ranks of a group called the same collective, else a description of what differs.
std::string difference(const Operation& a, int rank_a, const Operation& b, int rank_b,
                       const Channel& channel);
/// Empty when a receiver expects what is sent, else a description of what differs.
std::string difference(const Operation& sender, const Transfer& sent, const Operation& receiver,
                       const Transfer& expected, const Channel& channel);

}  // namespace weft::distributed
