#include "weft/autograd/recompute.h"

namespace weft {

constinit thread_local RegionMemory* RegionMemory::innermost_ = nullptr;

RegionMemory* RegionMemory::second_pass() {
  RegionMemory* m = innermost_;
  while (m && !m->second_) m = m->outer_;
  return m;
}

Tensor RegionMemory::next() {
  RegionMemory* const m = second_pass();
  if (!m) return {};
  check(m->given_ < m->values_.size,
        "recompute: the second pass asks for more values than the first, which had {}",
        m->values_.size);
  return m->values_.items[m->given_++].get();
}

void RegionMemory::keep(const Tensor& value) {
  for (RegionMemory* m = innermost_; m && !m->second_; m = m->outer_) {
    check(m->values_.size < 8,
          "recompute: at most 8 values may be kept for the second pass of a region");
    m->values_.add(value, "a value of the first pass");
  }
}

bool recomputing() { return RegionMemory::second_pass() != nullptr; }

FirstPass::FirstPass() : Tape(Mode::counting, nullptr) {
  check(around()->outer() == nullptr,
        "recompute: a recomputed region can be differentiated only once; one tape may record, got "
        "a tape inside another");
}

TensorList FirstPass::stand_ins(const TensorList& inputs) {
  TensorList out;
  for (const Tensor& x : inputs) {
    Tensor y = x.defined() ? x.detach() : Tensor();
    if (x.defined() && follows(x)) number({&y});
    out.push_back(std::move(y));
  }
  return out;
}

SecondPass::SecondPass(const Backward& b, const RandomSnapshot& snapshot, const SavedList& values)
    : Tape(Mode::recording, tape_of(b)),
      random_(snapshot),
      memory_(values),
      category_(Category::activation) {}

TensorList SecondPass::stand_ins(const TensorList& inputs, const Backward& b) {
  TensorList out;
  for (int i = 0; i < inputs.size(); ++i) {
    Tensor x = inputs[i].defined() ? inputs[i].detach() : Tensor();
    if (b.needs(i)) x.set_requires_grad();
    out.push_back(std::move(x));
  }
  return out;
}

void SecondPass::finish(const TensorList& results, int count, const TensorList& inputs,
                        Backward& b) {
  check(results.size() == count,
        "recompute: the second pass must return as many tensors as the first, {}, got {}", count,
        results.size());
  const TensorList outputs = region_outputs(results);
  TensorList ys, dys;
  for (int i = 0; i < outputs.size(); ++i) {
    if (!b.dy(i).defined() || !follows(outputs[i])) continue;
    ys.push_back(outputs[i]);
    dys.push_back(b.dy(i));
  }
  check_can_run("recompute", ys, dys);
  TensorList dxs = collect("recompute", ys, dys, inputs);
  for (int i = 0; i < inputs.size(); ++i)
    if (dxs[i].defined()) b.add(i, std::move(dxs[i]));
}

TensorList region_outputs(const TensorList& ys) {
  for (int i = 0; i < ys.size(); ++i)
    check(ys[i].defined(), "recompute: output {} must be a tensor, got a null handle", i);
  if (!Tape::current()) return ys;
  TensorList out;
  for (const Tensor& y : ys) {
    Tensor own = y.detach();
    if (recording(y))
      Tape::record("recompute", {&y}, {&own}, [](Backward& b) { b.add(0, b.dy()); });
    out.push_back(std::move(own));
  }
  return out;
}

}  // namespace weft
