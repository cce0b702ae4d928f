#pragma once
#include <memory>

#include "weft/core/kernels/quantize.h"
#include "weft/distributed/process_group.h"
#include "weft/nn/token_dispatcher.h"

namespace weft::distributed {

/// Moves rows between ranks in up to two legs, each a collective of one group. The operation is
/// linear; backward runs the transposed collectives in reverse order: an all-to-all becomes the
/// opposite all-to-all, an all-gather a reduce-scatter, and the backward of a reduction an
/// all-gather. Legs of groups with one rank are skipped. The groups must outlive the path.
class RowPath {
 public:
  static constexpr int kLegs = 2;
  /// The collectives of one pass.
  struct Works {
    Work legs[kLegs];
    void wait();
  };

  // Number of rows of each rank of the group: (ranks) i64 on the host.
  /// The first in_rows[0] rows go to rank 0 and so on; rank r sends out_rows[r] rows.
  void all_to_all(ProcessGroup& group, Tensor in_rows, Tensor out_rows);
  /// Every rank receives the rows of all ranks.
  void gather(ProcessGroup& group, Tensor rows);
  /// Starts the collectives in order on the communication thread and returns the tensor that holds
  /// the result once `works` are done. back: the reverse direction. at_once: the caller waits for
  /// them next.
  Tensor post(const Tensor& x, bool back, Works& works, bool at_once = false) const;
  bool empty() const { return size_ == 0; }

 private:
  struct Leg {
    ProcessGroup* group = nullptr;
    bool gathers = false;
    Tensor in, out;  // an all-gather uses `out` only
  };
  Leg legs_[kLegs];
  int size_ = 0;
};

/// Rows on their way in one direction.
class RowsInTransit {
 public:
  /// Starts RowPath::post() in a form: FP8 codes travel beside their scales.
  void post(const Tensor& x, const RowPath& path, nn::TokenForm form);
  /// The reverse direction, for a caller that waits next.
  void post_back(const Tensor& x, const RowPath& path);
  /// Waits, and returns the rows in the dtype of x.
  Tensor wait();

 private:
  Tensor rows_, inverse_;
  Fp8Tile tile_ = {0, 0};
  DType dtype_ = DType::f32;
  RowPath::Works works_, inverse_works_;
};

/// Rows in flight, in forward and, as gradients, in backward.
class RowTransfer {
 private:
  friend void send_tokens(const Tensor&, const RowPath&, const std::shared_ptr<RowTransfer>&,
                          nn::TokenForm);
  friend Tensor receive_tokens(const std::shared_ptr<RowTransfer>&);
  friend Tensor return_tokens(const Tensor&, const RowPath&, const std::shared_ptr<RowTransfer>&);
  static void begin(const Tensor& x, const std::shared_ptr<RowTransfer>& transfer,
                    nn::TokenForm form);

  const RowPath* path_ = nullptr;
  bool back_ = false;  // reverse direction: the caller waits at once
  Tensor mark_;        // stands for the rows on the tape
  RowsInTransit forth_;
  RowPath::Works home_;
};

/// Sends the rows of x and returns at once; receive_tokens() waits for the result. In backward,
/// receive_tokens() sends the gradient and send_tokens() waits for it, so the work between the two
/// calls overlaps with communication in both passes. Pass a new `transfer`; it must keep the path
/// alive. The gradient is in the dtype of x for every form.
///
/// Shapes   x (N, ...)  ->  (M, ...) by the path; (N, C) for TokenForm::fp8
/// Dtypes   any; f32, bf16 for TokenForm::fp8; sums as ProcessGroup, gradients f32, f64, bf16,
///          f16
/// Device   as ProcessGroup
/// Saves    nothing
/// Throws   Error as ProcessGroup does; once differentiable
void send_tokens(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTransfer>& transfer,
                 nn::TokenForm form = nn::TokenForm::model);
[[nodiscard]] Tensor receive_tokens(const std::shared_ptr<RowTransfer>& transfer);
/// Sends results back to the ranks their inputs came from, and waits for them.
///
/// Shapes   x (M, ...)  ->  (N, ...) by the path
/// Dtypes, Device, Saves, Throws   as send_tokens()
Tensor return_tokens(const Tensor& x, const RowPath& path,
                     const std::shared_ptr<RowTransfer>& transfer);

}  // namespace weft::distributed
