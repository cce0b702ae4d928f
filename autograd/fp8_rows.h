#pragma once
#include "weft/autograd/fp8.h"
#include "weft/core/kernels/rounded_rows.h"

// Rounding inside the op that produces an operand. Its kernel writes, beside each row, what the FP8
// product that reads it would find in a pass of its own: the largest magnitude, and where scales
// are known by then (delayed ones, those of blocks along the row) the codes. Each thread keeps
// those of the last few tensors until its outermost fp8::Autocast ends.
namespace weft::fp8 {

/// While one exists, this thread's ops write codes for the product of this layer. Without one, or
/// with null, they write magnitudes at most.
class ProducesFor {
 public:
  explicit ProducesFor(const LayerState* reader) : outer_(reader_) { reader_ = reader; }
  ~ProducesFor() { reader_ = outer_; }
  ProducesFor(const ProducesFor&) = delete;
  static const LayerState* reader() { return reader_; }

 private:
  static constinit thread_local const LayerState* reader_;
  const LayerState* const outer_;
};

/// What a kernel that writes y is to write beside it. Null where nothing could use it: without an
/// Autocast, or unless y will be recorded.
RoundedRows rows_for(const Tensor& y, bool recorded);
/// Remembers them for y, which has been recorded.
void remember_rows(const Tensor& y, const RoundedRows& rows);
/// The same numbers under another shape, of a tensor that is read in place of y.
void rename_rows(const Tensor& y, const Tensor& view);
/// The largest magnitudes of the rows of x; null if they are not known or x was written since.
Tensor row_amax_of(const Tensor& x);
/// What is known of x for a product by this recipe, whose delayed scales are these: the magnitudes,
/// and the codes if they were made for it, which are then no longer kept here.
RoundedRows take_rows(const Tensor& x, const Recipe& recipe, const Delayed& delayed);
/// y has the rows of x in another order, as permute(rows of x, rows of y) moves them.
void move_rows(const Tensor& x, const Tensor& y,
               const std::function<void(const Tensor& from, const Tensor& to)>& permute);

}  // namespace weft::fp8
