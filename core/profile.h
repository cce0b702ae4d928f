#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft {

/// The work of kernels.
struct KernelWork {
  std::int64_t calls = 0;
  double seconds = 0;  ///< 0 on the meta device
  /// Of matrix products, attention and LSTM and GRU; packed rows and delta nets count none.
  double flops = 0;
  /// The sizes of the operands, each counted once, and twice if it is updated. More than what was
  /// moved if a kernel reads some rows of an operand.
  double bytes = 0;
  std::int64_t launches = 0;  ///< on a GPU: of its kernels, library products and copies

  void add(const KernelWork& more) {
    calls += more.calls;
    seconds += more.seconds;
    flops += more.flops;
    bytes += more.bytes;
    launches += more.launches;
  }
};

/// Times the kernels that this thread runs between start() and stop(): with the clock on the CPU,
/// with events on a GPU. On a GPU one entry covers everything that a call launches, with the gaps
/// between the launches; where the host is slower than the GPU, kernels seem to take the host's
/// time. Kernels that the meta device skips are counted, in no time. Use and destroy it on one
/// thread.
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
    /// "linear". A kernel outside of recorded ops counts to the next op; empty if none follows.
    std::string op;
    std::string kernel;  ///< "gemm_bias"
    KernelWork work;
    std::string operands = {};  ///< "bf16 64x768, bf16 768x32t"; empty unless asked for

    const std::string& label() const { return op.empty() ? kernel : op; }
  };

  /// `by_operands`: calls with other dtypes or shapes are other entries. Their names cost the host
  /// about a microsecond a call.
  explicit Profiler(bool by_operands = false);
  ~Profiler();
  Profiler(const Profiler&) = delete;

  /// Starts timing in this phase, the first name of the kernels' places; a string literal.
  /// Throws Error if this thread has a running profiler.
  void start(const char* phase);
  /// Begins another phase.
  void phase(const char* phase);
  /// Stops timing and waits for the GPU; start() may follow.
  /// Throws Error if it is not running, or if the GPU reports a fault.
  void stop();
  /// Stops timing and forgets what ran since start().
  void discard();
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

/// Names a part of a model for the profile of the kernels that run until the scope ends, and of
/// their backward. A scope that begins while no profiler runs has no effect.
class ProfileScope {
 public:
  explicit ProfileScope(const char* name);
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;

  /// The number of this thread's innermost scope; 0: none.
  static std::int32_t current();
  /// The names of the scope with this number and of those around it, outermost first. Numbers are
  /// those of the calling thread.
  static std::vector<std::string> path(std::int32_t number);

 private:
  std::int32_t previous_;
};

}  // namespace weft
