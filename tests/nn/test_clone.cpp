// Modules that only nn::clone() must get right: children owned through a base class, members behind
// pointers. test_module.cpp clones the others.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/child.h"
#include "weft/nn/linear.h"
#include "weft/nn/shard.h"
#include "weft/tests/support.h"

namespace weft::clone_test {
using nn::Init;

namespace {

struct Layer : nn::Module {
  virtual double factor() const = 0;
};
struct Scaled : Layer {
  Tensor scale = nn::make_parameter({2}, Init::constant(1));
  double by;
  explicit Scaled(double f) : by(f) {}
  double factor() const override { return by; }
  void visit(nn::Visitor& v) override { v("scale", scale); }
};

struct Mixed : nn::Module {
  std::vector<nn::Child<Layer>> layers;
  std::vector<int> sizes{1, 2};
  std::function<Tensor(const Tensor&)> activation = [](const Tensor& x) { return relu(x); };
  Tensor twice = nn::make_parameter({3, 3}, Init::constant(1));
  nn::Linear tied;
  Mixed() {
    layers.emplace_back(Scaled(2));
    layers.emplace_back(std::make_unique<Scaled>(3));
    tied.weight = twice;
  }
  void visit(nn::Visitor& v) override {
    v("layers", layers);
    v("twice", twice);
    v("again", twice);
    v("tied", tied);
  }
};

std::string names(const NamedTensors& ts) {
  std::string out;
  for (const NamedTensor& t : ts) out += t.name + ' ';
  return out;
}

}  // namespace

TEST_CASE("clone: it copies every member, a Child as its own class") {
  Mixed m;
  m.sizes.push_back(7);
  const Mixed c = nn::clone(m);
  CHECK(c.sizes == std::vector<int>{1, 2, 7});
  CHECK(c.activation(Tensor::full({1}, -1)).item() == 0);
  CHECK(c.layers[0]->factor() == 2);
  CHECK(c.layers[1]->factor() == 3);
  CHECK(names(c.named_parameters()) == "layers.0.scale layers.1.scale twice ");
  CHECK(c.tied.weight.same(c.twice));  // although visit() lists `twice` a second time in between
  const NamedTensors a = m.named_parameters(), b = c.named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].tensor.storage() != b[i].tensor.storage());
    CHECK(test::different_bits(a[i].tensor, b[i].tensor) == "");
  }
  CHECK_THROWS_AS(Mixed copy(m), Error);  // clone() permits its own copy only
}

TEST_CASE("clone: it refuses what it would share with the original or cut") {
  struct Shares : nn::Module {
    std::shared_ptr<nn::Linear> body = std::make_shared<nn::Linear>(2, 2);
    void visit(nn::Visitor& v) override { v("body", *body); }
  } shares;
  const Tensor weight = shares.body->weight;
  CHECK_THROWS_WITH_AS(nn::clone(shares),
                       "clone: body.weight must be a member of its module, got one behind a "
                       "pointer, which the copy has too; own it in an nn::Child",
                       Error);
  CHECK(shares.body->weight.same(weight));
  struct Wider : nn::Linear {
    nn::Linear more{2, 2};
    Wider() : nn::Linear(2, 2) {}
  };
  const Wider wider;
  const nn::Linear& base = wider;
  CHECK_THROWS_WITH_AS(
      nn::clone(base),
      "clone: Linear(2 -> 2) must be copied as its own class, got a reference to a "
      "base class; own it in an nn::Child",
      Error);
  CHECK_THROWS_AS(nn::Child<nn::Linear>(std::unique_ptr<nn::Linear>(new Wider)), Error);
  CHECK(nn::clone(wider).more.weight.shape() == Shape{2, 2});
}

TEST_CASE("clone: a copy of a sharded module is sharded") {
  nn::Linear m(2, 2);
  m.shard = std::make_shared<nn::Shard>();
  CHECK(nn::clone(m).shard == m.shard);
}

}  // namespace weft::clone_test
