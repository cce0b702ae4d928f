#pragma once
#include <utility>

namespace weft {

/// While one exists on a thread, its backward passes compute the gradients of weights (of linear,
/// grouped_linear and mlp) not where they come up but at the end of the pass, or when flush() is
/// called: by a backward that has started to communicate, for example, and would otherwise wait.
/// What they are computed from lives as long. Every gradient is the sum of the same parts in the
/// same order, so no bit of it changes. A recomputed region is a pass of its own.
class DelayWeightGradients {
 public:
  DelayWeightGradients() : previous_(std::exchange(on_, true)) {}
  ~DelayWeightGradients() { on_ = previous_; }
  DelayWeightGradients(const DelayWeightGradients&) = delete;
  /// Computes now what the passes that run on this thread have put off.
  static void flush();

 private:
  friend class Backward;
  friend class Tape;
  static constinit thread_local bool on_;
  bool previous_;
};

}  // namespace weft
