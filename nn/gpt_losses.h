#pragma once
#include "weft/nn/loss.h"

namespace weft::nn {

/// What a pass through a Gpt is trained on: sums over tokens, with the counts that they are to be
/// divided by once all micro-batches and ranks have been added. All of it stays on the device.
struct GptLosses {
  CrossEntropyLoss::Sum main;
  // One entry for each depth of multi-token prediction, the first for depth 1.
  TensorList mtp;        ///< sum of the cross entropies
  TensorList mtp_count;  ///< i64: how many targets count
  TensorList mtp_hits;   ///< i64: for how many of them the target has the largest logit
  double mtp_weight = 0;
  /// What routers add to the mean loss, with the mean over depths where one layer serves them all;
  /// null without any.
  Tensor aux;

  /// What to run backward from, as a sum: divided by the main count it is
  ///   mean(main) + weight / depths * sum over depths of mean(mtp) + aux.
  /// A depth has fewer targets than the main loss, and is scaled up by the ratio of the counts. A
  /// depth without any adds 0. Several micro-batches with different masks agree with one large
  /// batch when they are given the counts of all of them.
  Tensor total() const { return total(main.count, mtp_count); }
  Tensor total(const Tensor& main_count, const TensorList& depth_counts) const;
};

}  // namespace weft::nn
