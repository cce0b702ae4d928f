#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/matmul.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::grouped_linear_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

Tensor rows_of(const std::vector<std::int64_t>& n) {
  return Tensor::from(std::span<const std::int64_t>(n), {static_cast<std::int64_t>(n.size())});
}

struct Case {
  std::vector<std::int64_t> rows;
  std::int64_t inputs, outputs;
  std::int64_t total() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  std::int64_t groups() const { return static_cast<std::int64_t>(rows.size()); }
};
// One group, empty groups at both ends, all rows in one group, no rows, groups on both sides of the
// threshold for a library call, enough work for several threads, and groups of one row.
const Case kCases[] = {{{3}, 2, 4},           {{0, 2, 0, 5, 0}, 3, 2},
                       {{0, 7, 0}, 5, 1},     {{0, 0}, 3, 3},
                       {{1, 40, 3}, 37, 41},  {{70, 0, 130, 1, 55}, 65, 96},
                       {{0, 300, 0}, 64, 80}, {{1, 0, 1, 1}, 70, 600}};

// A loop over the groups with one product each.
Tensor by_loop(const Tensor& x, const Tensor& w, const Tensor& bias, const Case& c,
               const Tensor& scale) {
  Tensor y = Tensor::zeros({c.total(), c.outputs}, x.dtype());
  TensorList parts;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < c.groups(); ++e) {
    const std::int64_t n = c.rows[static_cast<std::size_t>(e)];
    Tensor part = matmul(x.narrow(0, first, n), w.select(0, e).t());
    if (bias.defined()) {
      const Tensor b = bias.select(0, e).unsqueeze(0);
      part = add(part, scale.defined() ? mul(scale.narrow(0, first, n).unsqueeze(1), b) : b);
    }
    parts.push_back(part);
    first += n;
  }
  return cat(parts, 0);
}

// y and the gradients of x, w, bias and scale.
template <class F>
TensorList run(F f, const TensorList& given, const Tensor& dy) {
  TensorList in;
  for (const Tensor& t : given) {
    in.push_back(t.detach());
    in[in.size() - 1].set_requires_grad();
  }
  Tape tape;
  const Tensor y = f(in);
  TensorList out = tape.gradients(y, in, dy);
  out.push_back(y.detach());
  return out;
}

}  // namespace

TEST_CASE("grouped_linear: forward and backward equal a loop over the groups") {
  for (const Case& c : kCases)
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(c.inputs);
      CAPTURE(c.outputs);
      CAPTURE(std::string(name(t)));
      const Tensor rows = rows_of(c.rows);
      const TensorList in = {random({c.total(), c.inputs}, 1, t),
                             random({c.groups(), c.outputs, c.inputs}, 2, t),
                             random({c.groups(), c.outputs}, 3, t), random({c.total()}, 4, t)};
      const Tensor dy = random({c.total(), c.outputs}, 5, t);
      TensorList wide;
      for (const Tensor& x : in) wide.push_back(x.to(DType::f64));
      for (const int operands : {2, 3, 4}) {
        CAPTURE(operands);
        const auto part = [&](const TensorList& all) {
          TensorList some;
          for (int i = 0; i < operands; ++i) some.push_back(all[i]);
          return some;
        };
        const auto at = [](const TensorList& x, int i) { return i < x.size() ? x[i] : Tensor(); };
        const TensorList got = run(
            [&](const TensorList& x) {
              return grouped_linear(x[0], x[1], at(x, 2), rows, at(x, 3));
            },
            part(in), dy);
        const TensorList want =
            run([&](const TensorList& x) { return by_loop(x[0], x[1], at(x, 2), c, at(x, 3)); },
                part(wide), dy.to(DType::f64));
        for (int i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(got[i].dtype() == t);
          CHECK(mismatch(got[i], want[i], test::tolerance(t)) == "");
        }
      }
    }
}

TEST_CASE("grouped_linear: gradcheck with strided and repeated inputs") {
  const Tensor rows = rows_of({2, 0, 3});
  const auto op = [&](const TensorList& in) {
    return grouped_linear(in[0], in[1], in[2], rows, in[3]);
  };
  const auto no_scale = [&](const TensorList& in) {
    return grouped_linear(in[0], in[1], in[2], rows);
  };
  const Tensor x = random({5, 4}, 1), w = random({3, 2, 4}, 2), b = random({3, 2}, 3);
  const Tensor s = random({5}, 4);
  CHECK(gradcheck(op, {x, w, b, s}) == "");
  CHECK(gradcheck(no_scale, {x, w, b}) == "");
  CHECK(gradcheck(op, {test::strided(x), test::strided(w), test::strided(b), test::strided(s)}) ==
        "");
  const Tensor three = rows_of({3});
  CHECK(gradcheck(
            [&](const TensorList& in) {
              return grouped_linear(in[0], in[0].unsqueeze(0), {}, three);
            },
            {random({3, 3})}) == "");
}

TEST_CASE("grouped_linear: rows in any layout, forward and backward") {
  const Tensor gaps = Tensor::of({2, 9, 0, 9, 3, 9}, {6}, DType::i64).slice(0, 0, 6, 2);
  const Tensor one = Tensor::of({2}, {1}, DType::i64).expand({2});
  const auto same = [](const Tensor& rows, std::int64_t total) {
    const TensorList in = {random({total, 4}, 1), random({rows.dim(0), 2, 4}, 2)};
    const Tensor dy = random({total, 2}, 3);
    const auto with = [&](const Tensor& n) {
      return run([&](const TensorList& x) { return grouped_linear(x[0], x[1], {}, n); }, in, dy);
    };
    const TensorList got = with(rows), want = with(rows.clone());
    for (int i = 0; i < want.size(); ++i) CHECK(different_bits(got[i], want[i]) == "");
  };
  same(gaps, 5);
  same(one, 4);
}

TEST_CASE("D7: the weight of an empty group gets a gradient of exactly 0") {
  const Tensor x = random({4, 3}, 1, DType::f32), rows = rows_of({0, 4, 0});
  Tensor w = random({3, 2, 3}, 2, DType::f32);
  w.set_requires_grad();
  Tape tape;
  const Tensor dw =
      tape.gradients(grouped_linear(x, w, {}, rows), {w}, random({4, 2}).to(DType::f32))[0];
  CHECK(different_bits(dw.select(0, 0), Tensor::zeros({2, 3})) == "");
  CHECK(different_bits(dw.select(0, 2), Tensor::zeros({2, 3})) == "");
  CHECK(mismatch(dw.select(0, 1).abs().max(), Tensor::zeros({}), 1e-3) != "");
}

TEST_CASE("grouped_linear: gradients are added to main_grad and empty groups leave it unchanged") {
  const Tensor rows = rows_of({2, 0, 3});
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = random({5, 4}, 1, t), dy = random({5, 2}, 3, t);
    Tensor w = random({3, 2, 4}, 2, t);
    w.set_requires_grad();
    w.set_main_grad(Tensor::full({3, 2, 4}, 1));
    const auto step = [&] {
      Tape tape;
      grouped_linear(x, w, {}, rows).backward(dy);
    };
    step();
    step();
    CHECK_FALSE(w.grad().defined());
    const TensorList wide =
        run([&](const TensorList& in) { return grouped_linear(x.to(DType::f64), in[0], {}, rows); },
            {w.detach().to(DType::f64)}, dy.to(DType::f64));
    // The product is accumulated in f32 and added unrounded.
    CHECK(mismatch(w.main_grad(), add(mul(wide[0], 2.0), 1.0), 1e-6) == "");
    CHECK(w.main_grad().select(0, 1).min().item() == 1);
    CHECK(w.main_grad().select(0, 1).max().item() == 1);
  }
}

TEST_CASE("grouped_linear: deterministic mode gives the same bits for any number of threads") {
  const test::RestoreThreads restore;
  set_deterministic(true);
  for (const DType t : {DType::f32, DType::f64}) {
    const Case c{{300, 0, 17, 520}, 70, 600};
    const TensorList in = {random({c.total(), c.inputs}, 1, t),
                           random({c.groups(), c.outputs, c.inputs}, 2, t)};
    const Tensor dy = random({c.total(), c.outputs}, 3, t), rows = rows_of(c.rows);
    const auto f = [&](const TensorList& x) { return grouped_linear(x[0], x[1], {}, rows); };
    set_num_threads(1);
    const TensorList one = run(f, in, dy);
    for (const int n : {2, 3}) {
      set_num_threads(n);
      const TensorList more = run(f, in, dy);
      for (int i = 0; i < one.size(); ++i) CHECK(different_bits(more[i], one[i]) == "");
    }
  }
}

TEST_CASE("grouped_linear: meta gives the same shape") {
  const Tensor x = Tensor::empty({6, 4}, DType::bf16, kMeta);
  const Tensor w = Tensor::empty({2, 5, 4}, DType::bf16, kMeta);
  const Tensor b = Tensor::empty({2, 5}, DType::bf16, kMeta);
  const Tensor y = grouped_linear(x, w, b, rows_of({1, 5}));
  CHECK(y.shape() == Shape{6, 5});
  CHECK(y.dtype() == DType::bf16);
  CHECK(y.is_meta());
}

TEST_CASE("grouped_linear: errors name the rule") {
  const Tensor x = random({3, 2}), w = random({2, 4, 2}), b = random({2, 4}), n = rows_of({1, 2});
  const auto text = [](const Tensor& x0, const Tensor& w0, const Tensor& b0, const Tensor& n0,
                       const Tensor& s0 = {}) {
    return error_of([&] { grouped_linear(x0, w0, b0, n0, s0); });
  };
  CHECK(text({}, w, b, n) == "grouped_linear: x must be a tensor, got a null handle");
  CHECK(text(x, {}, b, n) == "grouped_linear: weight must be a tensor, got a null handle");
  CHECK(text(x, w, b, {}) == "grouped_linear: rows must be a tensor, got a null handle");
  CHECK(text(x.to(DType::i32), w, b, n) ==
        "grouped_linear: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(x.flatten(), w, b, n) == "grouped_linear: x must have shape (rows, inputs), got [6]");
  CHECK(text(x, w.select(0, 0), b, n) ==
        "grouped_linear: weight must have shape (groups, outputs, inputs) with at least 1 output "
        "and input, got [4, 2]");
  CHECK(text(x, Tensor::ones({2, 0, 2}, DType::f64), b, n) ==
        "grouped_linear: weight must have shape (groups, outputs, inputs) with at least 1 output "
        "and input, got [2, 0, 2]");
  CHECK(text(x, random({2, 4, 3}), b, n) ==
        "grouped_linear: weight must have shape [2, 4, 2], got [2, 4, 3]");
  CHECK(text(x, w.to(DType::f32), b, n) ==
        "grouped_linear: weight must be f64 on cpu like x, got f32 on cpu");
  CHECK(text(x, w, random({4}), n) == "grouped_linear: bias must have shape [2, 4], got [4]");
  CHECK(text(x, w, b, rows_of({1, 1, 1})) == "grouped_linear: rows must have shape [2], got [3]");
  CHECK(text(x, w, b, n.to(DType::i32)) ==
        "grouped_linear: rows must be i64 on cpu, got i32 on cpu");
  CHECK(text(x, w, b, rows_of({4, -1})) ==
        "grouped_linear: rows must be at least 0, got -1 for group 1");
  CHECK(text(x, w, b, rows_of({1, 1})) ==
        "grouped_linear: rows must sum to the 3 rows of x, got 2");
  CHECK(text(x, w, {}, n, random({3})) == "grouped_linear: bias_scale needs a bias");
  CHECK(text(x, w, b, n, random({2})) == "grouped_linear: bias_scale must have shape [3], got [2]");
}

}  // namespace weft::grouped_linear_test
