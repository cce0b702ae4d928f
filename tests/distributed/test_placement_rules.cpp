// The rules of placements against ops on the whole tensors.
#include <doctest/doctest.h>

#include <functional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/view.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/placement_rules.h"
#include "weft/tests/placement_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::placement_rules_test {
namespace {

using Kind = PlacedOp::Kind;
using namespace test::placed;
using Function = std::function<Tensor(const TensorList&)>;

bool near(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && (a.numel() == 0 || max(abs(sub(a, b))).item() < 1e-12);
}

// Every rule of an op gives the result of the op on the whole tensors.
void check_rules(const PlacedOp& op, const TensorList& whole, const Function& f,
                 const MeshAxes& axes) {
  std::vector<Shape> shapes;
  for (const Tensor& x : whole) shapes.push_back(x.shape());
  const Tensor want = f(whole);
  for (const PlacementRule& rule : placement_rules(op, shapes, axes[0]->size())) {
    TensorList in;
    for (int i = 0; i < whole.size(); ++i)
      in.push_back(part_of(whole[i], {rule.operands[static_cast<std::size_t>(i)]}, axes));
    const Tensor got = value_of(f(in), want.shape(), {rule.result}, axes);
    CHECK_MESSAGE(near(got, want), int(op.kind), ": ", text_of(rule.operands), " to ",
                  rule.result.text());
  }
}

PlacedOperand operand(const Shape& whole, const Placements& p, bool moves = true) {
  return {.whole = whole, .dtype = DType::f64, .placements = p, .moves = moves};
}

std::string chosen(const PlacedOp& op, const std::vector<PlacedOperand>& in, const MeshAxes& axes) {
  const PlacementChoice c = choose_placements(op, in, axes, kUsualCluster);
  std::string text;
  for (const Placements& p : c.operands) text += "(" + text_of(p) + ") ";
  return text + "-> (" + text_of(c.result) + ")";
}

}  // namespace

TEST_CASE("placement rules: every rule gives the op's result, with even and uneven chunks") {
  test::distributed_test({2, 4}, [](World& w) {
    const MeshAxes axes{&w.all()};
    const auto x = [](const Shape& shape, std::uint64_t seed) {
      return test::random(shape, seed, DType::f64);
    };
    for (const std::int64_t n : {8, 5}) {
      const Tensor a = x({n, 3, 8}, 1), b = x({n, 3, 8}, 2), v = x({n, 1, 8}, 3), r = x({8}, 4);
      check_rules(
          {Kind::linear}, {a, x({n, 8}, 5)},
          [](const TensorList& t) { return linear(t[0], t[1], {}); }, axes);
      check_rules(
          {Kind::matmul}, {a, x({n, 8, 5}, 5)},
          [](const TensorList& t) { return matmul(t[0], t[1]); }, axes);
      for (const Tensor& other : {b, v, r}) {
        const auto with = [&](Kind kind, const Function& f) {
          check_rules({kind}, {a, other}, f, axes);
        };
        with(Kind::add, [](const TensorList& t) { return add(t[0], t[1]); });
        with(Kind::mul, [](const TensorList& t) { return mul(t[0], t[1]); });
        with(Kind::div, [](const TensorList& t) { return div(t[0], add(abs(t[1]), 1)); });
        with(Kind::maximum, [](const TensorList& t) { return maximum(t[0], t[1]); });
        with(Kind::minimum, [](const TensorList& t) { return minimum(t[0], t[1]); });
      }
      const auto one = [&](const PlacedOp& op, const Function& f) {
        check_rules(op, {a}, f, axes);
      };
      one({Kind::scale}, [](const TensorList& t) { return mul(t[0], 3); });
      one({Kind::neg}, [](const TensorList& t) { return neg(t[0]); });
      one({Kind::shift}, [](const TensorList& t) { return add(t[0], 10); });
      one({Kind::monotone}, [](const TensorList& t) { return exp(t[0]); });
      one({Kind::pointwise}, [](const TensorList& t) { return square(t[0]); });
      for (int d = 0; d < 3; ++d) {
        one({Kind::sum, d}, [d](const TensorList& t) { return sum(t[0], d, true); });
        one({Kind::mean, d}, [d](const TensorList& t) { return mean(t[0], d, true); });
        one({Kind::max, d}, [d](const TensorList& t) { return max(t[0], d, true); });
        one({Kind::min, d}, [d](const TensorList& t) { return min(t[0], d, true); });
        one({Kind::rows, d}, [d](const TensorList& t) { return softmax(t[0], d); });
      }
      one({Kind::transpose, 0, 2}, [](const TensorList& t) { return transpose(t[0], 0, 2); });
    }
  });
}

TEST_CASE("placement rules: what operands become, and which collectives that needs") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2});
    const MeshAxes tp{&mesh.tp()}, both{&mesh.dp(), &mesh.tp()};
    const Shape m{8, 8};
    const auto pair = [&](const PlacedOp& op, const AxisPlacement& a, const AxisPlacement& b) {
      return chosen(op, {operand(m, {a}), operand(m, {b})}, tp);
    };
    const auto one = [&](const PlacedOp& op, const AxisPlacement& a) {
      return chosen(op, {operand(m, {a})}, tp);
    };
    // Replicated operands stay: a free chunk is no gain.
    CHECK(pair({Kind::linear}, kR, kR) == "(R) (R) -> (R)");
    CHECK(pair({Kind::linear}, kR, s(0)) == "(R) (S(0)) -> (S(1))");
    CHECK(pair({Kind::linear}, s(1), s(1)) == "(S(1)) (S(1)) -> (P(sum))");
    CHECK(pair({Kind::linear}, kR, s(1)) == "(S(1)) (S(1)) -> (P(sum))");  // a free chunk of x
    // No sum of sums but by addition, and no product of two.
    CHECK(pair({Kind::add}, kSum, kSum) == "(P(sum)) (P(sum)) -> (P(sum))");
    CHECK(pair({Kind::mul}, kSum, kR) == "(P(sum)) (R) -> (P(sum))");
    CHECK(pair({Kind::mul}, kSum, kSum).find("(P(sum)) (P(sum))") == std::string::npos);
    CHECK(pair({Kind::maximum}, kMax, kSum).find("P(sum)") == std::string::npos);
    CHECK(pair({Kind::maximum}, kSum, kMax).find("P(sum)") == std::string::npos);
    CHECK(pair({Kind::add}, kR, kMax).find("(R) (P(max))") == std::string::npos);
    CHECK(one({Kind::monotone}, kSum).find("(P(sum))") == std::string::npos);
    CHECK(one({Kind::shift}, kSum).find("(P(sum))") == std::string::npos);
    CHECK(one({Kind::shift}, kAvg) == "(P(avg)) -> (P(avg))");
    CHECK(one({Kind::scale}, kSum) == "(P(sum)) -> (P(sum))");  // casts before the sum, not after
    CHECK(one({Kind::neg}, kMax) == "(P(max)) -> (P(min))");
    CHECK(one({Kind::max, 0}, kSum).find("(P(sum))") == std::string::npos);
    CHECK(one({Kind::sum, 0}, s(0)) == "(S(0)) -> (P(sum))");
    CHECK(one({Kind::rows, 1}, s(0)) == "(S(0)) -> (S(0))");
    CHECK(one({Kind::rows, 1}, s(1)).find("(S(1))") == std::string::npos);
    // On two axes: rows over dp, columns of the weight over tp.
    CHECK(chosen({Kind::linear}, {operand(m, {s(0), kR}), operand(m, {kR, s(0)})}, both) ==
          "(S(0), R) (R, S(0)) -> (S(0), S(1))");
  });
}

TEST_CASE(
    "placement rules: a number is added once, and a mean of uneven chunks is not an average") {
  test::distributed_test(2, [](World& w) {
    const MeshAxes axes{&w.all()};
    const Tensor x = Tensor::arange(0, 10, 1, DType::f64);
    const Tensor part = part_of(x, {s(0)}, axes);
    const Tensor total = sum(part, 0, true);  // P(sum)
    const PlacementChoice c =
        choose_placements({Kind::shift}, {operand({1}, {kSum})}, axes, kUsualCluster);
    const std::int64_t calls = w.all().calls();
    const Tensor y = add(redistribute(total, {1}, axes, {kSum}, c.operands[0]), 10);
    CHECK(w.all().calls() == calls + 1);
    CHECK(value_of(y, {1}, c.result, axes).item() == 55);
    const auto rules = placement_rules({Kind::mean, 0}, {{5}}, 2);
    CHECK(std::find(rules.begin(), rules.end(), PlacementRule{{s(0)}, kAvg}) == rules.end());
  });
}

TEST_CASE("placement rules: errors name operands, placements and mesh") {
  test::distributed_test(2, [](World& w) {
    const MeshAxes axes{&w.all()};
    const auto error = [&](const PlacedOp& op, const std::vector<PlacedOperand>& in) {
      return test::error_of([&] { choose_placements(op, in, axes, kUsualCluster); });
    };
    CHECK(error({Kind::select, 0}, {operand({4, 2}, {s(0)})}) ==
          "select: axis 0 must not be sharded, got f64[4, 2](S(0)) on mesh(world=2); redistribute "
          "it first");
    CHECK(error({Kind::mul}, {operand({4, 2}, {kSum}, false), operand({4, 2}, {kSum}, false)}) ==
          "mul: no rule computes with f64[4, 2](P(sum)) on mesh(world=2), f64[4, 2](P(sum)) on "
          "mesh(world=2)");
    CHECK(error({Kind::mul}, {operand({4, 2}, {kR})}) ==
          "placement_rules: mul must have 2 operands, got 1");
    CHECK(error({Kind::sum, 2}, {operand({4, 2}, {kR})}) ==
          "placement_rules: sum needs an axis of [4, 2], got 2");
    CHECK(error({Kind::add}, {operand({4, 2}, {s(2)}), operand({4, 2}, {kR})}) ==
          "add: S(2) must name an axis of [4, 2], got (S(2)) on mesh(world=2)");
  });
}

}  // namespace weft::distributed::placement_rules_test
