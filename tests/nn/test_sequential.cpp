#include <doctest/doctest.h>

#include <sstream>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/nn/dropout.h"
#include "weft/nn/linear.h"
#include "weft/nn/norm.h"
#include "weft/nn/sequential.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"

namespace weft::sequential_test {

namespace {

nn::Sequential classifier() {
  return nn::Sequential(
      nn::Linear(6, 5), [](const Tensor& x) { return relu(x); }, nn::Dropout(0.1),
      nn::Linear(5, 3));
}

}  // namespace

TEST_CASE("sequential: applies its items in order and numbers them as PyTorch does") {
  nn::Sequential net = classifier();
  net.eval();
  const Tensor x = test::random({2, 6}, 1, DType::f32);
  const auto& first = net.at<nn::Linear>(0);
  const auto& last = net.at<nn::Linear>(3);
  CHECK(test::different_bits(net(x), last(relu(first(x)))) == "");
  CHECK(net.size() == 4);
  std::string names;
  for (const NamedTensor& p : net.named_parameters()) names += p.name + ' ';
  CHECK(names == "0.weight 0.bias 3.weight 3.bias ");
  std::ostringstream tree;
  tree << net;
  CHECK(tree.str() ==
        "Sequential  53 parameters\n"
        "  0: Linear(6 -> 5)  35 parameters\n"
        "    weight [5, 6] f32\n"
        "    bias [5] f32\n"
        "  2: Dropout(0.1)\n"
        "  3: Linear(5 -> 3)  18 parameters\n"
        "    weight [3, 5] f32\n"
        "    bias [3] f32\n");
}

TEST_CASE("sequential: modes, dtypes, state dictionaries and clone() reach the items") {
  nn::Sequential net = classifier();
  nn::Sequential twin = nn::clone(net);
  twin.at<nn::Linear>(0).weight.detach().fill_(0);
  CHECK(test::different_bits(net.at<nn::Linear>(0).weight, twin.at<nn::Linear>(0).weight) != "");
  twin.load_state_dict(net.state_dict());
  net.eval();
  twin.eval();
  CHECK(!twin.at<nn::Dropout>(2).is_training());
  const Tensor x = test::random({2, 6}, 1, DType::f32);
  CHECK(test::different_bits(net(x), twin(x)) == "");
  twin.to(DType::f64);
  CHECK(test::mismatch(twin(x.to(DType::f64)), net(x), 1e-5) == "");
}

TEST_CASE("sequential: grows, nests, may be empty, and trains as one module") {
  nn::Sequential net;
  const Tensor x = test::random({4, 6}, 1, DType::f32);
  CHECK(net(x).same(x));
  net.add(classifier());
  net.add(nn::LayerNorm(3));
  net.add([scale = 2.0](const Tensor& t) { return t * scale; });
  CHECK(net.named_parameters()[0].name == "0.0.weight");
  CHECK(net(x).shape() == Shape{4, 3});
  optim::Sgd sgd(net, {.lr = 0.1});
  const Tensor before = net.at<nn::Sequential>(0).at<nn::Linear>(0).weight.detach().clone();
  Tape tape;
  net(x).square().sum().backward();
  sgd.step();
  CHECK(test::different_bits(before, net.at<nn::Sequential>(0).at<nn::Linear>(0).weight) != "");
}

TEST_CASE("sequential: errors of at()") {
  const nn::Sequential net = classifier();
  const auto text = [&](std::size_t i) {
    try {
      net.at<nn::Linear>(i);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(text(3) == "");
  CHECK(text(2) == "sequential: item 2 of 4 must be of the requested type, got Dropout(0.1)");
  CHECK(text(1) == "sequential: item 1 of 4 must be of the requested type, got a function");
  CHECK(text(4) == "sequential: item 4 of 4 must be of the requested type, got none");
}

}  // namespace weft::sequential_test
