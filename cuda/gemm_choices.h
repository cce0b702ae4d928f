#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "weft/cuda/gemm_plan.h"

namespace weft::cuda {

inline constexpr int kGemmCandidates = 8;  ///< algorithms that a measurement compares

/// Choices that were measured before, from the file that the environment variable WEFT_GEMM_PLANS
/// names:
///
///   (empty)        the first algorithm of cuBLASLt's heuristic for every product
///   FILE           choices are read; products that the file lacks use the heuristic
///   measure:FILE   products that the file lacks are timed at their first use, and added to it
///
/// A file is text, one product per line after three lines that name its format, the card and the
/// version of cuBLASLt: the place of an algorithm in the heuristic's list means the same algorithm
/// only there.
class GemmChoices {
 public:
  /// Those of the process.
  static GemmChoices& get();

  /// Replaces the setting of WEFT_GEMM_PLANS and drops the plans that were made with it.
  void use(const std::string& setting);
  bool given() const { return given_.load(std::memory_order_relaxed); }
  bool measuring() const { return measuring_.load(std::memory_order_relaxed); }
  const std::string& file() const { return file_; }

  /// The choice for the product, which must be aligned().
  /// Throws Error naming the file when it cannot be read, or was measured on another card or with
  /// another version.
  std::optional<GemmChoice> find(const Product& p);
  /// Adds a measured choice, unless there is one, to the file too.
  /// Throws Error (Fault::system) when the file cannot be written.
  void keep(const Product& p, const GemmChoice& choice);

 private:
  GemmChoices();
  void set(const std::string& setting);
  void load(int device);
  void create(const std::string& head) const;
  void read_line(const std::string& line, int number);

  std::mutex mutex_;
  std::atomic<bool> given_{false}, measuring_{false};
  std::string file_, card_;  // the card of the file; empty until it is loaded
  std::map<std::string, GemmChoice> choices_;
};

}  // namespace weft::cuda
