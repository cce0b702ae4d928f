#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

struct KernelWork {
  std::int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  ///< of products, attention and recurrences
  double bytes = 0;  ///< of the operands, each counted once: a lower bound of what was moved

  void add(const KernelWork& more) {
    calls += more.calls;
    seconds += more.seconds;
    flops += more.flops;
    bytes += more.bytes;
  }
};

/// Times the kernels that this thread runs between start() and stop(): with the clock on the CPU,
/// with events on a GPU, for which stop() waits. A kernel on a GPU is all that one call launches.
///
///   Profiler profiler;
///   profiler.start("forward");
///   const Tensor loss = model.loss(x, y);
///   profiler.phase("backward");
///   loss.backward();
///   profiler.stop();
///   std::fputs(profile_table(profiler, measure_rates(x.device(), x.dtype())).c_str(), stdout);
class Profiler {
 public:
  /// The calls of one kernel in one place.
  struct Entry {
    std::string phase;
    std::vector<std::string> scopes;  ///< outermost first
    std::string op;                   ///< "linear"; empty for kernels outside of recorded ops
    std::string kernel;               ///< "gemm_bias"
    KernelWork work;

    const std::string& label() const { return op.empty() ? kernel : op; }
  };

  Profiler();
  ~Profiler();
  Profiler(const Profiler&) = delete;

  /// Starts timing. A thread has one running profiler: throws Error if there is another.
  /// `phase`: the first name of the places of the kernels from now on; a string literal.
  void start(const char* phase);
  void phase(const char* phase);
  /// Stops timing; start() may follow.
  void stop();
  bool running() const;

  /// All timed kernels; call it after stop().
  std::vector<Entry> entries() const;
  /// Seconds between start() and stop(), and how often there was such a span.
  double seconds() const;
  std::int64_t spans() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Names a part of a model for the profiles of the kernels that run until it ends, and of their
/// backward. `name` must outlive the scope.
class ProfileScope {
 public:
  explicit ProfileScope(const char* name);
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;

 private:
  std::int32_t previous_;
};

}  // namespace weft
