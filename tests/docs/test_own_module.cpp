// The code of docs/own_module.md.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::own_module_test {
namespace {

// x (..., dim) -> (..., dim):  x + scale * dropout(sigmoid(gate(n)) * value(n)) with n = norm(x)
struct GatedBlock : nn::Module {
  nn::LayerNorm norm;
  nn::Linear gate, value;
  nn::Dropout drop;
  Tensor scale;  // (dim)

  explicit GatedBlock(std::int64_t dim, double dropout = 0)
      : norm(dim),
        gate(dim, dim),
        value(dim, dim),
        drop(dropout),
        scale(nn::make_parameter({dim}, nn::Init::constant(0.1))) {}

  Tensor operator()(const Tensor& x) const {
    const Tensor n = norm(x);
    return x + scale * drop(sigmoid(gate(n)) * value(n));
  }

  void visit(nn::Visitor& v) override {
    v("norm", norm);
    v("gate", gate);
    v("value", value);
    v("drop", drop);
    v("scale", scale, nn::Init::constant(0.1));
  }
  std::string describe() const override { return message("GatedBlock({})", scale.dim(0)); }
};

// ids (rows, tokens) -> logits (rows, tokens, vocab)
struct Tagger : nn::Module {
  nn::Embedding embed;
  std::vector<GatedBlock> blocks;
  std::optional<nn::LayerNorm> last;  // none: no norm at the end
  nn::Linear head;
  Tensor seen = Tensor::zeros({1}, DType::i64);  // tokens so far

  Tagger(std::int64_t vocab, std::int64_t dim, int depth, bool last_norm) : embed(vocab, dim) {
    for (int i = 0; i < depth; ++i) blocks.emplace_back(dim, 0.1);
    if (last_norm) last.emplace(dim);
    head.weight = embed.weight;  // tied: one parameter, two uses
  }

  Tensor operator()(const Tensor& ids) const {
    if (is_training()) seen.add_(Tensor::full({1}, double(ids.numel()), DType::i64));
    Tensor x = embed(ids);
    for (const GatedBlock& block : blocks) x = block(x);
    return head(last ? (*last)(x) : x);
  }

  void visit(nn::Visitor& v) override {
    v("embed", embed);
    v("blocks", blocks);
    v("last", last);
    v("head", head);
    v("seen", nn::buffer(seen));
  }
};

// Adds sin(position * frequency) to x (tokens, dim).
struct Positions : nn::Module {
  Tensor angles;  // (tokens, dim)
  Positions(std::int64_t tokens, std::int64_t dim)
      : angles(Tensor::empty({tokens, dim}, DType::f32, nn::default_device())) {
    Positions::fill_tables();
  }
  void fill_tables() override {
    if (angles.is_meta()) return;
    const Tensor token = Tensor::arange(0, double(angles.dim(0)), 1, DType::f64).unsqueeze(1);
    const Tensor j = Tensor::arange(0, double(angles.dim(1)), 1, DType::f64);
    angles.copy_(sin(token / (j + 1)));
  }
  Tensor operator()(const Tensor& x) const {
    return x + angles.slice(0, 0, x.dim(0)).to(x.dtype());
  }
  void visit(nn::Visitor& v) override { v("angles", nn::table(angles)); }
};

struct Forgetful : nn::Module {
  nn::Linear up{2, 2}, down{2, 2};
  Tensor operator()(const Tensor& x) const { return down(up(x)); }
  void visit(nn::Visitor& v) override { v("up", up); }
};

}  // namespace

TEST_CASE("own module: names, counts, printing, clone") {
  GatedBlock block(4);
  nn::init(block, /*seed=*/1);
  CHECK(block.parameter_count() == 2 * 4 + 2 * (4 * 4 + 4) + 4);
  CHECK(block.named_parameters()[6].name == "scale");
  CHECK(to_string(block).find("GatedBlock(4)") == 0);
  GatedBlock copy = nn::clone(block);
  const Tensor x = rand_normal({3, 4});
  CHECK(test::mismatch(copy(x), block(x), 0) == "");
}

TEST_CASE("own module: gradients of its input and a parameter agree with differences") {
  GatedBlock block(3);
  nn::init(block, 1);
  block.to(DType::f64);
  const auto f = [&](const TensorList& in) {
    block.scale = in[1];
    return block(in[0]);
  };
  const Tensor x = rand_uniform({2, 3}, -1, 1, DType::f64);
  const Tensor scale = rand_uniform({3}, -1, 1, DType::f64);
  CHECK(gradcheck(f, {x, scale}) == "");
}

TEST_CASE("own module: ties, lists, an absent child and a buffer") {
  Tagger model(16, 8, 2, /*last_norm=*/false);
  nn::init(model, 1);
  CHECK(model.head.weight.same(model.embed.weight));
  const StateDict state = model.state_dict();
  CHECK(state.count("embed.weight") == 1);
  CHECK(state.count("head.weight") == 0);
  CHECK(state.count("blocks.1.gate.weight") == 1);
  CHECK(state.count("seen") == 1);
  CHECK(state.count("last.weight") == 0);
  CHECK(Tagger(16, 8, 2, true).state_dict().count("last.weight") == 1);
}

TEST_CASE("own module: training") {
  Tagger model(16, 8, 2, true);
  nn::init(model, 1);
  optim::AdamW optimizer(model, {.lr = 0.02});
  const Tensor ids = permutation(16, {1, 1}).view({2, 8});
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 60; ++step) {
    const RandomScope random({.seed = 1, .step = step});
    Tape tape;
    const Tensor loss = cross_entropy(model(ids), roll(ids, 1, 1));
    if (step == 0) first = loss.item();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item();
  }
  CHECK(last < first / 2);
  CHECK(model.seen.item_int() == 60 * 16);
  model.eval();
  CHECK(test::mismatch(model(ids), model(ids), 0) == "");
}

TEST_CASE("own module: a member that visit() forgets is found") {
  const Forgetful model;
  CHECK_THROWS_WITH_AS(optim::AdamW(model, {.lr = 0.1}),
                       "visit: every parameter of weft::own_module_test::(anonymous "
                       "namespace)::Forgetful must be listed, but one of shape [2, 2] is not; add "
                       "it to visit()",
                       Error);
  Tape tape;
  const Tensor loss = model(Tensor::ones({1, 2})).sum();
  const std::string missing = nn::compare_leaves(tape, model).text();
  CHECK(missing.find("visit() does not list it") != std::string::npos);
}

TEST_CASE("own module: planned on meta, then given memory") {
  const nn::DeviceScope on_meta(kMeta);
  Positions positions(6, 4);
  CHECK(positions.angles.is_meta());
  nn::materialise(positions, kCpu, 1);
  const Tensor x = Tensor::zeros({2, 4});
  CHECK(positions(x).select(0, 1).select(0, 0).item() == doctest::Approx(std::sin(1.0)));
  CHECK(positions.state_dict().empty());
  positions.to(DType::bf16);
  CHECK(positions.angles.dtype() == DType::f32);
  CHECK(positions(x.to(DType::bf16)).dtype() == DType::bf16);
  positions.to(DType::f64);
  CHECK(positions.angles.dtype() == DType::f64);
  CHECK(positions(x.to(DType::f64))[1][0].item() == doctest::Approx(std::sin(1.0)).epsilon(1e-14));
}

}  // namespace weft::own_module_test
