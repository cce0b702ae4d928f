// The code of docs/encoder.md.
#include <doctest/doctest.h>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::encoder_test {
namespace {

// ids (rows, tokens), present (rows, tokens) bool -> logits (rows, tokens, vocab)
struct Encoder : nn::Module {
  nn::Embedding embed, positions;
  std::vector<nn::Block> blocks;
  nn::LayerNorm last;
  nn::Linear head;

  Encoder(std::int64_t vocab, std::int64_t tokens, std::int64_t dim, int layers)
      : embed(vocab, dim), positions(tokens, dim), last(dim), head(dim, vocab) {
    for (int i = 0; i < layers; ++i)
      blocks.emplace_back(nn::LayerNorm(dim), nn::Attention(dim, 4, {.causal = false}),
                          nn::Mlp(dim, 4 * dim));
  }

  Tensor operator()(const Tensor& ids, const Tensor& present) const {
    const std::int64_t rows = ids.dim(0), tokens = ids.dim(1);
    Tensor x = embed(ids) + positions.weight.slice(0, 0, tokens);
    for (const nn::Block& block : blocks)
      x = block(x, {.mask = present.view({rows, 1, 1, tokens})});
    return head(last(x));
  }

  void visit(nn::Visitor& v) override {
    v("embed", embed);
    v("positions", positions);
    v("blocks", blocks);
    v("last", last);
    v("head", head);
  }
};

// x (rows, tokens, dim) sees memory (rows, keys, dim) where present (rows, keys) is true.
struct CrossAttention : nn::Module {
  std::int64_t heads;
  nn::Linear q, kv, proj;

  CrossAttention(std::int64_t dim, std::int64_t heads)
      : heads(heads), q(dim, dim), kv(dim, 2 * dim), proj(dim, dim) {}

  Tensor operator()(const Tensor& x, const Tensor& memory, const Tensor& present) const {
    const std::int64_t rows = x.dim(0), keys = memory.dim(1), width = x.dim(2) / heads;
    const Tensor query = q(x).view({rows, x.dim(1), heads, width});
    const TensorList both =
        split(kv(memory).view({rows, keys, 2 * heads, width}), {heads, heads}, 2);
    const Tensor mask = present.view({rows, 1, 1, keys});
    return proj(attention(query, both[0], both[1], {.mask = mask}).view(x.shape()));
  }

  void visit(nn::Visitor& v) override { v("q", q), v("kv", kv), v("proj", proj); }
};

// Rows of twelve numbers below 20.
Tensor some_ids(std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows * 12; ++i) ids.push_back((i * i + 7 * (i / 12)) % 20);
  return Tensor::from(std::span<const std::int64_t>(ids), {rows, 12});
}

Tensor all_of(const Shape& shape) { return Tensor::full(shape, 1, DType::boolean); }

}  // namespace

TEST_CASE("encoder.md: an encoder learns what only later tokens tell") {
  const Tensor ids = some_ids(8), present = all_of(ids.shape());
  double first = 0, last = 0;
  Encoder model(20, 12, 32, 2);
  nn::init(model, 1);
  optim::AdamW optimizer(model, {.lr = 0.01});
  for (int step = 0; step < 80; ++step) {
    Tape tape;
    const Tensor loss = cross_entropy(model(ids, present), flip(ids, {1}));
    if (step == 0) first = loss.item();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item();
  }
  CHECK(first > 2.5);
  CHECK(last < 0.1);
}

TEST_CASE("encoder.md: padding changes no result") {
  Encoder model(20, 12, 32, 2);
  nn::init(model, 1);
  const Tensor ids = some_ids(2), present = all_of(ids.shape()), other = ids.clone();
  present.narrow(1, 9, 3).fill_(0);
  other.narrow(1, 9, 3).fill_(0);
  const Tensor y = model(ids, present).narrow(1, 0, 9);
  CHECK(test::different_bits(y, model(other, present).narrow(1, 0, 9)) == "");
  const Tensor alone = model(ids.narrow(1, 0, 9), all_of({2, 9}));
  CHECK(test::mismatch(y, alone, 1e-5) == "");
  CHECK(test::mismatch(y, model(ids, all_of({2, 12})).narrow(1, 0, 9), 1e-3) != "");
}

TEST_CASE("encoder.md: cross-attention sees the memory and nothing that is absent") {
  CrossAttention cross(32, 4);
  nn::init(cross, 1);
  cross.to(DType::f64);
  const Tensor x = rand_uniform({2, 3, 32}, -1, 1, DType::f64);
  const Tensor memory = rand_uniform({2, 5, 32}, -1, 1, DType::f64), present = all_of({2, 5});
  present.narrow(1, 4, 1).fill_(0);
  const auto f = [&](const TensorList& in) { return cross(in[0], in[1], present); };
  CHECK(gradcheck(f, {x, memory}) == "");
  const Tensor y = cross(x, memory, present), changed = memory.clone();
  changed.narrow(1, 4, 1).fill_(7);
  CHECK(test::different_bits(y, cross(x, changed, present)) == "");
  CHECK(test::mismatch(y, cross(x, memory.narrow(1, 0, 4), all_of({2, 4})), 1e-12) == "");
}

}  // namespace weft::encoder_test
