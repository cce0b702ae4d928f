#pragma once
#include <doctest/doctest.h>

#include <utility>

#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

// Requirements on models with every kind of layer. In f64, 12 tokens per row.
namespace weft::test {

/// Checks that decoding from an empty cache gives the logits of the full forward pass; returns
/// them.
inline Tensor check_decoding(const nn::Gpt& model, const Tensor& ids, nn::KvCache& cache) {
  const Tensor all = model(ids);
  Tensor last = model.decode(ids.narrow(1, 0, 5), cache);  // the prompt in one call
  CHECK(mismatch(last, all.select(1, 4), 1e-12) == "");
  for (int t = 5; t < 9; ++t) {
    last = model.decode(ids.narrow(1, t, 1), cache);
    CHECK(last.shape() == Shape{ids.dim(0), all.dim(2)});
    CHECK(mismatch(last, all.select(1, t), 1e-12) == "");
  }
  last = model.decode(ids.narrow(1, 9, 3), cache);  // several tokens after a filled cache
  CHECK(mismatch(last, all.select(1, 11), 1e-12) == "");
  CHECK(cache.length() == 12);
  return all;
}

/// Checks that a packed row gives the same logits as its sequences alone. One sequence is empty.
inline void check_packing(const nn::Gpt& model, const Tensor& row) {
  const Tensor cu = Tensor::of({0, 5, 5, 6, 12}, {5}, DType::i32);
  const Tensor at = Tensor::of({0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5}, {12}, DType::i32);
  const Tensor packed = model(row, {cu, at});
  for (const auto& [from, n] : {std::pair{0, 5}, {5, 1}, {6, 6}})
    CHECK(mismatch(packed.narrow(1, from, n), model(row.narrow(1, from, n)), 1e-12) == "");
}

}  // namespace weft::test
