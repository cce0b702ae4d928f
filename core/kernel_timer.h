#pragma once
#include <atomic>
#include <cstdint>
#include <ranges>
#include <string>
#include <type_traits>

#include "weft/core/members.h"
#include "weft/core/tensor.h"

/// How dispatch() and the tape tell a Profiler (core/profile.h) what runs. Without one, each costs
/// the read of one flag.
namespace weft::detail {

extern std::atomic<int> profilers;  ///< how many threads are being profiled
inline bool profiling() { return profilers.load(std::memory_order_relaxed) != 0; }

/// Times one kernel of this thread; on the meta device, which skips it, only counts it.
class KernelTimer {
 public:
  /// `signature`: that of a function template whose argument is the kernel.
  KernelTimer(const char* signature, Device device, double bytes);
  /// Discards the call if done() was not called: the kernel threw.
  ~KernelTimer();
  KernelTimer(const KernelTimer&) = delete;
  /// Whether the profile tells calls with other operands apart; it then needs their names.
  bool wants_operands() const;
  void set_operands(const std::string& names);
  void done();

 private:
  bool times_, computes_;
};

/// Adds work that the operands of this thread's next kernel do not show.
void add_kernel_work(double flops, double bytes);
/// Adds the multiplications of `elements` sums of `terms` terms.
inline void count_product(std::int64_t elements, std::int64_t terms) {
  if (profiling()) [[unlikely]]
    add_kernel_work(2.0 * static_cast<double>(elements) * static_cast<double>(terms), 0);
}

/// Counts a launch of the running kernel: of CUDA code, a library's product or a copy.
void add_kernel_launch();
inline void count_launch() {
  if (profiling()) [[unlikely]]
    add_kernel_launch();
}

/// The kernels that this thread has run since the last call belong to this op, a string literal.
void end_profiled_op(const char* op);

/// The scope in which an op was recorded, which its backward enters again; 0: none.
std::int32_t profile_scope();
void set_profile_scope(std::int32_t scope);

/// Bytes of an operand, with repeated elements counted once.
inline double operand_bytes(const Tensor& t) {
  if (!t.defined()) return 0;
  auto bytes = static_cast<double>(size_of(t.dtype()));
  for (int i = 0; i < t.ndim(); ++i)
    if (t.strides()[i] != 0) bytes *= static_cast<double>(t.dim(i));
  return bytes;
}
/// The sum over the tensors in a struct or a list; 0 for anything else.
template <class T>
double operand_bytes(const T& value) {
  double bytes = 0;
  if constexpr (std::ranges::range<T>) {
    for (const auto& item : value) bytes += operand_bytes(item);
  } else if constexpr (std::is_aggregate_v<T> && !std::is_empty_v<T>) {
    for_each_member(value, [&](const auto& member) { bytes += operand_bytes(member); });
  }
  return bytes;
}

/// Adds the bytes of an operand that this thread's next kernel both reads and writes.
inline void count_update(const Tensor& t) {
  if (profiling()) [[unlikely]]
    add_kernel_work(0, operand_bytes(t));
}

/// Appends "bf16 64x768, " for a tensor, with a t if its last two axes are exchanged in memory, the
/// same for those in a struct, and "3 tensors, " for a list.
void add_operand(std::string& names, const Tensor& t);
template <class T>
void add_operand(std::string& names, const T& value) {
  if constexpr (std::ranges::range<T>) {
    if constexpr (std::is_same_v<std::ranges::range_value_t<T>, Tensor>)
      names += std::to_string(std::ranges::distance(value)) + " tensors, ";
  } else if constexpr (std::is_aggregate_v<T> && !std::is_empty_v<T>) {
    for_each_member(value, [&](const auto& member) { add_operand(names, member); });
  }
}

}  // namespace weft::detail
