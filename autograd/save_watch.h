#pragma once
#include <cstddef>

#include "weft/core/tensor.h"

namespace weft {

/// Sees the tensors that ops on this thread save for backward until the end of its scope, which
/// then hands them to the watch around it. Sees nothing where nothing is kept, as in the first pass
/// of a recomputed region, and under two tapes, whose saved tensors have two owners each.
class SaveWatch {
 public:
  /// One that is off sees nothing.
  explicit SaveWatch(bool on = true);
  ~SaveWatch();
  SaveWatch(const SaveWatch&) = delete;
  /// Called by save().
  static void saw(const Tensor& t);

 protected:
  /// How many handles this watch has seen, one for each save().
  std::size_t count() const;
  /// The i-th of them; null where it was taken out.
  Tensor seen(std::size_t i) const;
  /// Whether the i-th is there, and the first of its memory.
  bool is_first(std::size_t i) const;
  /// True if nothing but saved tensors, seen by this watch, and `others` further handles of t keep
  /// the whole memory of t alive. An op that saves t then is its only owner.
  bool only_saved(const Tensor& t, int others) const;
  /// Takes the handles of t's memory out.
  void forget(const Tensor& t);

 private:
  const std::size_t first_;
  const bool on_;
};

}  // namespace weft
