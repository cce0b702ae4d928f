// Parts of backward passes that wait.
#include "weft/autograd/delay_gradients.h"

#include "weft/autograd/tape_state.h"

namespace weft {

constinit thread_local bool DelayWeightGradients::on_ = false;

void* Tape::begin_put_off(const Backward& b, std::initializer_list<int> inputs,
                          std::size_t fn_bytes, Invoke invoke, Destroy destroy) {
  if (current_ != nullptr) return nullptr;
  for (const int i : inputs)
    if (b.needs(i) && slot(b.slots_[i]).leaf < 0) return nullptr;
  State& s = *state_;
  auto* ids = static_cast<std::uint64_t*>(s.arena.take(inputs.size() * sizeof(std::uint64_t)));
  auto* p = static_cast<PutOff*>(s.arena.take(sizeof(PutOff)));
  *p = {nullptr, b, s.arena.take(fn_bytes), invoke, destroy, ids, 0};
  p->backward.dy_ = nullptr;
  for (const int i : inputs) {
    if (!b.needs(i)) continue;
    ids[p->slot_count++] = b.slots_[i];
    ++slot(b.slots_[i]).put_off;
  }
  (s.first_put_off ? s.last_put_off->next : s.first_put_off) = p;
  s.last_put_off = p;
  return p->fn;
}

void Tape::run_put_off() {
  if (running_put_off_ || !state_->first_put_off) return;
  running_put_off_ = true;
  const NoGradGuard off;  // it may be called while a region is recorded once more
  struct Done {
    bool& flag;
    ~Done() { flag = false; }
  } done{running_put_off_};
  while (PutOff* p = state_->first_put_off) {
    state_->first_put_off = p->next;
    for (int i = 0; i < p->slot_count; ++i) --slot(p->slots[i]).put_off;
    {
      struct Destroyed {
        PutOff* p;
        ~Destroyed() { p->destroy(p->fn); }
      } destroyed{p};
      const RunningOp op(p->backward.op_);
      p->invoke(p->fn, p->backward);
    }
    for (int i = 0; i < p->slot_count; ++i) leaf_used(slot(p->slots[i]), 0);
  }
}

void DelayWeightGradients::flush() {
  for (Tape* t = Tape::running_; t; t = t->parent_) t->run_put_off();
}

}  // namespace weft
