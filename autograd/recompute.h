#pragma once
#include <utility>

#include "weft/autograd/tape.h"
#include "weft/core/random.h"

namespace weft {

/// True while a recompute region runs its forward a second time: counters, loggers and routers look
/// here so that they never count twice.
bool recomputing();

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
  /// Stand-ins for the inputs: same values, followed like any intermediate.
  static TensorList stand_ins(const TensorList& inputs);

 private:
  Tape* tape_;
  Tape::Mode previous_;
  std::size_t first_use_;
  bool kept_ = false;
};

/// The second pass: a tape of its own whose leaf gradients go to the tape that is running.
class ReplayTape {
 public:
  explicit ReplayTape(const RandomSnapshot& snapshot);
  ~ReplayTape();
  /// Leaves with the values of the inputs; those that need a gradient require one.
  TensorList leaves(const TensorList& inputs, const Backward& b);
  /// Runs backward from the outputs and hands the gradients of the inputs to b.
  void finish(const TensorList& outputs, const TensorList& inputs, Backward& b);

 private:
  RandomReplay random_;
  CategoryScope category_;
  Tape tape_;
};

/// fn(inputs) without keeping what its ops save: backward runs fn a second time, with the same
/// random numbers, to get it back. Trades one more forward pass of the region for its memory.
///
/// fn      TensorList -> TensorList; must compute the same thing when called again with equal
/// inputs.
///         It may use parameters directly: their gradients arrive as usual.
/// Saves   the inputs only
/// Throws  Error when more than one tape records (a recomputed region is once differentiable)
/// Source  Chen, Xu, Zhang, Guestrin 2016, arXiv:1604.06174
template <class F>
TensorList recompute(F fn, const TensorList& inputs) {
  if (!Tape::current()) return fn(inputs);
  const RandomSnapshot snapshot = RandomSnapshot::take();
  TensorList outputs;
  bool followed = false;
  {
    RecomputeRegion region;
    const TensorList ys = fn(RecomputeRegion::stand_ins(inputs));
    for (const Tensor& y : ys) {
      followed = followed || Tape::follows(y);
      outputs.push_back(y.detach());
    }
    if (followed) region.keep();
  }
  if (!followed) return outputs;
  struct SavedInputs {
    Saved items[5];
    int size = 0;
  } saved;
  check(inputs.size() <= 5, "recompute: at most 5 inputs, got {}", inputs.size());
  for (const Tensor& x : inputs) saved.items[saved.size++] = save(x, "an input");
  Tape::record("recompute", inputs, outputs, [fn = std::move(fn), saved, snapshot](Backward& b) {
    TensorList originals;
    for (int i = 0; i < saved.size; ++i) originals.push_back(saved.items[i].get());
    ReplayTape replay(snapshot);
    const TensorList xs = replay.leaves(originals, b);
    replay.finish(fn(xs), xs, b);
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
