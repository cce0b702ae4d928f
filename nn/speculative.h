#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weft/nn/gpt.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/sampling.h"

namespace weft::nn {

/// Generates with several tokens a pass through the trunk: the MTP depths draft the next ones, one
/// pass gives the model's own distribution at each of them, and a draft x of probability q(x) stays
/// with probability min(1, p(x) / q(x)). The first that does not is replaced by a draw from
/// max(0, p - q). So every token has the distribution p, whatever the drafts were worth: greedy
/// (temperature 0) gives the model's greedy text, up to ties within rounding.
/// Source: Leviathan, Kalman, Matias 2023, arXiv:2211.17192, algorithm 1.
class Speculator {
 public:
  struct Stats {
    std::int64_t passes = 0;   ///< through the trunk
    std::int64_t tokens = 0;   ///< that came out of them
    std::int64_t drafted = 0;  ///< by the MTP depths
    std::int64_t accepted = 0;
    double tokens_per_pass() const {
      return static_cast<double>(tokens) / static_cast<double>(passes);
    }
  };

  /// Throws Error when the model has no MTP depth, or a layer without attention.
  Speculator(const Gpt& model, const SamplingOptions& sampling, std::uint64_t seed);
  /// Begins a text. Throws Error when it is empty.
  void start(std::span<const std::int32_t> prompt);
  /// The next tokens, from one pass: at least 1, at most `most` and depths + 1. Good until the next
  /// call.
  std::span<const std::int32_t> next(std::int64_t most);
  /// Since start().
  const Stats& stats() const { return stats_; }

 private:
  /// A draft and the distribution that it was drawn from.
  struct Draft {
    std::int32_t token;
    std::vector<double> q;
  };
  /// What one depth has taken up.
  struct Depth {
    KvCache cache;
    Tensor input;  ///< (1, seq, dim): the outputs of the depth before, by place
  };

  void make_room();
  void forget_all();
  void draft(std::int64_t count);
  void verify(const Tensor& logits);
  void forget_rejected(std::int64_t rejected);
  Tensor tokens_from(std::int64_t first, std::int64_t count) const;
  RandomKey key(const char* use, std::int64_t ahead) const;

  const Gpt& model_;
  SamplingOptions sampling_;
  std::uint64_t seed_;
  KvCache cache_;
  std::vector<Depth> depths_;
  std::vector<std::int32_t> text_;    ///< everything known, then the drafts
  std::size_t known_ = 0, base_ = 0;  ///< place i of the caches is token base_ + i
  std::vector<Draft> drafts_;
  Stats stats_;
};

}  // namespace weft::nn
