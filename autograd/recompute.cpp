#include "weft/autograd/recompute.h"

namespace weft {
namespace {
constinit thread_local int replays = 0;
}  // namespace

constinit thread_local RegionMemory* RegionMemory::innermost_ = nullptr;

Tensor RegionMemory::next() {
  RegionMemory* m = innermost_;
  while (m && !m->given_) m = m->outer_;
  if (!m) return {};
  check(m->given_out_ < m->given_->size,
        "recompute: the second pass asks for more values than the first, which had {}",
        m->given_->size);
  return m->given_->items[m->given_out_++].get();
}

void RegionMemory::keep(const Tensor& value) {
  for (RegionMemory* m = innermost_; m && !m->given_; m = m->outer_) {
    RegionValues& all = m->collected_;
    check(all.size < 8, "recompute: at most 8 values may be kept for the second pass of a region");
    all.items[all.size++] = save(value, "a value of the first pass");
  }
}

bool recomputing() { return replays > 0; }

RecomputeRegion::RecomputeRegion()
    : tape_(Tape::current()), previous_(tape_->mode_), first_use_(tape_->counted_uses()) {
  check(tape_->outer_ == nullptr,
        "recompute: a recomputed region can be differentiated only once; one tape may record, got "
        "a tape inside another");
  tape_->mode_ = Tape::Mode::counting;
}
RecomputeRegion::~RecomputeRegion() {
  tape_->mode_ = previous_;
  if (!kept_) tape_->forget_uses(first_use_);
}

TensorList RecomputeRegion::stand_ins(const TensorList& inputs) {
  TensorList out;
  for (const Tensor& x : inputs) {
    Tensor y = x ? x.detach() : Tensor();
    if (x && Tape::follows(x)) Tape::follow_outputs(TensorRefs(TensorList{y}));
    out.push_back(std::move(y));
  }
  return out;
}

void RecomputeRegion::check_outputs(const TensorList& ys) {
  for (int i = 0; i < ys.size(); ++i)
    check(static_cast<bool>(ys[i]), "recompute: output {} must be a tensor, got a null handle", i);
}

TensorList RecomputeRegion::outputs(const TensorList& ys) {
  check_outputs(ys);
  TensorList out;
  for (const Tensor& y : ys) {
    Tensor own = y.detach();
    if (recording(y))
      Tape::record("recompute", {&y}, {&own}, [](Backward& b) { b.add(0, b.dy()); });
    out.push_back(std::move(own));
  }
  return out;
}

ReplayTape::ReplayTape(const RandomSnapshot& snapshot, const RegionValues& values)
    : random_(snapshot), memory_(&values), category_(Category::activation) {
  ++replays;
}
ReplayTape::~ReplayTape() { --replays; }

TensorList ReplayTape::leaves(const TensorList& inputs, const Backward& b) {
  tape_.parent_ = b.tape_;
  TensorList out;
  for (int i = 0; i < inputs.size(); ++i) {
    Tensor x = inputs[i] ? inputs[i].detach() : Tensor();
    if (b.needs(i)) x.set_requires_grad();
    out.push_back(std::move(x));
  }
  return out;
}

void ReplayTape::finish(const TensorList& results, int count, const TensorList& inputs,
                        Backward& b) {
  check(results.size() == count,
        "recompute: the second pass must return as many tensors as the first, {}, got {}", count,
        results.size());
  const TensorList outputs = RecomputeRegion::outputs(results);
  TensorList ys, dys;
  for (int i = 0; i < outputs.size(); ++i) {
    if (!b.dy(i) || !Tape::follows(outputs[i])) continue;
    ys.push_back(outputs[i]);
    dys.push_back(b.dy(i));
  }
  for (const Tensor& x : inputs)
    if (x && x.requires_grad()) tape_.want_gradient(x);
  tape_.run("recompute", ys, dys);
  for (int i = 0; i < inputs.size(); ++i) {
    if (!b.needs(i)) continue;
    if (Tensor g = tape_.take_gradient(inputs[i])) b.add(i, std::move(g));
  }
}

}  // namespace weft
