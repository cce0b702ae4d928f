#pragma once
#include <utility>

#include "weft/autograd/backward.h"
#include "weft/autograd/save_watch.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/restorer.h"

namespace weft {

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
  DiscardScope() = default;

  /// Releases the memory of y, whose handle the caller gives up, until backward reads it; then
  /// again(inputs) must give the same bits. It is not recorded, and draws random numbers only by a
  /// key. Does nothing where no op has saved y or another handle than those of the saving ops
  /// refers to its memory: a tensor that the caller of a layer holds stays as it is.
  /// Saves   inputs, at most 8
  /// Throws  Error, in backward, if an input was changed in place or again() returns another shape
  template <class F>
  void discard(Tensor y, const TensorList& inputs, F again) {
    if (!releasable(y)) return;
    const std::int64_t bytes = detail::save_log.bytes;
    auto* const restorer = new Again<F>(y, inputs, std::move(again));
    detail::save_log.bytes = bytes;  // they belong to no op
    forget(y);
    release_until_needed(y.storage(), restorer);
  }

 private:
  template <class F>
  struct Again : Restorer {
    Again(const Tensor& y, const TensorList& in, F f)
        : shape(y.shape()), category(y.storage()->category), again(std::move(f)) {
      for (const Tensor& x : in) inputs.add(x, "an input");
    }
    void restore(Storage& s) override {
      const NoGradGuard off;
      const CategoryScope scope(category);
      fill(s, again(inputs.get()), shape);
    }
    const Shape shape;
    const Category category;
    SavedList inputs;
    const F again;
  };

  bool releasable(const Tensor& y) const;
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
