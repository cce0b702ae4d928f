#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/data/dataset.h"

namespace weft::train {

/// A named number of a step: a sum over micro-batches and ranks, divided by the sum of a count.
struct Metric {
  std::string name;        ///< key in metrics.jsonl
  Tensor sum;              ///< of any floating or integer dtype
  Tensor count = {};       ///< of the same shape; null: the loss's count
  std::string shown = {};  ///< name on the progress line; empty: not shown there
  int decimals = 4;        ///< on the progress line
  bool is_list = false;    ///< several elements, reported as a list
  bool is_whole = false;   ///< sum is the final number over all ranks; used for the trainer's own
};

/// The result of a loss function for one micro-batch. The gradient of a step is that of
///   (sum of all objectives) / (sum of all counts),
/// over micro-batches and ranks, for any sizes of them.
struct Loss {
  Tensor sum;         ///< sum of the loss over all targets: one element, f32 or f64, recorded
  Tensor count = {};  ///< number of targets that count, one element; null: all of them
  std::vector<Metric> metrics = {};  ///< the same names for every micro-batch
  Tensor objective = {};             ///< backward starts from it; null: sum. For auxiliary losses
};

/// Called while a tape records, and for evaluation without a tape; is_training() is then false. The
/// batch is on the model's device.
using LossFunction = std::function<Loss(const data::Batch& batch)>;

/// The loss of a classifier: the cross entropy of targets (...) under logits (..., classes), and
/// the metric "accuracy", the fraction of targets with the largest logit. Targets data::kIgnore are
/// ignored.
/// Throws Error as cross_entropy().
Loss classify(const Tensor& logits, const Tensor& targets);

}  // namespace weft::train
