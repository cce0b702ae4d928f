#include "weft/train/loss.h"

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/reduce.h"

namespace weft::train {

Loss classify(const Tensor& logits, const Tensor& targets) {
  const Tensor hits = Tensor::empty(targets.shape(), DType::boolean, targets.device());
  const Tensor loss = cross_entropy(
      logits, targets, {.reduction = Reduction::sum, .ignore_index = data::kIgnore, .hits = hits});
  return {.sum = loss,
          .count = count_valid(targets, data::kIgnore),
          .metrics = {{.name = "accuracy", .sum = sum(hits), .shown = "accuracy"}}};
}

}  // namespace weft::train
