// Placements of a tensor on a mesh, and the steps between them.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduction.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/placement_steps.h"
#include "weft/distributed/redistribute.h"
#include "weft/tests/placement_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::redistribute_test {
namespace {

using namespace test::placed;

// Small whole numbers: sums and averages over 2 and 4 ranks are exact.
Tensor whole_of(const Shape& shape) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(8 * i) - 40;
  return Tensor::from(v, shape);
}

void check_all_pairs(const Shape& shape, const MeshAxes& axes) {
  const Tensor whole = whole_of(shape);
  const Placements each{kR, s(0), s(1), kSum, kAvg, kMax, kMin};
  std::vector<Placements> all;
  for (const AxisPlacement& a : each) {
    if (axes.size() == 1) all.push_back({a});
    if (axes.size() == 2)
      for (const AxisPlacement& b : each)
        if (reduces_in_any_order({a, b})) all.push_back({a, b});
  }
  std::string wrong;
  for (const Placements& from : all) {
    const Tensor x = part_of(whole, from, axes);
    for (const Placements& to : all) {
      const Tensor y = redistribute(x, shape, axes, from, to);
      if (y.shape() != nn::shape_of(shard_spec(shape, to, axes)) ||
          test::different_bits(value_of(y, shape, to, axes), whole) != "" ||
          (std::none_of(to.begin(), to.end(), [](auto& p) { return p.is_partial(); }) &&
           test::different_bits(y, cut(whole, shard_spec(shape, to, axes))) != ""))
        wrong += describe(x.dtype(), shape, from, axes) + " to " +
                 describe(x.dtype(), shape, to, axes) + "\n";
    }
  }
  CHECK(wrong == "");
}

std::string steps(const Placements& from, const Placements& to, const MeshAxes& axes) {
  std::string text;
  for (const PlacementStep& step :
       cheapest_steps({64, 64}, DType::f32, axes, from, to, kUsualCluster).steps)
    text += message("{}:{} ", step.axis, step.to.text());
  return text;
}

}  // namespace

TEST_CASE("redistribute: any pair, with even, uneven and empty shards, along one axis") {
  test::distributed_test({1, 2, 4}, [](World& w) {
    for (const Shape& shape : {Shape{4, 8}, Shape{5, 3}, Shape{1, 6}, Shape{0, 3}})
      check_all_pairs(shape, {&w.all()});
  });
}

TEST_CASE("redistribute: any pair on a mesh of 2 x 2, with nested cuts of 5 rows") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2});
    check_all_pairs({5, 3}, {&mesh.dp(), &mesh.tp()});
    test::check_same_traces(w);
  });
}

TEST_CASE("redistribute: the cheapest steps, and none between identical placements") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2});
    const MeshAxes both{&mesh.dp(), &mesh.tp()}, tp{&mesh.tp()};
    CHECK(steps({kSum}, {kSum}, tp) == "");
    CHECK(steps({kR}, {s(0)}, tp) == "0:S(0) ");
    CHECK(steps({s(0)}, {s(1)}, tp) == "0:S(1) ");
    CHECK(steps({kSum}, {s(1)}, tp) == "0:S(1) ");
    CHECK(steps({kSum}, {kAvg}, tp) == "0:R 0:P(avg) ");
    CHECK(steps({s(0), s(0)}, {kR, kR}, both) == "1:R 0:R ");  // the inner cut first
    // Half the bytes are summed: the free chunk comes first.
    CHECK(steps({kSum, kR}, {kR, s(0)}, both) == "1:S(0) 0:R ");
    // The time is that of the collectives that run.
    const Cluster c{.devices_per_host = 2, .base_us = 10, .inside = {1, 1e6}, .across = {5, 1e5}};
    const double us = cheapest_steps({4, 4}, DType::f32, both, {s(0), kSum}, {kR, kR}, c).us;
    CHECK(us == doctest::Approx((10 + 2 * 1 + 2 * 16.0) + (10 + 5 + 320.0)));
    CHECK(cheapest_steps({4, 4}, DType::f32, tp, {kR}, {kSum}, c).us > 0);
    const std::int64_t calls = mesh.tp().calls();
    const Tensor x = whole_of({4, 4});
    CHECK(redistribute(x, {4, 4}, tp, {kSum}, {kSum}).impl() == x.impl());
    CHECK(mesh.tp().calls() == calls);
  });
}

TEST_CASE("redistribute: an average beside a sum divides by the ranks of its own axis only") {
  test::distributed_test(8, [](World& w) {
    DeviceMesh mesh(w, {.dp = 4, .tp = 2});
    const MeshAxes axes{&mesh.dp(), &mesh.tp()};
    const Tensor one = Tensor::full({3}, 1.0, DType::f64);
    CHECK(test::different_bits(redistribute(one, {3}, axes, {kAvg, kSum}, {kR, kR}),
                               Tensor::full({3}, 2.0, DType::f64)) == "");
    CHECK(test::different_bits(redistribute(one, {3}, axes, {kSum, kAvg}, {kR, kR}),
                               Tensor::full({3}, 4.0, DType::f64)) == "");
  });
}

TEST_CASE("redistribute: an average in f16 whose sum is out of range") {
  test::distributed_test({2, 3, 8}, [](World& w) {
    const Tensor x = Tensor::full({w.size()}, 40000, DType::f16);
    for (const AxisPlacement& to : {kR, s(0)})
      CHECK(redistribute(x, {w.size()}, {&w.all()}, {kAvg}, {to}).select(0, 0).item() == 40000);
  });
}

TEST_CASE("redistribute: gradients are placed as their tensors") {
  test::distributed_test({2, 4}, [](World& w) {
    const MeshAxes axes{&w.all()};
    const Shape shape{5, 3};
    const Tensor whole = whole_of(shape), weight = add(whole, 1.0);
    for (const AxisPlacement& from : {kR, s(0), s(1), kSum, kAvg})
      for (const AxisPlacement& to : {kR, s(0), s(1)}) {
        if (from == to) continue;
        Tensor x = part_of(whole, {from}, axes).clone();
        x.set_requires_grad(true);
        Tape tape;
        const Tensor y = redistribute(x, shape, axes, {from}, {to});
        sum(mul(y, cut(weight, shard_spec(shape, {to}, axes)))).backward();
        Tensor expected = cut(weight, shard_spec(shape, {from}, axes));
        if (from == kAvg) expected = mul(expected, 1.0 / w.size());
        CHECK(test::different_bits(x.grad(), expected) == "");
      }
  });
}

TEST_CASE("redistribute: errors name the operand, its placements and the mesh") {
  test::distributed_test(2, [](World& w) {
    const MeshAxes axes{&w.all()};
    const Tensor x = whole_of({5, 3});
    const auto to = [&](const Tensor& t, const Placements& from, const Placements& placements) {
      return test::error_of([&] { redistribute(t, {5, 3}, axes, from, placements); });
    };
    CHECK(to(x, {kR, kR}, {kR}) ==
          "redistribute: mesh(world=2) must have one placement for each axis, got (R, R)");
    CHECK(to(x, {kR}, {s(2)}) ==
          "redistribute: S(2) must name an axis of [5, 3], got (S(2)) on mesh(world=2)");
    CHECK(to(x, {s(0)}, {kR}) ==
          message("redistribute: the part of f64[5, 3](S(0)) on mesh(world=2) must have shape "
                  "[{}, 3], got [5, 3]",
                  w.rank() == 0 ? 3 : 2));
    CHECK(to(Tensor::empty({5, 3}, DType::i32), {kAvg}, {kR}) ==
          "redistribute: an average needs dtype f32, f64, bf16 or f16, got i32[5, 3](P(avg)) on "
          "mesh(world=2)");
    const MeshAxes two{&w.all(), &w.all()};
    CHECK(test::error_of([&] {
            shard_spec({5, 3}, {kMax, kSum}, two);
          }) ==
          "shard_spec: the partials must be sums and averages, or maxima, or minima, got (P(max), "
          "P(sum)) on mesh(world=2, world=2)");
    Tensor leaf = x.clone();
    leaf.set_requires_grad(true);
    Tape tape;
    CHECK(to(leaf, {kMax}, {kR}) ==
          "redistribute: a maximum or minimum of ranks has no gradient, got f64[5, 3](P(max)) on "
          "mesh(world=2)");
  });
}

}  // namespace weft::distributed::redistribute_test
