#pragma once
#include "weft/nn/loss.h"

namespace weft::nn {

/// The losses of one pass through a Gpt: sums over tokens, and the counts to divide by after adding
/// up all micro-batches and ranks. All values stay on the device.
struct GptLosses {
  CrossEntropyLoss::Sum main;
  // One entry for each depth of multi-token prediction, depth 1 first.
  TensorList mtp;        ///< sum of the cross entropies
  TensorList mtp_count;  ///< i64: number of targets that are not ignored
  TensorList mtp_hits;   ///< i64: number of these whose target has the largest logit
  double mtp_weight = 0;
  /// The router losses, to be added to the mean loss; averaged over depths if one layer serves all
  /// of them. Null without routers.
  Tensor aux;
  Tensor tokens;  ///< with aux: the number of non-padding tokens, over which it is a mean; i64

  /// The tensor to run backward from, as a sum: divided by the main count it is
  ///   mean(main) + weight / depths * sum over depths of mean(mtp) + aux.
  /// A depth has fewer targets than the main loss and is scaled up by the ratio of the counts; a
  /// depth without targets adds 0. Micro-batches with different masks or padding give the gradients
  /// of one large batch if they are passed the counts of all of them.
  Tensor total() const { return total({main.count, mtp_count, tokens}); }
  /// Counts of one or more micro-batches, as the members of the same name.
  struct Counts {
    Tensor main;
    TensorList mtp = {};
    Tensor tokens = {};
  };
  Tensor total(const Counts& all) const;
};

}  // namespace weft::nn
