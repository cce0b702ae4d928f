#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// A way of rows between ranks, in one or two legs, each a collective of a group. It is linear, and
/// its gradient goes the way back: an all-to-all returns what came, the sum of a gather's copies
/// goes to where the row was, and a sum is copied to all who gave a part of it. Legs of groups of
/// one rank are left out. The groups have to outlive the path.
class RowPath {
 public:
  /// The first in_rows[0] rows go to rank 0 and so on; out_rows[r] come from rank r.
  void all_to_all(ProcessGroup& group, Rows in_rows, Rows out_rows);
  /// Every rank gets the rows of all.
  void gather(ProcessGroup& group, Rows rows);
  /// Calls the collectives, one after the other on the communication thread, and returns where the
  /// result will be once the last of `works` is done. back: the other way round. at_once: the
  /// caller waits for them next.
  Tensor post(const Tensor& x, bool back, std::vector<Work>& works, bool at_once = false) const;
  bool empty() const { return legs_.empty(); }

 private:
  struct Leg {
    ProcessGroup* group;
    bool gathers;
    Rows in, out;  // of a gather only `out`: the rows of each rank
  };
  std::vector<Leg> legs_;
};

/// Rows on their way, which nobody may read yet.
class RowsUnderWay {
 public:
  RowsUnderWay() = default;

 private:
  friend RowsUnderWay depart(const Tensor&, const std::shared_ptr<const RowPath>&);
  friend Tensor arrive(RowsUnderWay);
  friend Tensor travel_back(const Tensor&, const std::shared_ptr<const RowPath>&);
  struct Trip;
  static RowsUnderWay begin(const Tensor& x, std::shared_ptr<Trip> trip);
  Tensor mark;  // stands for them on the tape
  std::shared_ptr<Trip> trip;
};

/// Sends the rows of x and returns at once; arrive() waits for what has come. In backward the
/// gradient departs where the tape passes arrive() and is waited for where it passes depart(): what
/// was computed in between overlaps with it both times.
///
/// Shapes   x (N, ...)  ->  (M, ...) by the path
/// Dtypes   any; sums as ProcessGroup, gradients f32, f64, bf16
/// Device   cpu, meta
/// Saves    nothing
/// Throws   Error as ProcessGroup does
[[nodiscard]] RowsUnderWay depart(const Tensor& x, const std::shared_ptr<const RowPath>& path);
[[nodiscard]] Tensor arrive(RowsUnderWay rows);
/// The way back at once: results of what has arrived, to where it came from.
///
/// Shapes   x (M, ...)  ->  (N, ...) by the path
Tensor travel_back(const Tensor& x, const std::shared_ptr<const RowPath>& path);

}  // namespace weft::distributed
