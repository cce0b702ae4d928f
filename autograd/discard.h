#pragma once
#include <memory>
#include <utility>

#include "weft/autograd/backward.h"
#include "weft/autograd/save_watch.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/restorer.h"

namespace weft {

/// Computes a released tensor again.
class Recomputation : public Restorer {
 public:
  virtual Tensor compute() = 0;
};

/// What an op keeps of an input y in place of y, such as its FP8 codes, and how it is made. An op
/// passes it to DiscardScope::keeps_made().
class MadeFrom : public Restorer {
 public:
  /// The same bits from a y that was computed again. Not recorded.
  virtual Tensor make(const Tensor& y) = 0;

 private:
  friend class DiscardScope;
  void restore(Storage& s) final;
  std::unique_ptr<Recomputation> y_;
};

/// Releases outputs of cheap ops between forward and backward. The op that uses such an output y
/// saves it, so recomputing y's own op would keep nothing less; instead the memory of y is released
/// once its users have run, and computed again when a backward first asks for it.
///
///   DiscardScope scope;
///   Tensor y = gelu(h);
///   const Tensor out = linear(y, weight);
///   scope.discard(std::move(y), {h}, [](const TensorList& in) { return gelu(in[0]); });
///
/// Open the scope before y is computed and call discard() after its last use in forward.
/// Source  Narayanan et al., Megatron-LM: the output-discarding form of activation checkpointing
class DiscardScope : SaveWatch {
 public:
  DiscardScope() { ++open_; }
  ~DiscardScope() {
    if (--open_ == 0) drop_made();
  }
  /// Whether this thread has one open.
  static bool any() { return open_ > 0; }
  /// An op has saved `made`, which discard(y) then releases in place of y.
  static void keeps_made(const Tensor& y, const Tensor& made, std::unique_ptr<MadeFrom> how);

  /// Releases the memory of y, whose handle the caller gives up, until backward reads it; then
  /// again(inputs) must give the same bits. It is not recorded, and draws random numbers only by a
  /// key. Does nothing where no op has saved y or another handle than those of the saving ops
  /// refers to its memory: a tensor that the caller of a layer holds stays as it is.
  /// Saves   inputs, at most 8
  /// Throws  Error, in backward, if an input was changed in place or again() returns another shape
  template <class F>
  void discard(Tensor y, const TensorList& inputs, F again) {
    const std::int64_t bytes = detail::save_log.bytes;
    if (releasable(y)) {
      auto* const restorer = new Again<F>(y, inputs, std::move(again));
      forget(y);
      release_until_needed(y.storage(), restorer);
    } else {
      for (int i = next_made(y, 0); i >= 0; i = next_made(y, i + 1))
        release_made(i, std::make_unique<Again<F>>(y, inputs, again));
    }
    detail::save_log.bytes = bytes;  // the inputs belong to no op
  }

 private:
  template <class F>
  struct Again : Recomputation {
    Again(const Tensor& y, const TensorList& in, F f)
        : shape(y.shape()), category(y.storage()->category), again(std::move(f)) {
      for (const Tensor& x : in) inputs.add(x, "an input");
    }
    Tensor compute() override { return again(inputs.get()); }
    void restore(Storage& s) override {
      const NoGradGuard off;
      const CategoryScope scope(category);
      fill(s, compute(), shape);
    }
    const Shape shape;
    const Category category;
    SavedList inputs;
    const F again;
  };

  static constinit thread_local int open_;

  bool releasable(const Tensor& y) const;
  /// The first of what ops have made of y, from place i on, that can be released; -1: none.
  int next_made(const Tensor& y, int i) const;
  void release_made(int i, std::unique_ptr<Recomputation> y);
  static void drop_made();
  friend class MadeFrom;
  static void fill(Storage& s, const Tensor& y, const Shape& shape);
};

/// use(make(inputs)), which does not keep make's output for backward if `on`: see DiscardScope.
template <class Make, class Use>
Tensor use_discarded(bool on, const TensorList& inputs, Make make, const Use& use) {
  if (!on) return use(make(inputs));
  DiscardScope scope;
  Tensor y = make(inputs);
  Tensor out = use(y);
  scope.discard(std::move(y), inputs, std::move(make));
  return out;
}

}  // namespace weft
