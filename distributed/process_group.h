#pragma once
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/distributed/operation.h"

namespace weft::distributed {

class CommThread;

/// A collective under way. Its tensors must not be touched before wait() has returned. Belongs to
/// the thread that called the collective. Dropped without wait() it goes on, and a failure shows at
/// the next one that is waited for.
class [[nodiscard]] Work {
 public:
  Work() = default;
  Work(std::shared_ptr<CommThread> thread, Operation& op) : thread_(std::move(thread)), op_(&op) {}
  Work(Work&& o) noexcept;
  Work& operator=(Work&& o) noexcept;
  ~Work();
  /// Returns when the result is there. Throws Error (Fault::system) when a rank was lost, the ranks
  /// called different collectives, or one of them did not come in time.
  void wait();
  /// Has it ended, well or not? Waits for nothing. Of tensors on a GPU: is it in the GPU's streams?
  /// That the result is there, kernels that follow wait() know.
  bool done() const;

 private:
  std::shared_ptr<CommThread> thread_;
  Operation* op_ = nullptr;
};

/// How many rows (of the first axis) each rank of a group has: a list that the caller keeps until
/// the call has returned. Empty: the same for all.
using Rows = std::vector<std::int64_t>;
class RowList {
 public:
  RowList() = default;
  RowList(const Rows& rows) : rows_(rows) {}
  RowList(std::span<const std::int64_t> rows) : rows_(rows) {}
  RowList(std::initializer_list<std::int64_t> rows) : rows_(rows.begin(), rows.size()) {}
  bool empty() const { return rows_.empty(); }
  int size() const { return static_cast<int>(rows_.size()); }
  std::int64_t operator[](int rank) const { return rows_[static_cast<std::size_t>(rank)]; }

 private:
  std::span<const std::int64_t> rows_;
};

/// Ranks that move data among themselves. Every member makes the same calls in the same order; each
/// call returns at once, and the work is done in that order by a thread of its own while this one
/// computes. Ranks here are numbers in the group, 0 .. size - 1.
///
///   group.all_reduce(x).wait();
///
/// Dtypes   all of them; reductions f32, f64, bf16 (added in f32, rounded once), i32, i64, u8
/// Device   meta (nothing is moved); over MPI cpu; over threads cpu, and cuda with the same GPU for
///          all ranks, at most 16 of them: each rank's collectives go where its kernels go, in its
///          current stream, and wait() waits for the other ranks but not for the GPU; over NCCL the
///          rank's own GPU, in a stream beside, and wait() makes the current stream wait
/// Order    every rank has the same bits. Values are added in the order of ranks, so that threads
///          and MPI agree; over NCCL in its order, bf16 rounded on the way
/// Throws   Error on tensors that are not contiguous or overlap, dtypes that differ or cannot be
///          added, and rows that do not add up
///
/// Tensors are seen along their first axis: `rows` says how many rows each rank has; 0 is legal.
class ProcessGroup {
 public:
  ProcessGroup(std::shared_ptr<Channel> channel, std::shared_ptr<CommThread> thread);

  const std::string& name() const { return channel_->name(); }
  int rank() const { return channel_->rank(); }
  int size() const { return channel_->size(); }
  /// The members' numbers in the world, by rank.
  const std::vector<int>& ranks() const { return channel_->ranks(); }

  /// group.at_once().all_reduce(x).wait(): for one call that is waited for at once. The calling
  /// thread makes it itself, and the communication thread is not even woken, which costs more than
  /// a small collective. Without the wait() it may begin no earlier than the next one.
  ProcessGroup& at_once() {
    at_once_ = true;
    return *this;
  }

  /// x <- the reduction of every rank's x, element by element.
  Work all_reduce(const Tensor& x, Reduce reduce = Reduce::sum);
  /// out <- the rows of all ranks, in their order. `in` may be its own part of `out`.
  Work all_gather(const Tensor& out, const Tensor& in, RowList rows = {});
  /// out <- this rank's rows of the reduction of every rank's `in`. `out` may be that part of `in`.
  Work reduce_scatter(const Tensor& out, const Tensor& in, RowList rows = {},
                      Reduce reduce = Reduce::sum);
  /// The first in_rows[0] rows of `in` go to rank 0, and so on; out_rows[r] rows come from rank r.
  Work all_to_all(const Tensor& out, const Tensor& in, RowList out_rows = {}, RowList in_rows = {});
  /// x <- x of rank `root`.
  Work broadcast(const Tensor& x, int root);
  /// Sends `in` and receives `out` at once: what a ring needs.
  Work exchange(const Tensor& out, int from, const Tensor& in, int to);
  /// Two ranks that both send first would wait for each other: exchange() is for those.
  Work send(const Tensor& x, int to);
  Work receive(const Tensor& x, int from);
  /// Ends when every rank has come to it.
  Work barrier();

  /// Collectives called so far, the same number on every rank: messages between two do not count.
  std::int64_t calls() const { return sequence_; }

 private:
  struct Call;
  Work submit(Call& call);

  std::shared_ptr<Channel> channel_;
  std::shared_ptr<CommThread> thread_;
  std::int64_t sequence_ = 0, messages_ = 0;
  bool at_once_ = false;
};

}  // namespace weft::distributed
