#pragma once
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/distributed/channel.h"
#include "weft/distributed/lane.h"
#include "weft/distributed/transfer.h"

namespace weft::distributed {

class CommThread;

/// A collective in flight. Do not touch its tensors until wait() has returned. Use it on the thread
/// that called the collective only. A Work that is destroyed without wait() does not cancel the
/// collective; a failure is then reported by the next Work that is waited for.
class [[nodiscard]] Work {
 public:
  Work() = default;
  Work(std::shared_ptr<CommThread> thread, Operation& op) : thread_(std::move(thread)), op_(&op) {}
  Work(Work&& o) noexcept;
  Work& operator=(Work&& o) noexcept;
  ~Work();
  /// Blocks until the result is available. Throws Error (Fault::system) when a rank was lost, when
  /// the ranks called different collectives, or on timeout.
  void wait();
  /// Whether the collective has finished, successfully or not. Does not block. For GPU tensors:
  /// whether it has been enqueued; kernels launched after wait() see the result.
  bool done() const;

 private:
  std::shared_ptr<CommThread> thread_;
  Operation* op_ = nullptr;
};

/// Number of rows (first axis) of each rank of a group. The list is not copied: keep it alive until
/// the call returns. An empty list means the same number of rows on every rank.
using Rows = std::vector<std::int64_t>;
class RowList {
 public:
  RowList() = default;
  RowList(const Rows& rows) : rows_(rows.data()), size_(rows.size()) {}
  RowList(std::span<const std::int64_t> rows);
  RowList(std::initializer_list<std::int64_t> rows);
  bool empty() const { return size_ == 0; }
  int size() const { return static_cast<int>(size_); }
  std::int64_t operator[](int rank) const { return rows_[rank]; }

 private:
  const std::int64_t* rows_ = nullptr;  // a std::span here costs every includer 50 ms
  std::size_t size_ = 0;
};

/// A set of ranks that communicate with each other. Every member makes the same calls in the same
/// order. Each call returns at once; a communication thread runs the collectives of the group's
/// lane in call order while the calling thread computes. A collective may not use what one of
/// another lane has not yet delivered: wait() for that one first. Ranks are numbered within the
/// group, 0 .. size - 1.
///
///   group.all_reduce(x).wait();
///
/// Dtypes   all; reductions f32, f64, bf16, f16 (added in f32, rounded once), i32, i64, u8
/// Device   meta (no data is moved). MPI, TCP: cpu. Threads: cpu, and cuda when all ranks use one
/// GPU
///          and are at most 16; each rank enqueues collectives on its current stream, and wait()
///          waits for the other ranks but not for the GPU. NCCL: the rank's own GPU, on a separate
///          stream; wait() makes the current stream wait
/// Order    every rank gets the same bits. Values are added in rank order, so threads, MPI
///          and TCP agree; NCCL uses its own order and rounds 16 bits at each step
/// Throws   Error on tensors that are not contiguous or overlap, on dtypes that differ or cannot be
///          reduced, and on row counts that do not add up
///
/// Collectives split tensors along the first axis: `rows` gives the number of rows of each rank,
/// which may be 0.
class ProcessGroup {
 public:
  ProcessGroup(std::shared_ptr<Channel> channel, std::shared_ptr<CommThread> thread, Lane lane);

  const std::string& name() const { return channel_->name(); }
  int rank() const { return channel_->rank(); }
  int size() const { return channel_->size(); }
  /// World ranks of the members, in group order.
  const std::vector<int>& ranks() const { return channel_->ranks(); }
  Lane lane() const { return lane_; }

  /// Use as group.at_once().all_reduce(x).wait(), for one call that is waited for immediately. The
  /// calling thread runs the collective itself and does not wake the communication thread, because
  /// waking it costs more than a small collective. Without wait(), the collective may not start
  /// before the next one.
  ProcessGroup& at_once() {
    at_once_ = true;
    return *this;
  }

  /// x <- the reduction of x over all ranks, element by element.
  Work all_reduce(const Tensor& x, Reduce reduce = Reduce::sum);
  /// out <- the rows of all ranks, in rank order. `in` may be this rank's rows of `out`.
  Work all_gather(const Tensor& out, const Tensor& in, RowList rows = {});
  /// out <- this rank's rows of the reduction of `in` over all ranks. `out` may be those rows of
  /// `in`.
  Work reduce_scatter(const Tensor& out, const Tensor& in, RowList rows = {},
                      Reduce reduce = Reduce::sum);
  /// The first in_rows[0] rows of `in` go to rank 0, and so on; rank r sends out_rows[r] rows.
  Work all_to_all(const Tensor& out, const Tensor& in, RowList out_rows = {}, RowList in_rows = {});
  /// x <- x of rank `root`.
  Work broadcast(const Tensor& x, int root);
  /// Sends `in` and receives `out` at the same time, as in a ring.
  Work exchange(const Tensor& out, int from, const Tensor& in, int to);
  /// Two ranks that both send before they receive deadlock: use exchange() or batch() instead.
  Work send(const Tensor& x, int to);
  Work receive(const Tensor& x, int from);
  /// All sends and receives at the same time, in any order and number of sizes and dtypes; either
  /// list may be empty. The n-th message from one rank to another is the n-th that the other
  /// receives from it, whichever calls make them. Tensors are on one device, and none that receives
  /// shares memory with another of the call.
  Work batch(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives);
  /// Completes when every rank has reached it.
  Work barrier();

  /// Throws Error if the job has failed: World::check_well().
  void check_well() const;

  /// Number of collectives called so far, equal on every rank. Point-to-point messages do not
  /// count.
  std::int64_t calls() const { return sequence_; }

 private:
  struct Call;
  Work submit(Call& call);

  std::shared_ptr<Channel> channel_;
  std::shared_ptr<CommThread> thread_;
  const Lane lane_;
  std::int64_t sequence_ = 0, messages_ = 0;
  bool at_once_ = false;
};

}  // namespace weft::distributed
