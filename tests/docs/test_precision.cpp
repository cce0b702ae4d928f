// The code of docs/precision.md.
#include <doctest/doctest.h>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::precision_page_test {

TEST_CASE("precision: a scope makes a step in FP8") {
  nn::Gpt model({.layers = 1, .heads = 2, .dim = 32, .seq = 16, .vocab = 20});
  const Tensor batch = test::random({2, 16}, 1, DType::i32);
  const auto loss = [](const nn::Gpt& m, const Tensor& ids) { return m.losses(ids, ids).total(); };
  // clang-format off
  const fp8::Recipe recipe{.scaling = fp8::Scaling::current};
  nn::prepare_fp8(model, recipe);  // checks widths; adds the buffers of delayed scales
  {
    const fp8::Autocast scope(recipe);
    Tape tape;
    loss(model, batch).backward();
  }
  // clang-format on
  CHECK(model.blocks[0].mlp_norm.weight.grad().defined());
  CHECK(fp8::Autocast::current() == nullptr);
}

}  // namespace weft::precision_page_test
