#pragma once
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/random.h"

namespace weft {

/// True while a recompute region runs its forward a second time: counters, loggers and routers look
/// here so that they never count twice.
bool recomputing();

/// The part of a pass of a region in first_pass_value(), until the end of its scope.
class RegionMemory {
 public:
  /// Of a first pass: collects values. Of a second: gives them back.
  RegionMemory() = default;
  explicit RegionMemory(const SavedList& of_first) : values_(of_first), second_(true) {}
  ~RegionMemory() { innermost_ = outer_; }
  RegionMemory(const RegionMemory&) = delete;
  const SavedList& values() const { return values_; }
  /// That of the innermost second pass, or null.
  static RegionMemory* second_pass();
  /// The next value that the innermost second pass has to give; null outside of one.
  static Tensor next();
  /// Kept by every first pass that runs, inside the innermost second pass.
  static void keep(const Tensor& value);

 private:
  static constinit thread_local RegionMemory* innermost_;
  RegionMemory* const outer_ = std::exchange(innermost_, this);
  SavedList values_;
  const bool second_ = false;
  int given_ = 0;
};

/// fn(), a tensor; in the second pass of a region what fn() gave in the first: for what comes from
/// a state that moves on between the two, like a running count. Values come back in their order.
/// Throws Error for more than 8 in a region, and when the second pass asks for more than the first
template <class F>
Tensor first_pass_value(F fn) {
  Tensor value = RegionMemory::next();
  if (!value.defined()) value = fn();
  RegionMemory::keep(value);
  return value;
}

/// The first pass of a region: a tape that counts the leaves that ops use and keeps nothing else.
/// The tape around it does not hear them.
class FirstPass : Tape {
 public:
  /// Throws Error when more than one tape records.
  FirstPass();
  /// Stand-ins for the inputs: same values, followed like any intermediate.
  static TensorList stand_ins(const TensorList& inputs);
  /// Backward will run the region again: the tape waits for every use that was counted.
  void keep() { hand_uses_to(*around()); }
  const SavedList& values() const { return memory_.values(); }

 private:
  RegionMemory memory_;
};

/// The second pass: a tape of its own whose leaf gradients go to the tape that runs b.
class SecondPass : Tape {
 public:
  SecondPass(const Backward& b, const RandomSnapshot& snapshot, const SavedList& values);
  /// Leaves with the values of the inputs; those that need a gradient require one.
  static TensorList stand_ins(const TensorList& inputs, const Backward& b);
  /// Runs backward from what the region returned and hands the gradients of the inputs to b.
  /// Throws Error unless these are `count` tensors.
  void finish(const TensorList& results, int count, const TensorList& inputs, Backward& b);

 private:
  RandomReplay random_;
  RegionMemory memory_;
  CategoryScope category_;
};

/// What a region returns, each under a tape as the output of an op of its own: an input that it
/// hands on, or a tensor from outside, is older than the region, and its gradient needs a way back.
/// Throws Error when one is null.
TensorList region_outputs(const TensorList& ys);

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
  if (!Tape::current()) return region_outputs(fn(inputs));
  check(inputs.size() <= 5, "recompute: at most 5 inputs, got {}", inputs.size());
  const RandomSnapshot snapshot = RandomSnapshot::take();
  TensorList outputs;
  SavedList values;
  bool followed = false;
  {
    FirstPass pass;
    for (const Tensor& y : region_outputs(fn(pass.stand_ins(inputs)))) {
      followed = followed || Tape::follows(y);
      outputs.push_back(y.detach());
    }
    if (followed) pass.keep();
    values = pass.values();
  }
  if (!followed) return outputs;
  SavedList saved;
  for (const Tensor& x : inputs) saved.add(x, "an input");
  Tape::record("recompute", inputs, outputs,
               [fn = std::move(fn), saved, values, snapshot, count = outputs.size()](Backward& b) {
                 const TensorList originals = saved.get();
                 SecondPass pass(b, snapshot, values);
                 const TensorList xs = pass.stand_ins(originals, b);
                 pass.finish(fn(xs), count, xs, b);
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
