#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/data/dataset.h"

namespace weft::train {

/// A number of a step by name: a sum over micro-batches and ranks, divided by the sum of a count.
struct Metric {
  std::string name;        ///< its key in metrics.jsonl
  Tensor sum;              ///< of any floating or integer dtype
  Tensor count = {};       ///< of the same shape; null: the loss's count
  std::string shown = {};  ///< its name on the progress line; empty: it is not there
  int decimals = 4;        ///< on that line
  bool is_list = false;    ///< several elements, several numbers
  bool is_whole = false;   ///< sum is the number itself, of all ranks: what the trainer adds
};

/// What a model's author says of one micro-batch. The gradient of a step is that of
///   (sum of all objectives) / (sum of all counts),
/// over micro-batches and ranks, whatever their sizes.
struct Loss {
  Tensor sum;         ///< of the loss over all targets: one element, f32 or f64, recorded
  Tensor count = {};  ///< how many targets count, one element; null: all of them
  std::vector<Metric> metrics = {};  ///< the same names for every micro-batch
  Tensor objective = {};  ///< what backward starts from; null: sum. For losses that are added to it
};

/// Called between the construction of a tape and its backward, and without a tape for evaluation:
/// then the model's is_training() is off. The batch lies on the model's device.
using LossFunction = std::function<Loss(const data::Batch& batch)>;

/// The loss of a classifier: the cross entropy of targets (...) under logits (..., classes), and as
/// "accuracy" the share of them that have the largest logit. Targets data::kIgnore do not count.
/// Throws Error as cross_entropy().
Loss classify(const Tensor& logits, const Tensor& targets);

}  // namespace weft::train
