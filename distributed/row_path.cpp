#include "weft/distributed/row_path.h"

#include <numeric>
#include <utility>

#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"

namespace weft::distributed {

struct RowsUnderWay::Trip {
  std::shared_ptr<const RowPath> path;
  bool back = false;  // and then nothing is computed in between
  Tensor result;
  std::vector<Work> forth, home;

  void wait(std::vector<Work>& works) {
    for (Work& w : works) w.wait();
    works.clear();
  }
};

void RowPath::all_to_all(ProcessGroup& group, Rows in_rows, Rows out_rows) {
  if (group.size() > 1) legs_.push_back({&group, false, std::move(in_rows), std::move(out_rows)});
}

void RowPath::gather(ProcessGroup& group, Rows rows) {
  if (group.size() > 1) legs_.push_back({&group, true, {}, std::move(rows)});
}

Tensor RowPath::post(const Tensor& x, bool back, std::vector<Work>& works, bool at_once) const {
  const NoGradGuard quiet;
  Tensor in = contiguous(x);
  const auto result = [&](std::int64_t rows) {
    Shape shape = in.shape();
    shape[0] = rows;
    return Tensor::empty(shape, in.dtype(), in.device());
  };
  for (std::size_t i = 0; i < legs_.size(); ++i) {
    const Leg& leg = legs_[back ? legs_.size() - 1 - i : i];
    ProcessGroup& group = at_once ? leg.group->at_once() : *leg.group;
    const Rows& come = back && !leg.gathers ? leg.in : leg.out;
    const bool sums = back && leg.gathers;
    const Tensor out = result(sums ? come[static_cast<std::size_t>(group.rank())]
                                   : std::accumulate(come.begin(), come.end(), std::int64_t{0}));
    // The next leg reads what this one writes: the communication thread keeps their order.
    if (sums)
      works.push_back(group.reduce_scatter(out, in, come));
    else if (leg.gathers)
      works.push_back(group.all_gather(out, in, come));
    else
      works.push_back(group.all_to_all(out, in, come, back ? leg.out : leg.in));
    in = out;
  }
  return in;
}

RowsUnderWay RowsUnderWay::begin(const Tensor& x, std::shared_ptr<Trip> trip) {
  RowsUnderWay rows;
  rows.mark = x;
  if (trip->path->empty()) return rows;
  trip->result = trip->path->post(x, trip->back, trip->forth, trip->back);
  if (recording(x)) {
    rows.mark = x.detach();
    Tape::record("depart", {&x}, {&rows.mark}, [trip](Backward& b) {
      b.once_differentiable();
      trip->wait(trip->home);
      b.add(0, b.dy());
    });
  }
  rows.trip = std::move(trip);
  return rows;
}

RowsUnderWay depart(const Tensor& x, const std::shared_ptr<const RowPath>& path) {
  auto trip = std::make_shared<RowsUnderWay::Trip>();
  trip->path = path;
  return RowsUnderWay::begin(x, std::move(trip));
}

Tensor travel_back(const Tensor& x, const std::shared_ptr<const RowPath>& path) {
  auto trip = std::make_shared<RowsUnderWay::Trip>();
  trip->path = path;
  trip->back = true;
  return arrive(RowsUnderWay::begin(x, std::move(trip)));
}

Tensor arrive(RowsUnderWay rows) {
  if (!rows.trip) return rows.mark;
  const std::shared_ptr<RowsUnderWay::Trip> trip = std::move(rows.trip);
  trip->wait(trip->forth);
  Tensor result = std::move(trip->result);
  if (recording(rows.mark))
    Tape::record("arrive", {&rows.mark}, {&result}, [trip](Backward& b) {
      b.once_differentiable();
      b.add(0, trip->path->post(b.dy(), !trip->back, trip->home, trip->back));
    });
  return result;
}

}  // namespace weft::distributed
