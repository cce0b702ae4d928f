#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weft/nn/gpt.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/sampling.h"

namespace weft::nn {

/// Generates several tokens per pass through the trunk. The MTP depths draft the next tokens; one
/// pass computes the model's own distribution p at each of them. A draft x, drawn with probability
/// q(x), is accepted with probability min(1, p(x) / q(x)); the first rejected one is replaced by a
/// draw from max(0, p - q). Every token therefore has distribution p, whatever the quality of the
/// drafts. With temperature 0 the text is the model's greedy text, except for ties within rounding.
/// Source: Leviathan, Kalman, Matias 2023, arXiv:2211.17192, algorithm 1.
class Speculator {
 public:
  struct Stats {
    std::int64_t passes = 0;   ///< passes through the trunk
    std::int64_t tokens = 0;   ///< tokens generated
    std::int64_t drafted = 0;  ///< tokens drafted by the MTP depths
    std::int64_t accepted = 0;
    double tokens_per_pass() const {
      return static_cast<double>(tokens) / static_cast<double>(passes);
    }
  };

  /// Throws Error if the model has no MTP depth, or a layer without attention.
  Speculator(const Gpt& model, const SamplingOptions& sampling, std::uint64_t seed);
  /// Starts a text. Throws Error if the prompt is empty.
  void start(std::span<const std::int32_t> prompt);
  /// The next tokens, from one pass: from 1 to min(most, depths + 1). Valid until the next call.
  /// Throws Error before start().
  std::span<const std::int32_t> next(std::int64_t most);
  /// Counts since start().
  const Stats& stats() const { return stats_; }

 private:
  /// A drafted token and the distribution it was drawn from.
  struct Draft {
    std::int32_t token;
    std::vector<double> q;
  };
  /// The state of one depth.
  struct Depth {
    KvCache cache;
    Tensor input;  ///< (1, seq, dim): outputs of the previous depth, by place
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
  std::vector<std::int32_t> text_;    ///< prompt and generated tokens, then the drafts
  std::size_t known_ = 0, base_ = 0;  ///< place i of the caches is token base_ + i
  std::vector<Draft> drafts_;
  Stats stats_;
};

}  // namespace weft::nn
