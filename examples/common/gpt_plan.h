#pragma once
#include <string>
#include <vector>

#include "weft/examples/common/gpt_options.h"
#include "weft/train/memory_plan.h"

namespace weft::examples {

/// train::plan_memory() of the rank that the options name, of as many ranks as they say.
train::MemoryPlan plan_memory(const GptOptions& options);

/// Bytes of activations that one block keeps for backward, for one micro-batch of this rank.
struct BlockBytes {
  double measured = 0;  ///< by a plan with one block less; 0: the blocks differ, or there is one
  double closed = 0;    ///< by formula; 0: there is none for this block
};
BlockBytes block_activations(const GptOptions& options, const train::MemoryPlan& plan);

/// What a rank reaches: assumptions that turn the cost of a change into time.
struct Rates {
  double tflops = 400;  ///< 10^12 floating-point operations per second
  double link = 50;     ///< 10^9 bytes per second to other ranks
  double host = 10;     ///< 10^9 bytes per second to pinned memory, or to the disk
};

/// A change of the options, or several, and what a step then takes.
struct Alternative {
  std::string flags;    ///< "--recompute full"
  bool rounds = false;  ///< whether the numbers of the run change
  train::MemoryPlan plan;
  double cost_s = 0;  ///< seconds more than now, by the rates, if nothing overlaps
};

/// Every change of the table of changes that these options allow.
std::vector<Alternative> alternatives(const GptOptions& options, const train::MemoryPlan& plan,
                                      const Rates& rates);
/// The cheapest changes, up to three together, with which the peak is at most `bytes`; empty flags
/// if none are needed. Doubling or halving may be two or three of them. Cheaper is: fewer ranks;
/// then the same numbers; then fewer changes; then less time. Throws Error if nothing fits.
Alternative cheapest_fit(const GptOptions& options, const train::MemoryPlan& plan,
                         const Rates& rates, std::int64_t bytes);

/// Bytes of "24GiB", "80GB", "512MiB" or a number. Throws Error on any other text.
std::int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace weft::examples
