#include "weft/autograd/delayed_gradients.h"

#include <vector>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"

namespace weft {

struct DelayedGradients::Queue {
  const TensorImpl* weights[kMost];  // addresses only: the pool below must not keep weights alive
  int size = 0;
  detail::DelayedGradient jobs[kMost];
  int waiting = 0;

  void drop() {
    for (detail::DelayedGradient& job : jobs) job.clear();
    waiting = 0;
  }
};

namespace {

// In the order of backward, which is that of gradients that are not delayed.
template <class Queue>
void run_all(Queue& queue, Backward& b) {
  const int count = std::exchange(queue.waiting, 0);
  for (int i = 0; i < count; ++i) queue.jobs[i].run(b);
}

// Backward at a place. The tape may end before backward comes to it, as after an error.
template <class Queue>
struct AtPlace {
  explicit AtPlace(std::shared_ptr<Queue> q) : queue(std::move(q)) {}
  AtPlace(const AtPlace&) = default;
  ~AtPlace() { queue->drop(); }
  void operator()(Backward& b) { run_all(*queue, b); }

  std::shared_ptr<Queue> queue;
};

// A queue that no recording refers to, so that a warm pass allocates nothing.
template <class Queue>
std::shared_ptr<Queue> unused() {
  static thread_local std::vector<std::shared_ptr<Queue>> all;
  for (const std::shared_ptr<Queue>& queue : all)
    if (queue.use_count() == 1) return queue;
  return all.emplace_back(std::make_shared<Queue>());
}

}  // namespace

DelayedGradients DelayedGradients::here(const TensorRefs& weights) {
  check(weights.size() <= kMost, "delayed gradients: at most {} weights, got {}", kMost,
        weights.size());
  DelayedGradients later;
  bool followed = false;
  for (int i = 0; i < weights.size(); ++i) followed = followed || recording(weights[i]);
  if (!followed) return later;
  later.queue_ = unused<Queue>();
  for (int i = 0; i < weights.size(); ++i) later.queue_->weights[i] = weights[i].impl();
  later.queue_->size = weights.size();
  Tape::record("delayed_gradients", weights, TensorList(), AtPlace<Queue>(later.queue_));
  return later;
}

DelayedGradients::Place DelayedGradients::place_of(const Tensor& weight) const {
  Place place;
  for (int i = 0; queue_ && i < queue_->size; ++i)
    if (queue_->weights[i] == weight.impl()) {
      place.queue_ = queue_;
      place.input_ = i;
    }
  return place;
}

detail::DelayedGradient& DelayedGradients::Place::next_job() const {
  check(queue_->waiting < kMost,
        "delayed gradients: the weights of a place are used {} times at most, got one more", kMost);
  return queue_->jobs[queue_->waiting++];
}

}  // namespace weft
