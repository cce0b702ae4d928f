#pragma once
#include <cstddef>
#include <vector>

#include "weft/cuda/gemm_plan.h"

namespace weft::cuda::lt {

inline constexpr std::size_t kWorkspace = 32 << 20;  ///< the size that the library wants on Hopper

/// A product prepared for the library: its descriptors, and the algorithms that the heuristic
/// offers, the best guess first.
class Plan {
 public:
  /// Asks for at most `wanted` algorithms.
  /// Throws Error (Fault::system) when the library reports anything but a lack of algorithms.
  Plan(Handle handle, const Product& p, const ProductData& data, int wanted);
  ~Plan();
  Plan(const Plan&) = delete;

  /// False when the product must be computed in parts.
  bool possible() const { return !algorithms_.empty(); }
  void forbid() { algorithms_.clear(); }
  int offered() const { return static_cast<int>(algorithms_.size()); }
  void select(int algorithm) { selected_ = static_cast<std::size_t>(algorithm); }

  /// Launches the selected algorithm. False when the library refuses it, although its heuristic
  /// offered it.
  /// Throws Error (Fault::system) when the launch fails for another reason.
  bool run(Handle handle, const ProductData& data, void* workspace, void* stream) const;

 private:
  void release();
  void describe(const ProductData& data);
  void ask_heuristic(Handle handle, int wanted);
  void set_pointers(const ProductData& data) const;

  const Product product_;
  Operation operation_ = nullptr;
  Layout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::vector<Algorithm> algorithms_;
  std::size_t selected_ = 0;
};

/// Throws Error (Fault::system) naming the call and the product unless status is 0.
void ok(Status status, const char* what, const Product& p);

}  // namespace weft::cuda::lt
