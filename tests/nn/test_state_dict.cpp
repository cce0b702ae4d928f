#include <doctest/doctest.h>

#include "weft/nn/linear.h"
#include "weft/tests/support.h"

namespace weft::state_dict_test {

namespace {

struct Pair : nn::Module {
  nn::Linear a{3, 4}, b{4, 2}, tied{3, 4};
  Tensor counter = Tensor::zeros({1}, DType::i64), table = Tensor::zeros({2});
  Pair() { tied.weight = a.weight; }
  void visit(nn::Visitor& v) override {
    v("a", a);
    v("b", b);
    v("tied", tied);
    v("counter", nn::buffer(counter));
    v("table", nn::table(table));
  }
};

struct OneName : nn::Module {
  nn::Linear a{2, 2}, b{2, 2};
  void visit(nn::Visitor& v) override {
    v("a", a);
    v("a", b);
  }
};

}  // namespace

TEST_CASE("state_dict: a name that two tensors have is an error") {
  const std::string want =
      "state_dict: every name must be of one tensor, and visit() lists two as a.weight";
  CHECK(test::error_of([] { OneName().state_dict(); }) == want);
  CHECK(test::error_of([] { OneName().load_state_dict({}, false); }) == want);
}

TEST_CASE("load_state_dict: a model on meta takes no values") {
  Pair from;
  const nn::DeviceScope on_meta(kMeta);
  Pair to;
  CHECK(test::error_of([&] { to.load_state_dict(from.state_dict()); }) ==
        "load_state_dict: a.weight is on device meta and holds no values; give the model memory "
        "with to_empty() or materialise()");
  CHECK(to.load_state_dict(to.state_dict()).missing.empty());  // shapes and names alone
}

TEST_CASE("state_dict: lists ties once, includes buffers, omits tables and shares memory") {
  const Pair m;
  const StateDict s = m.state_dict();
  std::string names;
  for (const auto& [name, tensor] : s) names += name + ' ';
  CHECK(names == "a.bias a.weight b.bias b.weight counter tied.bias ");
  CHECK(s.at("a.weight").storage() == m.a.weight.storage());
  CHECK(!s.at("a.weight").requires_grad());
}

TEST_CASE("load_state_dict: a round trip restores every value into the same memory") {
  manual_seed(1);
  Pair from, to;
  from.counter.fill_(41);
  const Tensor handle = to.a.weight;
  const Storage* memory = handle.storage();
  const nn::LoadReport report = to.load_state_dict(from.state_dict());
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
  CHECK(handle.storage() == memory);
  CHECK(to.tied.weight.same(handle));
  CHECK(to.counter.item_int() == 41);
  const StateDict a = from.state_dict(), b = to.state_dict();
  for (const auto& [name, tensor] : a) CHECK(test::different_bits(tensor, b.at(name)) == "");
}

TEST_CASE("load_state_dict: values are converted to the model's dtype") {
  Pair m;
  StateDict s = m.state_dict();
  s.at("b.bias") = Tensor::of({0.1, -2}, {2}, DType::f64);
  m.load_state_dict(s);
  CHECK(m.b.bias.dtype() == DType::f32);
  CHECK(m.b.bias.data<float>()[0] == 0.1f);
}

TEST_CASE("load_state_dict: a tied tensor is accepted under any of its names") {
  Pair m;
  StateDict s = m.state_dict();
  s.erase("a.weight");
  s.emplace("tied.weight", Tensor::full({4, 3}, 5));
  CHECK(m.load_state_dict(s).unexpected.empty());
  CHECK(m.a.weight.data<float>()[7] == 5);
  s.emplace("a.weight", Tensor::full({4, 3}, 6));
  for (const bool strict : {true, false})
    CHECK(
        test::error_of([&] { m.load_state_dict(s, strict); }) ==
        "load_state_dict: tied.weight must have the values of a.weight, as both are one tensor of "
        "the model");
  CHECK(m.a.weight.data<float>()[7] == 5);
  s.at("tied.weight") = Tensor::full({4, 3}, 6, DType::f64);  // equal in the model's dtype
  CHECK(m.load_state_dict(s).unexpected.empty());
  CHECK(m.a.weight.data<float>()[7] == 6);
  s.at("tied.weight") = Tensor::zeros({7, 9});
  CHECK(test::error_of([&] { m.load_state_dict(s); }) ==
        "load_state_dict: tied.weight must have shape [4, 3], got [7, 9]");
}

TEST_CASE("load_state_dict: strict reports missing and unexpected names and changes nothing") {
  Pair m;
  StateDict s = m.state_dict();
  for (auto& [name, tensor] : s) tensor = Tensor::full(tensor.shape(), 9, tensor.dtype());
  s.erase("a.bias");
  s.erase("b.weight");
  s.emplace("head.weight", Tensor::zeros({1}));
  const Tensor before = m.b.bias.detach().clone();
  CHECK(test::error_of([&] { m.load_state_dict(s); }) ==
        "load_state_dict: missing a.bias, b.weight; unexpected head.weight");
  CHECK(test::different_bits(m.b.bias, before) == "");

  const nn::LoadReport report = m.load_state_dict(s, false);
  CHECK(report.missing == std::vector<std::string>{"a.bias", "b.weight"});
  CHECK(report.unexpected == std::vector<std::string>{"head.weight"});
  CHECK(m.b.bias.data<float>()[0] == 9);
  CHECK(m.a.bias.data<float>()[0] == 0);
}

TEST_CASE("load_state_dict: a different shape is always an error") {
  Pair m;
  StateDict s = m.state_dict();
  s.at("a.weight") = Tensor::zeros({3, 4});
  s.at("b.bias") = Tensor::zeros({1, 2});
  for (const bool strict : {true, false})
    CHECK(test::error_of([&] { m.load_state_dict(s, strict); }) ==
          "load_state_dict: a.weight must have shape [4, 3], got [3, 4], b.bias must have shape "
          "[2], got [1, 2]");
  s.erase("tied.bias");
  CHECK(test::error_of([&] { m.load_state_dict(s); }) ==
        "load_state_dict: a.weight must have shape [4, 3], got [3, 4], b.bias must have shape [2], "
        "got [1, 2]; missing tied.bias");
}

TEST_CASE("load_state_dict: a null tensor is named") {
  Pair m;
  StateDict s = m.state_dict();
  s.at("b.bias") = Tensor();
  CHECK(test::error_of([&] { m.load_state_dict(s); }) ==
        "load_state_dict: b.bias must be a tensor, got null");
}

TEST_CASE("load_state_dict: a long list of names is truncated") {
  Pair m;
  StateDict s = m.state_dict();
  for (int i = 0; i < 11; ++i) s.emplace("x" + std::to_string(10 + i), Tensor::zeros({1}));
  CHECK(test::error_of([&] { m.load_state_dict(s); }) ==
        "load_state_dict: unexpected x10, x11, x12, x13, x14, x15, x16, x17 and 3 more");
}

}  // namespace weft::state_dict_test
