#pragma once
#include <csignal>
#include <cstddef>
#include <cstdlib>

namespace weft::detail {

/// Gives this thread a stack for signal handlers (those with SA_ONSTACK) until the end of the
/// scope, unless it has one already, as under sanitizers. oneDNN's products use the stack pointer
/// for packed operands: a handler that runs below it would write into the heap.
class SignalStack {
 public:
  SignalStack() {
    stack_t there = {};
    if (sigaltstack(nullptr, &there) != 0 || !(there.ss_flags & SS_DISABLE)) return;
    memory_ = std::malloc(kBytes);
    const stack_t own{memory_, 0, kBytes};
    if (memory_) sigaltstack(&own, nullptr);
  }
  ~SignalStack() {
    if (!memory_) return;
    const stack_t none{nullptr, SS_DISABLE, 0};
    sigaltstack(&none, nullptr);
    std::free(memory_);
  }
  SignalStack(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kBytes = 64 << 10;
  void* memory_ = nullptr;
};

}  // namespace weft::detail
