#include "weft/distributed/row_path.h"

#include <span>
#include <utility>

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

void RowTrip::begin(const Tensor& x, const std::shared_ptr<RowTrip>& trip) {
  trip->mark_ = x;
  if (trip->path_->empty()) return;
  trip->result_ = trip->path_->post(x, trip->back_, trip->forth_, trip->back_);
  if (!recording(x)) return;
  trip->mark_ = x.detach();
  Tape::record("depart", {&x}, {&trip->mark_}, [trip](Backward& b) {
    b.once_differentiable();
    trip->home_.wait();
    b.add(0, b.dy());
  });
}

void depart(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTrip>& trip) {
  trip->path_ = &path;
  RowTrip::begin(x, trip);
}

Tensor travel_back(const Tensor& x, const RowPath& path, const std::shared_ptr<RowTrip>& trip) {
  trip->path_ = &path;
  trip->back_ = true;
  RowTrip::begin(x, trip);
  return arrive(trip);
}

Tensor arrive(const std::shared_ptr<RowTrip>& trip) {
  const Tensor mark = std::move(trip->mark_);
  if (trip->path_->empty()) return mark;
  trip->forth_.wait();
  Tensor result = std::move(trip->result_);
  if (recording(mark))
    Tape::record("arrive", {&mark}, {&result}, [trip](Backward& b) {
      b.once_differentiable();
      b.add(0, trip->path_->post(b.dy(), !trip->back_, trip->home_, trip->back_));
    });
  return result;
}

}  // namespace weft::distributed
