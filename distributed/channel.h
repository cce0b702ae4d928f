#pragma once
#include <string>
#include <utility>
#include <vector>

#include "weft/core/device.h"
#include "weft/core/kernels/sum_ranks.h"

namespace weft::distributed {

struct Operation;

/// How the values of the ranks are combined: Reduce::sum, max or min.
using Reduce = RankSum;

/// The transport of one group, used by ProcessGroup. Each backend derives from it.
class Channel {
 public:
  Channel(std::string name, std::vector<int> ranks, int rank)
      : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Runs the operation. Calls come in program order, for all channels of a rank from one thread at
  /// a time: the communication thread, or the rank's own thread while it waits. Throws Error
  /// (Fault::system) when a rank is lost or the ranks called different collectives; no channel of
  /// the rank is called after that.
  virtual void run(Operation& op) = 0;
  /// Called by the rank's own thread to wait for an operation that run() has enqueued on a GPU:
  /// work that the thread enqueues later must run after it. Throws Error (Fault::system) when a
  /// rank is lost.
  virtual void finish(Operation&) {}
  /// Called instead of finish() when the Work of an operation that a GPU runs is dropped without
  /// wait(): its tensors are released next, and their memory must not be reused before the GPU has
  /// run it. Must not throw.
  virtual void abandon(Operation&) {}
  /// Throws Error (Fault::system) when the job has failed; see World::check_well(). Channels whose
  /// finish() waits need not.
  virtual void check_well() {}
  /// The device that tensors must be on, unless they are meta tensors.
  virtual Device device() const { return kCpu; }
  /// Whether tensors on this device are accepted as well.
  virtual bool takes(Device) const { return false; }

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }  ///< world ranks
  int rank() const { return rank_; }                        ///< group rank
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  std::string name_;
  std::vector<int> ranks_;
  int rank_;
};

}  // namespace weft::distributed
