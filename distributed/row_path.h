#pragma once
#include <memory>

#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// A way of rows between ranks, in up to two legs, each a collective of a group. It is linear, and
/// its gradient goes the way back: an all-to-all returns what came, the sum of a gather's copies
/// goes to where the row was, and a sum is copied to all who gave a part of it. Legs of groups of
/// one rank are left out. The groups have to outlive the path.
class RowPath {
 public:
  static constexpr int kLegs = 2;
  /// The collectives of one journey.
  struct Works {
    Work legs[kLegs];
    void wait();
  };

  // Rows of each rank of the group: (ranks) i64 on the host.
  /// The first in_rows[0] rows go to rank 0 and so on; out_rows[r] come from rank r.
  void all_to_all(ProcessGroup& group, Tensor in_rows, Tensor out_rows);
  /// Every rank gets the rows of all.
  void gather(ProcessGroup& group, Tensor rows);
  /// Calls the collectives, one after the other on the communication thread, and returns where the
  /// result will be once `works` are done. back: the other way round. at_once: the caller waits for
  /// them next.
  Tensor post(const Tensor& x, bool back, Works& works, bool at_once = false) const;
  bool empty() const { return size_ == 0; }

 private:
  struct Leg {
    ProcessGroup* group = nullptr;
    bool gathers = false;
    Tensor in, out;  // of a gather only `out`
  };
  Leg legs_[kLegs];
  int size_ = 0;
};

/// Rows on their way, there and, as a gradient, back.
class RowTrip {
 private:
  friend void depart(const Tensor&, const RowPath&, const std::shared_ptr<RowTrip>&);
  friend Tensor arrive(const std::shared_ptr<RowTrip>&);
  friend Tensor travel_back(const Tensor&, const RowPath&, const std::shared_ptr<RowTrip>&);
  static void begin(const Tensor& x, const std::shared_ptr<RowTrip>& trip);

  const RowPath* path_ = nullptr;
  bool back_ = false;  // and then nothing is computed in between
  Tensor mark_;        // stands for the rows on the tape
  Tensor result_;
  RowPath::Works forth_, home_;
};

/// Sends the rows of x and returns at once; arrive() waits for what has come, which nobody may read
/// before. In backward the gradient departs where the tape passes arrive() and is waited for where
/// it passes depart(): what was computed in between overlaps with it both times. `trip` is a new
/// one, and has to keep the path alive.
///
/// Shapes   x (N, ...)  ->  (M, ...) by the path
/// Dtypes   any; sums as ProcessGroup, gradients f32, f64, bf16
/// Device   as ProcessGroup
/// Saves    nothing
/// Throws   Error as ProcessGroup does; once differentiable
void depart(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTrip>& trip);
[[nodiscard]] Tensor arrive(const std::shared_ptr<RowTrip>& trip);
/// The way back at once: results of what has arrived, to where it came from.
///
/// Shapes   x (M, ...)  ->  (N, ...) by the path
/// Dtypes, Device, Saves, Throws   as depart()
Tensor travel_back(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTrip>& trip);

}  // namespace weft::distributed
