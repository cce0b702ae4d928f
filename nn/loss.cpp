#include "weft/nn/loss.h"

#include "weft/autograd/linear_cross_entropy.h"
#include "weft/core/error.h"

namespace weft::nn {
namespace {

// A head with a bias must materialize the logits.
Tensor head_loss(const Shard* shard, const Tensor& hidden, const Linear& head,
                 const Tensor& targets, const CrossEntropyOptions& options) {
  if (head.is_adapted())
    for (const Lora& adapter : head.lora)
      check(adapter.drop.p == 0 || !adapter.drop.is_training(),
            "loss: while training, the adapter of a head must have dropout 0, got {}",
            adapter.drop.p);
  if (shard && shard->head_loss) {
    check(!head.bias.defined(), "loss: a head that is cut over ranks must have no bias");
    return shard->head_loss(hidden, head.adapted_weight(), targets, options);
  }
  return head.bias.defined()
             ? cross_entropy(head(hidden), targets, options)
             : linear_cross_entropy(hidden, head.adapted_weight(), targets, options);
}

}  // namespace

CrossEntropyOptions CrossEntropyLoss::options(Reduction reduction) const {
  return {.reduction = reduction, .ignore_index = ignore_index, .label_smoothing = label_smoothing};
}

Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& targets) const {
  return cross_entropy(logits, targets, options(Reduction::mean));
}

Tensor CrossEntropyLoss::operator()(const Tensor& hidden, const Linear& head,
                                    const Tensor& targets) const {
  return head_loss(shard.get(), hidden, head, targets, options(Reduction::mean));
}

CrossEntropyLoss::Sum CrossEntropyLoss::sum(const Tensor& logits, const Tensor& targets) const {
  return {cross_entropy(logits, targets, options(Reduction::sum)),
          count_valid(targets, ignore_index)};
}

CrossEntropyLoss::Sum CrossEntropyLoss::sum(const Tensor& hidden, const Linear& head,
                                            const Tensor& targets, const Tensor& hits) const {
  CrossEntropyOptions o = options(Reduction::sum);
  o.hits = hits;
  return {head_loss(shard.get(), hidden, head, targets, o), count_valid(targets, ignore_index)};
}

std::string CrossEntropyLoss::describe() const {
  return label_smoothing > 0 ? message("CrossEntropyLoss(label smoothing {})", label_smoothing)
                             : "CrossEntropyLoss";
}

}  // namespace weft::nn
