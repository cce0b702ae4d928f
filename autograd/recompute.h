#pragma once
#include <utility>

#include "weft/autograd/tape.h"
#include "weft/core/random.h"

namespace weft {

/// True while a recompute region runs its forward a second time: counters, loggers and routers look
/// here so that they never count twice.
bool recomputing();

/// What first_pass_value() keeps of a region's first pass for its second.
struct RegionValues {
  Saved items[8];
  int size = 0;
};

/// Takes part in first_pass_value() until the end of its scope.
class RegionMemory {
 public:
  /// Of a first pass: collects. Of a second: `given` gives back.
  explicit RegionMemory(const RegionValues* given = nullptr) : given_(given), outer_(innermost_) {
    innermost_ = this;
  }
  ~RegionMemory() { innermost_ = outer_; }
  RegionMemory(const RegionMemory&) = delete;
  const RegionValues& collected() const { return collected_; }
  /// The next value that the innermost second pass has to give; null outside of one.
  static Tensor next();
  /// Kept by every first pass that runs, inside the innermost second pass.
  static void keep(const Tensor& value);

 private:
  const RegionValues* given_;
  int given_out_ = 0;
  RegionValues collected_;
  RegionMemory* outer_;
  static constinit thread_local RegionMemory* innermost_;
};

/// fn(), a tensor; in the second pass of a region what fn() gave in the first: for what comes from
/// a state that moves on between the two, like a running count. Values come back in their order.
/// Throws Error for more than 8 in a region, and when the second pass asks for more than the first
template <class F>
Tensor first_pass_value(F fn) {
  Tensor value = RegionMemory::next();
  if (!value) value = fn();
  RegionMemory::keep(value);
  return value;
}

/// The unrecorded first pass of a region: its ops count the leaves they use and save nothing.
class RecomputeRegion {
 public:
  /// Throws Error when more than one tape records.
  RecomputeRegion();
  ~RecomputeRegion();
  RecomputeRegion(const RecomputeRegion&) = delete;
  /// Backward will run the region again. Otherwise (nothing to differentiate, or an exception) the
  /// uses that were counted do not count.
  void keep() { kept_ = true; }
  const RegionValues& values() const { return memory_.collected(); }
  /// Stand-ins for the inputs: same values, followed like any intermediate.
  static TensorList stand_ins(const TensorList& inputs);
  /// What a region returns, each as the output of an op of its own: an input that it hands on, or a
  /// tensor from outside, is older than the region, and its gradient needs a way back there.
  /// Throws Error when one is null.
  static TensorList outputs(const TensorList& ys);
  static void check_outputs(const TensorList& ys);

 private:
  Tape* tape_;
  Tape::Mode previous_;
  std::size_t first_use_;
  bool kept_ = false;
  RegionMemory memory_;
};

/// The second pass: a tape of its own whose leaf gradients go to the tape that is running.
class ReplayTape {
 public:
  ReplayTape(const RandomSnapshot& snapshot, const RegionValues& values);
  ~ReplayTape();
  /// Leaves with the values of the inputs; those that need a gradient require one.
  TensorList leaves(const TensorList& inputs, const Backward& b);
  /// Runs backward from what the region returned and hands the gradients of the inputs to b.
  /// Throws Error unless these are `count` tensors.
  void finish(const TensorList& results, int count, const TensorList& inputs, Backward& b);

 private:
  RandomReplay random_;
  RegionMemory memory_;
  CategoryScope category_;
  Tape tape_;
};

/// fn(inputs) without keeping what its ops save: backward runs fn a second time, with the same
/// random numbers, to get it back. Trades one more forward pass of the region for its memory.
///
/// fn      TensorList -> TensorList; must compute the same thing when called again with equal
/// inputs.
///         It may use parameters directly: their gradients arrive as usual. A null input is
///         handed to it as it is
/// Saves   the inputs, and what first_pass_value() keeps
/// Throws  Error when more than one tape records (a recomputed region is once differentiable), on
///         more than 5 inputs, when fn returns a null tensor, and, in backward, when an input or a
///         kept value was changed in place or fn returns another number of tensors
/// Source  Chen, Xu, Zhang, Guestrin 2016, arXiv:1604.06174
template <class F>
TensorList recompute(F fn, const TensorList& inputs) {
  if (!Tape::current()) {
    TensorList outputs = fn(inputs);
    RecomputeRegion::check_outputs(outputs);
    return outputs;
  }
  check(inputs.size() <= 5, "recompute: at most 5 inputs, got {}", inputs.size());
  const RandomSnapshot snapshot = RandomSnapshot::take();
  TensorList outputs;
  RegionValues values;
  bool followed = false;
  {
    RecomputeRegion region;
    const TensorList ys = RecomputeRegion::outputs(fn(RecomputeRegion::stand_ins(inputs)));
    for (const Tensor& y : ys) {
      followed = followed || Tape::follows(y);
      outputs.push_back(y.detach());
    }
    if (followed) region.keep();
    values = region.values();
  }
  if (!followed) return outputs;
  struct SavedInputs {
    Saved items[5];
    int size = 0;
  } saved;
  for (const Tensor& x : inputs) saved.items[saved.size++] = save(x, "an input");
  Tape::record("recompute", inputs, outputs,
               [fn = std::move(fn), saved, values, snapshot, count = outputs.size()](Backward& b) {
                 TensorList originals;
                 for (int i = 0; i < saved.size; ++i) originals.push_back(saved.items[i].get());
                 ReplayTape replay(snapshot, values);
                 const TensorList xs = replay.leaves(originals, b);
                 replay.finish(fn(xs), count, xs, b);
               });
  return outputs;
}

/// The form for one input and one output.
template <class F>
Tensor recompute(F fn, const Tensor& x) {
  return recompute([fn = std::move(fn)](const TensorList& in) { return TensorList{fn(in[0])}; },
                   TensorList{x})[0];
}

}  // namespace weft
