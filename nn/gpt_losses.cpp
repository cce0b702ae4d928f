#include "weft/nn/gpt_losses.h"

#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/nn/gpt.h"

namespace weft::nn {

Tensor GptLosses::total(const Counts& all) const {
  check(all.mtp.size() == mtp.size(), "losses: counts must be given for {} depths, got {}",
        mtp.size(), all.mtp.size());
  check(all.tokens.defined() || !tokens.defined(),
        "losses: with router losses the number of tokens must be given, got none");
  Tensor sum = main.loss;
  const double share = mtp.empty() ? 0 : mtp_weight / mtp.size();
  for (int d = 0; d < mtp.size(); ++d) {
    // f64 holds every count exactly.
    const Tensor ratio = div(all.main.to(DType::f64), maximum(all.mtp[d].to(DType::f64), 1));
    sum = add(sum, mul(mtp[d], mul(ratio, share).to(mtp[d].dtype())));
  }
  if (!aux.defined()) return sum;
  Tensor weight = all.main.to(DType::f64);
  if (tokens.defined() && !all.tokens.same(tokens))
    weight = div(mul(weight, tokens.to(DType::f64)), maximum(all.tokens.to(DType::f64), 1));
  return add(sum, mul(aux, weight.to(aux.dtype())).to(sum.dtype()));
}

GptLosses Gpt::losses(const Tensor& ids, const Tensor& targets, const Packing& packing) const {
  Tensor goals = packing.masked(targets, static_cast<double>(loss.ignore_index));
  auto [h, aux] = trunk(ids, packing);
  GptLosses out;
  {
    const ProfileScope scope("head");
    out.main = loss.sum(h, head, goals);
  }
  out.aux = aux;
  add_depths(out, ids, std::move(goals), std::move(h), packing);
  if (!out.aux.defined()) return out;
  out.tokens = Tensor::full({}, static_cast<double>(ids.numel()), DType::i64, ids.device());
  if (packing.padding.defined()) out.tokens = sub(out.tokens, sum(packing.padding.to(DType::i64)));
  return out;
}

// The losses of multi-token prediction, which reads the trunk's result h.
void Gpt::add_depths(GptLosses& out, const Tensor& ids, Tensor goals, Tensor h,
                     const Packing& packing) const {
  if (mtp.empty()) return;
  const MtpOptions& o = config.mtp;
  out.mtp_weight = o.weight;
  Linear own_head;
  if (o.detached) {
    h = h.detach();
    own_head.weight = head.adapted_weight().detach();
    if (head.bias.defined()) own_head.bias = head.bias.detach();
  }
  // A depth reads past the end of a sequence in a row, into its padding.
  Tensor later = packing.masked(ids, 0);
  for (int depth = 1; depth <= o.depths; ++depth) {
    later = roll_left(later, packing);
    goals = roll_left(goals, packing, static_cast<double>(loss.ignore_index));
    Trunk next = mtp_trunk(depth, later, h, packing);
    h = std::move(next.hidden);
    // With weight 0 the depths are only measured: their router losses do not reach the trunk. A
    // layer that serves all depths counts once, with the mean of its losses.
    if (next.aux.defined() && o.weight > 0) {
      if (o.repeated) next.aux = mul(next.aux, 1.0 / o.depths);
      out.aux = out.aux.defined() ? add(out.aux, next.aux) : std::move(next.aux);
    }
    const ProfileScope scope("head");
    const Tensor hits = Tensor::empty(goals.shape(), DType::boolean, goals.device());
    const CrossEntropyLoss::Sum part = loss.sum(h, o.detached ? own_head : head, goals, hits);
    out.mtp.push_back(part.loss);
    out.mtp_count.push_back(part.count);
    out.mtp_hits.push_back(sum(hits));
  }
}

}  // namespace weft::nn
