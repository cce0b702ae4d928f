#include "weft/nn/loss.h"

#include "weft/autograd/cross_entropy.h"
#include "weft/core/error.h"

namespace weft::nn {

Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& targets) const {
  return cross_entropy(logits, targets,
                       {.reduction = Reduction::mean,
                        .ignore_index = ignore_index,
                        .label_smoothing = label_smoothing});
}

CrossEntropyLoss::Sum CrossEntropyLoss::sum(const Tensor& logits, const Tensor& targets) const {
  return {cross_entropy(logits, targets,
                        {.reduction = Reduction::sum,
                         .ignore_index = ignore_index,
                         .label_smoothing = label_smoothing}),
          count_valid(targets, ignore_index)};
}

std::string CrossEntropyLoss::describe() const {
  return label_smoothing > 0 ? message("CrossEntropyLoss(label smoothing {})", label_smoothing)
                             : "CrossEntropyLoss";
}

CrossEntropyLoss CrossEntropyLoss::like() const {
  CrossEntropyLoss copy;
  copy.ignore_index = ignore_index;
  copy.label_smoothing = label_smoothing;
  return copy;
}

}  // namespace weft::nn
