#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"

namespace weft::reduce_grad_test {
using test::mismatch;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Reduction = Tensor (*)(const Tensor&);

struct Case {
  const char* name;
  Reduction op;
};
// For x with three axes.
const Case kCases[] = {
    {"sum", [](const Tensor& x) { return sum(x); }},
    {"sum 1", [](const Tensor& x) { return sum(x, {1}); }},
    {"sum 0 2",
     [](const Tensor& x) {
       return sum(x, {2, 0}, true);
     }},
    {"mean", [](const Tensor& x) { return mean(x); }},
    {"mean -1", [](const Tensor& x) { return mean(x, {-1}); }},
    {"max", [](const Tensor& x) { return max(x); }},
    {"max 0", [](const Tensor& x) { return max(x, 0); }},
    {"max -1", [](const Tensor& x) { return max(x, -1, true); }},
    {"min", [](const Tensor& x) { return min(x); }},
    {"min 1", [](const Tensor& x) { return min(x, 1); }},
    {"var", [](const Tensor& x) { return var(x, {}, 0); }},
    {"var 0 2",
     [](const Tensor& x) {
       return var(x, {0, 2}, 0);
     }},
    {"var 1", [](const Tensor& x) { return var(x, {1}, 1, true); }},
    {"norm 1", [](const Tensor& x) { return norm(x, 1); }},
    {"norm 2", [](const Tensor& x) { return norm(x); }},
    {"norm of rows", [](const Tensor& x) { return norm(x, {-1}); }},
    {"norm 3.5", [](const Tensor& x) { return norm(x, 3.5); }},
    {"norm inf", [](const Tensor& x) { return norm(x, kInf); }},
    {"logsumexp", [](const Tensor& x) { return logsumexp(x); }},
    {"logsumexp 0", [](const Tensor& x) { return logsumexp(x, 0, true); }},
    {"cumsum", [](const Tensor& x) { return cumsum(x); }},
    {"cumsum 1", [](const Tensor& x) { return cumsum(x, 1); }},
    {"sum_to",
     [](const Tensor& x) {
       return sum_to(x, {x.dim(1), 1});
     }},
};

Tensor gradient(Reduction f, const Tensor& x, const Tensor& dy = {}) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  return tape.gradients(f(leaf), {leaf}, dy)[0];
}

}  // namespace

TEST_CASE("reduce: gradients match finite differences twice") {
  GradcheckOptions twice;
  twice.second_order = true;
  twice.step = 1e-5;
  twice.tolerance = 1e-5;
  for (const Case& c : kCases) {
    CAPTURE(std::string(c.name));
    const auto f = [&](const TensorList& in) { return c.op(in[0]); };
    // Squared, because the gradient of a linear function is constant.
    const auto squared = [&](const TensorList& in) { return square(c.op(in[0])); };
    for (const Tensor& x : {test::random({2, 3, 4}, 3), test::strided(test::random({3, 2, 5}, 4)),
                            test::random({4, 5, 2}, 5).transpose(0, 2)}) {
      CHECK(gradcheck(f, {x}) == "");
      CHECK(gradcheck(squared, {x}, twice) == "");
    }
    const auto again = [&](const TensorList& in) { return c.op(in[0] * in[0]) * c.op(in[0]); };
    CHECK(gradcheck(again, {test::random({2, 3, 2}, 6)}) == "");
  }
}

TEST_CASE("reduce: gradients of empty tensors are empty") {
  for (const Case& c : kCases) {
    if (std::string(c.name).starts_with("m")) continue;  // max and min have no element to choose
    if (std::string(c.name) == "norm inf") continue;
    CAPTURE(std::string(c.name));
    const Tensor x = Tensor::empty({2, 0, 3}, DType::f64);
    CHECK(gradcheck([&](const TensorList& in) { return sum(c.op(in[0])); }, {x}) == "");
  }
}

TEST_CASE("reduce: f32 and bf16 gradients agree with f64") {
  for (const Case& c : kCases)
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(std::string(c.name));
      const Tensor x = test::random({3, 4, 5}, 7, t);
      const Tensor dy = test::random(c.op(x).shape(), 8, t);
      const Tensor got = gradient(c.op, x, dy);
      CHECK(got.dtype() == t);
      CHECK(mismatch(got, gradient(c.op, x.to(DType::f64), dy.to(DType::f64)),
                     2 * test::tolerance(t)) == "");
    }
}

TEST_CASE("reduce: bf16 gradients where bf16 cannot represent the mean or the sum") {
  const auto close = [](Reduction op, const Tensor& x) {
    const Tensor want = gradient(op, x.to(DType::f64), Tensor::ones({}, DType::f64));
    return mismatch(gradient(op, x, Tensor::ones({}, DType::bf16)), want, 0.01);
  };
  CHECK(close([](const Tensor& t) { return var(t, {0}); },
              Tensor::of({1000, 1004, 1008, 1016}, {4}, DType::bf16)) == "");
  CHECK(close([](const Tensor& t) { return logsumexp(t); },
              Tensor::of({100, 100, 99}, {3}, DType::bf16)) == "");
}

TEST_CASE("reduce: max and min pass the gradient to the first of equal elements") {
  const Tensor x = Tensor::of({1, 3, 3, 0, 0, 3}, {2, 3});
  CHECK(mismatch(gradient([](const Tensor& t) { return max(t); }, x),
                 Tensor::of({0, 1, 0, 0, 0, 0}, {2, 3}), 0) == "");
  CHECK(mismatch(gradient([](const Tensor& t) { return min(t); }, x),
                 Tensor::of({0, 0, 0, 1, 0, 0}, {2, 3}), 0) == "");
  CHECK(mismatch(gradient([](const Tensor& t) { return max(t, 0); }, x, Tensor::ones({3})),
                 Tensor::of({1, 1, 1, 0, 0, 0}, {2, 3}), 0) == "");
}

TEST_CASE("reduce: second gradients of norms are finite and 0 at elements of 0") {
  for (const double p : {0.5, 1.0, 1.5, 1.9, 3.0}) {
    CAPTURE(p);
    const auto second = [&](std::initializer_list<double> v) {
      const Tensor x =
          Tensor::of(v, {static_cast<std::int64_t>(v.size())}, DType::f64).set_requires_grad();
      Tape outer;
      Tensor dx;
      {
        Tape inner;
        dx = inner.gradients(square(norm(x, p)), {x})[0];
      }
      return test::values(outer.gradients(sum(dx * dx), {x})[0]);
    };
    // The other elements are independent of the 0, except for p < 1.
    const std::vector<double> with = second({0, 4, -3}), without = second({4, -3});
    CHECK(with[0] == 0);
    CHECK(with[1] == doctest::Approx(without[0]));
    CHECK(with[2] == doctest::Approx(without[1]));
    CHECK(second({0, 0}) == std::vector<double>{0, 0});
  }
}

TEST_CASE("reduce: gradients at the edge of the domain are finite") {
  for (const double p : {0.3, 0.5, 1.0, 1.5, 2.0, 3.0, kInf}) {
    Tensor x = Tensor::zeros({4}, DType::f64);
    x.set_requires_grad();
    Tape tape;
    CHECK(mismatch(tape.gradients(norm(x, p), {x})[0], Tensor::zeros({4}), 0) == "");
  }
  for (const double dy : {1.0, kInf}) {
    const Tensor x = Tensor::of({0, 4}, {2}, DType::f64).set_requires_grad();
    Tape tape;
    const Tensor dx = tape.gradients(norm(x, 0.5), {x}, Tensor::full({}, dy, DType::f64))[0];
    CHECK(test::values(dx) == std::vector<double>{0, dy});
  }
  // The root's infinite slope is multiplied by a slope of 0.
  for (const double p : {0.5, 2.0, 3.0}) {
    const Tensor x = Tensor::zeros({3}, DType::f64).set_requires_grad();
    Tape tape;
    CHECK(mismatch(tape.gradients(sqrt(norm(x, p)), {x})[0], Tensor::zeros({3}), 0) == "");
  }
  const Tensor x = Tensor::of({-kInf, -kInf, -kInf, 1}, {2, 2});
  CHECK(mismatch(gradient([](const Tensor& t) { return logsumexp(t); }, x, Tensor::ones({2})),
                 Tensor::of({0, 0, 0, 1}, {2, 2}), 0) == "");
}

TEST_CASE("reduce: gradients whose factors leave the range of f16") {
  const auto at = [](auto f, std::initializer_list<double> x, double dy, DType t) {
    const Tensor leaf = Tensor::of(x, {static_cast<std::int64_t>(x.size())}, t).set_requires_grad();
    Tape tape;
    const Tensor y = f(leaf);
    TensorList out{y.detach().to(DType::f64)};
    out.push_back(tape.gradients(y, {leaf}, Tensor::full({}, dy, t))[0].to(DType::f64));
    return out;
  };
  const auto agrees = [&](auto f, std::initializer_list<double> x, double dy, DType t,
                          double tolerance) {
    const TensorList got = at(f, x, dy, t), want = at(f, x, dy, DType::f64);
    return test::mismatch(got[0], want[0], tolerance) + test::mismatch(got[1], want[1], tolerance);
  };
  const auto deviation = [](const Tensor& x) { return stddev(x); };
  // The variances are 93,333, 3e-10 and 1e40.
  CHECK(agrees(deviation, {300, -300, 100}, 1, DType::f16, 2e-3) == "");
  CHECK(agrees(deviation, {1e-5, 4e-5, 2e-5, 4e-5}, 1, DType::f16, 4e-2) == "");
  CHECK(agrees(deviation, {1e20, -1e20, 3e19}, 1, DType::f32, 1e-6) == "");
  const auto length = [](const Tensor& x) { return norm(x); };
  const auto along = [](const Tensor& x) { return norm(x, {0}); };
  CHECK(agrees(length, {0.25, 0.125}, 40000, DType::f16, 2e-3) == "");
  CHECK(agrees(along, {0.25, 0.125}, 40000, DType::f16, 2e-3) == "");
}

TEST_CASE("reduce: products and standard deviations, gradients twice, with zeros") {
  GradcheckOptions o;
  o.second_order = true;
  o.step = 1e-5;
  o.tolerance = 1e-5;
  const Tensor zeros = Tensor::of({{1, 0, 3}, {0, 0, 2}}, DType::f64);
  for (const Tensor& x : {test::random({2, 5}), test::strided(test::random({2, 3})), zeros}) {
    CHECK(gradcheck([](const TensorList& in) { return square(prod(in[0], 1)); }, {x}, o) == "");
    CHECK(gradcheck([](const TensorList& in) { return prod(in[0]); }, {x}) == "");
  }
  const auto deviation = [](const TensorList& in) { return stddev(in[0], {1}); };
  CHECK(gradcheck(deviation, {test::random({3, 5})}, o) == "");
  const Tensor constant = Tensor::ones({4}, DType::f64).set_requires_grad();
  Tape tape;
  CHECK(test::values(tape.gradients(stddev(constant), {constant})[0]) ==
        std::vector<double>{0, 0, 0, 0});
}

}  // namespace weft::reduce_grad_test
