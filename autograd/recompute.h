#pragma once
#include "weft/autograd/fp8.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/random.h"

namespace weft {

/// True while a recomputed region runs its second forward pass. Counters, loggers and routers check
/// it so as not to count twice.
bool recomputing();

/// The values of first_pass_value() in one pass of a region; active until the end of its scope.
class RegionMemory {
 public:
  /// For a first pass, which collects values; with `of_first` for a second, which replays them.
  RegionMemory() = default;
  explicit RegionMemory(const SavedList& of_first) : values_(of_first), second_(true) {}
  ~RegionMemory() { innermost_ = outer_; }
  RegionMemory(const RegionMemory&) = delete;
  const SavedList& values() const { return values_; }
  /// The memory of the innermost second pass, or null.
  static RegionMemory* second_pass();
  /// The next value to replay in the innermost second pass; null outside of a second pass.
  static Tensor next();
  /// Stores the value in every first pass that is active inside the innermost second pass.
  static void keep(const Tensor& value);

 private:
  static constinit thread_local RegionMemory* innermost_;
  RegionMemory* const outer_ = std::exchange(innermost_, this);
  SavedList values_;
  const bool second_ = false;
  int given_ = 0;
};

/// Returns fn(), a tensor; in the second pass of a region, the tensor that fn() returned in the
/// first pass. For values from a state that changes between passes, like a running count. They are
/// replayed in order.
/// Throws Error for more than 8 in a region, and if the second pass reads more than were kept.
template <class F>
Tensor first_pass_value(F fn) {
  Tensor value = RegionMemory::next();
  if (!value.defined()) value = fn();
  RegionMemory::keep(value);
  return value;
}

/// The first pass of a region: a tape that counts the uses of leaves and saves nothing. The
/// surrounding tape does not record its ops.
class FirstPass : Tape {
 public:
  /// Throws Error when more than one tape records.
  FirstPass();
  /// The inputs, detached: same values, on this tape like any intermediate.
  static TensorList stand_ins(const TensorList& inputs);
  /// Call it if backward will run the region again: the outer tape then expects every counted use.
  void keep() { hand_uses_to(*around()); }
  const SavedList& values() const { return memory_.values(); }

 private:
  RegionMemory memory_;
};

/// The second pass: a separate tape that adds leaf gradients to the tape that runs b.
class SecondPass : Tape {
 public:
  SecondPass(const Backward& b, const RandomSnapshot& snapshot, const SavedList& values);
  /// The inputs as leaves; those that need a gradient require one.
  static TensorList stand_ins(const TensorList& inputs, const Backward& b);
  /// Runs backward from the region's outputs and passes the gradients of the inputs to b.
  /// Throws Error unless the region returned `count` tensors.
  void finish(const TensorList& results, int count, const TensorList& inputs, Backward& b);

 private:
  RandomReplay random_;
  RegionMemory memory_;
  CategoryScope category_;
};

/// The tensors that a region returns. Under a tape each becomes the output of its own op: a region
/// may return an input or an outside tensor, whose gradient needs a path back.
/// Throws Error when one is null.
TensorList region_outputs(const TensorList& ys);

/// fn(inputs) without keeping the tensors that its ops save: backward runs fn again, with the same
/// random numbers. Trades one more forward pass of the region for that memory.
///
/// fn      TensorList -> TensorList; must compute the same result again for equal inputs. It may
///         use parameters directly: their gradients arrive as usual. Null inputs stay null
/// Saves   the inputs, and the values of first_pass_value()
/// Throws  Error when more than one tape records (a recomputed region is once differentiable), on
///         more than 5 inputs, when fn returns a null tensor, and, in backward, when an input or a
///         kept value was changed in place or fn returns a different number of tensors
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
               [fn = std::move(fn), saved, values, snapshot, count = outputs.size(),
                recipe = fp8::Autocast::state()](Backward& b) {
                 const fp8::Autocast scope(recipe);
                 const TensorList originals = saved.get();
                 SecondPass pass(b, snapshot, values);
                 const TensorList xs = pass.stand_ins(originals, b);
                 pass.finish(fn(xs), count, xs, b);
               });
  return outputs;
}

/// recompute() for one input and one output.
template <class F>
Tensor recompute(F fn, const Tensor& x) {
  return recompute([fn = std::move(fn)](const TensorList& in) { return TensorList{fn(in[0])}; },
                   TensorList{x})[0];
}

}  // namespace weft
