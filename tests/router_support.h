#pragma once
// Helpers shared by the tests of nn::Router.
#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/nn/router.h"
#include "weft/tests/support.h"

namespace weft::test {

// Several routers on one input.
struct Stack : nn::Module {
  std::vector<nn::Router> routers;
  Stack(int layers, const nn::RouterConfig& c) {
    for (int i = 0; i < layers; ++i) routers.emplace_back(4, 8, c);
  }
  void visit(nn::Visitor& v) override { v("routers", routers); }
};

struct Pass {
  Tensor loss, dweight, dx;
};

// One forward and backward pass of the loss plus the probabilities times fixed numbers.
inline Pass run(const nn::Router& router, const Tensor& x, const nn::RouterInput& in = {},
                bool again = false) {
  Tensor leaf = x.detach().set_requires_grad();
  Tape tape;
  TensorList out;
  const auto forward = [&](const TensorList& v) {
    nn::Routed r = router(v[0], in);
    return r.loss.defined() ? TensorList{r.routing.probs, r.loss} : TensorList{r.routing.probs};
  };
  out = again ? recompute(forward, TensorList{leaf}) : forward({leaf});
  const Tensor fixed = random(out[0].shape(), 77).to(out[0].dtype());
  Tensor total = sum(mul(out[0], fixed));
  if (out.size() > 1) total = add(total, out[1]);
  const TensorList g = tape.gradients(total, {router.weight, leaf});
  return {out.size() > 1 ? out[1].detach() : Tensor(), g[0], g[1]};
}

}  // namespace weft::test
