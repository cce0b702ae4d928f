#include "weft/distributed/row_path.h"

#include <span>
#include <utility>

#include "weft/autograd/fp8.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::distributed {
namespace {

std::span<const std::int64_t> numbers(const Tensor& rows) {
  return {rows.data<std::int64_t>(), static_cast<std::size_t>(rows.numel())};
}

}  // namespace

void RowPath::Works::wait() {
  for (Work& w : legs) w.wait();
}

void RowPath::all_to_all(ProcessGroup& group, Tensor in_rows, Tensor out_rows) {
  if (group.size() == 1) return;
  check(size_ < kLegs, "row path: at most {} legs", kLegs);
  legs_[size_++] = {&group, false, std::move(in_rows), std::move(out_rows)};
}

void RowPath::gather(ProcessGroup& group, Tensor rows) {
  if (group.size() == 1) return;
  check(size_ < kLegs, "row path: at most {} legs", kLegs);
  legs_[size_++] = {&group, true, {}, std::move(rows)};
}

Tensor RowPath::post(const Tensor& x, bool back, Works& works, bool at_once) const {
  const NoGradGuard quiet;
  Tensor in = contiguous(x);
  const auto result = [&](std::int64_t rows) {
    Shape shape = in.shape();
    shape[0] = rows;
    return Tensor::empty(shape, in.dtype(), in.device());
  };
  for (int i = 0; i < size_; ++i) {
    const Leg& leg = legs_[back ? size_ - 1 - i : i];
    ProcessGroup& group = at_once ? leg.group->at_once() : *leg.group;
    const auto come = numbers(back && !leg.gathers ? leg.in : leg.out);
    const bool sums = back && leg.gathers;
    std::int64_t rows = 0;
    for (const std::int64_t n : come) rows += n;
    if (sums) rows = come[static_cast<std::size_t>(group.rank())];
    const Tensor out = result(rows);
    // The next leg reads this leg's output: the communication thread keeps their order.
    if (sums)
      works.legs[i] = group.reduce_scatter(out, in, come);
    else if (leg.gathers)
      works.legs[i] = group.all_gather(out, in, come);
    else
      works.legs[i] = group.all_to_all(out, in, come, numbers(back ? leg.out : leg.in));
    in = out;
  }
  return in;
}

void RowsInTransit::post(const Tensor& x, const RowPath& path, nn::TokenForm form) {
  dtype_ = x.dtype();
  if (form == nn::TokenForm::model) {
    rows_ = path.post(x, false, works_);
    return;
  }
  const NoGradGuard quiet;
  const fp8::Quantized q = fp8::quantize_rows(contiguous(x));
  tile_ = q.tile;
  rows_ = path.post(q.rows, false, works_);
  inverse_ = path.post(q.inverse, false, inverse_works_);
}

void RowsInTransit::post_back(const Tensor& x, const RowPath& path) {
  rows_ = path.post(x, true, works_, true);
}

Tensor RowsInTransit::wait() {
  works_.wait();
  Tensor rows = std::move(rows_);
  if (!inverse_.defined()) return rows;
  inverse_works_.wait();
  const fp8::Quantized q{
      .rows = std::move(rows), .columns = {}, .inverse = std::move(inverse_), .tile = tile_};
  return fp8::dequantize(q, {.each = q.rows.dim(0)}, dtype_);
}

void RowTransfer::begin(const Tensor& x, const std::shared_ptr<RowTransfer>& transfer,
                        nn::TokenForm form) {
  transfer->mark_ = x;
  if (transfer->path_->empty()) {
    if (form == nn::TokenForm::fp8) transfer->mark_ = fp8::rounded_rows(x);
    return;
  }
  if (transfer->back_)
    transfer->forth_.post_back(x, *transfer->path_);
  else
    transfer->forth_.post(x, *transfer->path_, form);
  if (!recording(x)) return;
  transfer->mark_ = x.detach();
  Tape::record("send_tokens", {&x}, {&transfer->mark_}, [transfer](Backward& b) {
    b.once_differentiable();
    transfer->home_.wait();
    b.add(0, b.dy());
  });
}

void send_tokens(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTransfer>& transfer,
                 nn::TokenForm form) {
  transfer->path_ = &path;
  RowTransfer::begin(x, transfer, form);
}

Tensor return_tokens(const Tensor& x, const RowPath& path,
                     const std::shared_ptr<RowTransfer>& transfer) {
  transfer->path_ = &path;
  transfer->back_ = true;
  RowTransfer::begin(x, transfer, nn::TokenForm::model);
  return receive_tokens(transfer);
}

Tensor receive_tokens(const std::shared_ptr<RowTransfer>& transfer) {
  const Tensor mark = std::move(transfer->mark_);
  if (transfer->path_->empty()) return mark;
  Tensor result = transfer->forth_.wait();
  if (recording(mark))
    Tape::record("receive_tokens", {&mark}, {&result}, [transfer](Backward& b) {
      b.once_differentiable();
      b.add(0, transfer->path_->post(b.dy(), !transfer->back_, transfer->home_, transfer->back_));
    });
  return result;
}

}  // namespace weft::distributed
