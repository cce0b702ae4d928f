// The model that the options describe.
#include <algorithm>

#include "weft/examples/common/options.h"

namespace weft::train {
namespace {

nn::Balance scope_of(Aux aux) {
  return aux == Aux::seq      ? nn::Balance::sequence
         : aux == Aux::global ? nn::Balance::global
                              : nn::Balance::aux;
}

// The widths of experts and shared expert, where the options leave them open: a token's experts
// together cost what the MLP in their place would.
void set_widths(nn::GptConfig& c) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t sharing = c.moe.router.route.topk + (c.moe.shared_ffn < 0 ? 1 : 0);
  const std::int64_t part =
      (c.ffn_dim() + sharing * kMultiple / 2) / (sharing * kMultiple) * kMultiple;
  if (c.moe.ffn == 0) c.moe.ffn = std::max(part, kMultiple);
  if (c.moe.shared_ffn < 0) c.moe.shared_ffn = c.moe.ffn;
}

}  // namespace

bool Options::counts_balance() const {
  return model.moe.experts > 0 && balance.aux < Aux::bias && balance.aux_coeff > 0;
}

nn::GptConfig Options::gpt() const {
  nn::GptConfig c = model;
  if (c.moe.experts == 0) return c;
  if (balance.aux == Aux::bias) c.moe.router.expert_bias = true;
  if (counts_balance()) c.moe.router.balance = {{scope_of(balance.aux), balance.aux_coeff}};
  set_widths(c);
  return c;
}

}  // namespace weft::train
