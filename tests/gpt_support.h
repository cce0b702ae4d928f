#pragma once
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "weft/autograd/view.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

// Requirements on models with every kind of layer. In f64, 12 tokens per row.
namespace weft::test {

/// Checks that rows of different lengths, each with a cache of its own, decode together as in the
/// full forward pass `all`.
inline void check_rows(const nn::Gpt& model, const Tensor& ids, const Tensor& all) {
  const DType dtype = all.dtype();
  std::vector<nn::KvCache> caches;
  std::vector<nn::KvCache*> rows;
  for (std::int64_t i = 0; i < ids.dim(0); ++i) caches.emplace_back(model.config, 1, 12, dtype);
  for (std::int64_t i = 0; i < ids.dim(0); ++i) {
    rows.push_back(&caches[static_cast<std::size_t>(i)]);
    if (i > 0) model.decode(ids.narrow(0, i, 1).narrow(1, 0, 3 * i), *rows.back());
  }
  for (int more = 0; more < 4; ++more) {
    if (more == 2) rows.pop_back();  // a row that ends leaves
    TensorList next, want;
    for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
      next.push_back(ids.narrow(0, i, 1).narrow(1, 3 * i + more, 1));
      want.push_back(all.narrow(0, i, 1).select(1, 3 * i + more));
    }
    CHECK(mismatch(model.decode(cat(next), rows), cat(want), 1e-12) == "");
  }
}

/// Checks that decoding from an empty cache gives the logits of the full forward pass, also by rows
/// of different lengths; returns them.
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
  check_rows(model, ids, all);
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
