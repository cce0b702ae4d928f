#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/rope.h"
#include "weft/tests/support.h"

namespace weft::rope_test {

namespace {

const std::int64_t kMaxT = 16;

RopeTables tables(std::int64_t d, DType t = DType::f64) { return rope_tables(kMaxT, d, 100, t); }

// Rotates every pair by its angle, in f64. `at(b, t)` is a token's position.
template <class At>
Tensor by_definition(const Tensor& x, const At& at) {
  const std::int64_t B = x.dim(0), T = x.dim(1), H = x.dim(2), D = x.dim(3);
  std::vector<double> a(static_cast<std::size_t>(x.numel())), y(a.size());
  x.copy_to(a);
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t h = 0; h < H; ++h)
        for (std::int64_t i = 0; i < D / 2; ++i) {
          const double angle = at(b, t) * std::pow(100.0, -2.0 * double(i) / double(D));
          const auto p = static_cast<std::size_t>(((b * T + t) * H + h) * D + i);
          const auto q = p + static_cast<std::size_t>(D / 2);
          y[p] = a[p] * std::cos(angle) - a[q] * std::sin(angle);
          y[q] = a[q] * std::cos(angle) + a[p] * std::sin(angle);
        }
  return Tensor::from<double>(y, x.shape());
}

auto op(const RopeTables& r, std::int64_t offset = 0) {
  return [=](const TensorList& in) { return rope(in[0], r.cos, r.sin, offset); };
}

// One element, one row, odd numbers of tokens and heads, no tokens, no rows.
const Shape kShapes[] = {{1, 1, 1, 2}, {1, 7, 1, 4}, {2, 5, 3, 6}, {2, 0, 3, 4}, {0, 5, 3, 4}};

}  // namespace

TEST_CASE("rope: rotates pairs from the two halves by the angle of the position") {
  for (const Shape& s : kShapes)
    for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(message("{} {}", s, t));
      const Tensor x = test::random(s, 1, t);
      const RopeTables r = tables(s[3], t == DType::f64 ? DType::f64 : DType::f32);
      const auto at = [](std::int64_t, std::int64_t i) { return double(i + 3); };
      const Tensor y = rope(x, r.cos, r.sin, 3);
      CHECK(y.dtype() == t);
      CHECK(test::mismatch(y, by_definition(x, at), test::tolerance(t)) == "");
      CHECK(test::mismatch(rope(test::strided(x), r.cos, r.sin, 3), y, 0) == "");
    }
}

TEST_CASE("rope: per-token positions restart at each packed sequence") {
  const Tensor x = test::random({2, 5, 2, 4}, 1);
  const RopeTables r = tables(4);
  const double p[2][5] = {{0, 1, 2, 0, 1}, {4, 4, 15, 0, 7}};
  const Tensor one = Tensor::of({0, 1, 2, 0, 1}, {5}, DType::i32);
  const Tensor each = Tensor::of({0, 1, 2, 0, 1, 4, 4, 15, 0, 7}, {2, 5}, DType::i32);
  CHECK(test::mismatch(rope(x, r.cos, r.sin, one),
                       by_definition(x, [&](auto, auto t) { return p[0][t]; }), 1e-12) == "");
  CHECK(test::mismatch(rope(x, r.cos, r.sin, each),
                       by_definition(x, [&](auto b, auto t) { return p[b][t]; }), 1e-12) == "");
  CHECK(test::mismatch(rope(x, r.cos, r.sin, Tensor()), rope(x, r.cos, r.sin), 0) == "");
  CHECK(gradcheck([&](const TensorList& in) { return rope(in[0], r.cos, r.sin, in[1]).square(); },
                  {x, each}, {.second_order = true}) == "");
}

TEST_CASE("rope: scores depend only on the distance of two positions") {
  const Tensor q = test::random({1, 1, 1, 8}, 1), k = test::random({1, 1, 1, 8}, 2);
  const RopeTables r = tables(8);
  const auto score = [&](std::int64_t tq, std::int64_t tk) {
    return mul(rope(q, r.cos, r.sin, tq), rope(k, r.cos, r.sin, tk)).sum().item();
  };
  CHECK(score(3, 1) == doctest::Approx(score(9, 7)));
  CHECK(score(3, 1) != doctest::Approx(score(3, 2)));
}

TEST_CASE("rope: gradients match finite differences twice") {
  for (const Shape& s : kShapes) {
    CAPTURE(message("{}", s));
    const Tensor x = test::random(s, 1);
    const RopeTables r = tables(s[3]);
    CHECK(gradcheck(op(r, 2), {x}) == "");
    CHECK(gradcheck(op(r), {test::strided(x)}) == "");
    // rope is linear, so the second order needs a product of two.
    CHECK(gradcheck([&](const TensorList& in) { return mul(op(r)(in), op(r, 5)(in)); }, {x},
                    {.second_order = true}) == "");
  }
}

TEST_CASE("rope: a strided bf16 cotangent") {
  Tensor x = test::random({1, 4, 2, 4}, 1, DType::bf16);
  x.set_requires_grad();
  const RopeTables r = tables(4, DType::f32);
  const Tensor dy = test::random({1, 4, 2, 4}, 2, DType::bf16);
  Tape tape;
  rope(x, r.cos, r.sin).backward(test::strided(dy));
  CHECK(x.grad().dtype() == DType::bf16);
  const auto back = [](std::int64_t, std::int64_t t) { return -double(t); };
  CHECK(test::mismatch(x.grad(), by_definition(dy, back), 2e-2) == "");
}

TEST_CASE("rope_packed: rotates only the first heads") {
  const Tensor positions = Tensor::of({0, 1, 2, 0, 1}, {5}, DType::i32);
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t heads : {0, 2, 5})
      for (const Tensor& at : {Tensor(), positions}) {
        const Tensor x = test::random({2, 5, 5, 6}, 1, t);
        const RopeTables r = tables(6, t == DType::f64 ? DType::f64 : DType::f32);
        const Tensor want = x.clone();
        const Tensor first = want.narrow(2, 0, heads);
        first.copy_(rope(x.narrow(2, 0, heads), r.cos, r.sin, at));
        CHECK(test::different_bits(rope_packed(x, heads, r.cos, r.sin, at), want) == "");
        CHECK(test::different_bits(rope_packed(test::strided(x), heads, r.cos, r.sin, at), want) ==
              "");
        CHECK(test::different_bits(rope_packed(x.clone(), heads, r.cos, r.sin, at), want) == "");
        CHECK(test::different_bits(x, test::random({2, 5, 5, 6}, 1, t)) == "");  // unchanged
      }
}

TEST_CASE("rope_packed: in place only if no other handle exists") {
  const RopeTables r = tables(6);
  const Tensor held = test::random({2, 5, 5, 6}, 1);
  const void* const there = held.raw();
  CHECK(rope_packed(held, 2, r.cos, r.sin).raw() != there);
  CHECK(rope_packed(held.view({2, 5, 5, 6}), 2, r.cos, r.sin).raw() != there);
  Tensor moved = held.clone();
  const void* const own = moved.raw();
  CHECK(rope_packed(std::move(moved), 2, r.cos, r.sin).raw() == own);
}

TEST_CASE("rope_packed: gradients match finite differences twice") {
  const RopeTables r = tables(6);
  const Tensor x = test::random({2, 5, 5, 6}, 1);
  for (const std::int64_t heads : {0, 2, 5}) {
    const auto turned = [&](const TensorList& in) {
      return rope_packed(in[0], heads, r.cos, r.sin);
    };
    CHECK(gradcheck(turned, {x}) == "");
    // A moved input, and a cotangent that two ops share.
    CHECK(gradcheck(
              [&](const TensorList& in) {
                const Tensor y = rope_packed(mul(in[0], 2), heads, r.cos, r.sin);
                return add(y, mul(y, in[0]));
              },
              {x}, {.second_order = true}) == "");
  }
}

TEST_CASE("rope_packed: errors name the rule and the operands") {
  const RopeTables r = tables(4, DType::f32);
  const Tensor x = Tensor::zeros({2, 3, 5, 4});
  for (const std::int64_t heads : {-1, 6})
    CHECK(test::error_of([&] { rope_packed(x, heads, r.cos, r.sin); }) ==
          message("rope_packed: heads must be in [0, 5] (packed [2, 3, 5, 4]), got {}", heads));
  CHECK(test::error_of([&] {
          rope_packed(Tensor::zeros({1, 17, 3, 4}), 2, r.cos, r.sin);
        }) == "rope: positions [0, 17) must be inside the 16 rows of cos");
  CHECK(test::error_of([&] {
          rope_packed(x, 2, r.cos, r.sin, Tensor::of({0, 16, 1}, {3}, DType::i32));
        }) == "rope: positions must be in [0, 16), got 16");
  const Tensor table = Tensor::empty({kMaxT, 2}, DType::f32, kMeta);
  CHECK(rope_packed(Tensor::empty({2, 3, 5, 4}, DType::bf16, kMeta), 2, table, table).is_meta());
}

TEST_CASE("rope_tables: angles of Llama's base at the first and a late position") {
  const RopeTables r = rope_tables(1001, 4, 10000);
  CHECK(r.cos.dtype() == DType::f32);
  CHECK(r.cos.shape() == Shape{1001, 2});
  CHECK(test::mismatch(r.cos.select(0, 0), Tensor::ones({2}), 0) == "");
  CHECK(test::mismatch(r.sin.select(0, 1000), Tensor::of({std::sin(1000.0), std::sin(10.0)}, {2}),
                       1e-7) == "");
}

TEST_CASE("rope: meta operands give shape and dtype") {
  const Tensor table = Tensor::empty({kMaxT, 2}, DType::f32, kMeta);
  const Tensor x = Tensor::empty({2, 3, 2, 4}, DType::bf16, kMeta);
  for (const Tensor& y :
       {rope(x, table, table, 1), rope(x, table, table, Tensor::empty({3}, DType::i32, kMeta))}) {
    CHECK(y.is_meta());
    CHECK(y.shape() == x.shape());
    CHECK(y.dtype() == DType::bf16);
  }
}

TEST_CASE("rope: errors name the rule and the operands") {
  const RopeTables r = tables(4, DType::f32);
  const Tensor x = Tensor::zeros({2, 3, 2, 4});
  const auto text = [](const Tensor& a, const Tensor& c, const Tensor& s, auto at) {
    return test::error_of([&] { rope(a, c, s, at); });
  };
  CHECK(text(Tensor::zeros({3, 2, 4}), r.cos, r.sin, 0) ==
        "rope: x must have 4 axes (batch, tokens, heads, head_dim), got [3, 2, 4]");
  CHECK(text(Tensor::zeros({2, 3, 2, 5}), r.cos, r.sin, 0) == "rope: head_dim must be even, got 5");
  CHECK(text(x.to(DType::i32), r.cos, r.sin, 0) ==
        "rope: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(x, r.cos, Tensor::zeros({kMaxT, 3}), 0) ==
        "rope: cos and sin must have shape [max_T, 2] (half of x [2, 3, 2, 4]), got [16, 2] and "
        "[16, 3]");
  CHECK(text(x, r.cos, r.sin.to(DType::f64), 0) ==
        "rope: cos and sin must both be f32 or f64, got f32 and f64");
  CHECK(text(x, r.cos, Tensor::empty({kMaxT, 2}, DType::f32, kMeta), 0) ==
        "rope: cos and sin must be on the device of x, cpu, got cpu and meta");
  CHECK(text(x, r.cos, r.sin, 14) == "rope: positions [14, 17) must be inside the 16 rows of cos");
  CHECK(text(x, r.cos, r.sin, INT64_MAX - 1) ==
        "rope: positions [9223372036854775806, 9223372036854775807) must be inside the 16 rows of "
        "cos");
  CHECK(text(x, r.cos, r.sin, -1) == "rope: positions [-1, 2) must be inside the 16 rows of cos");
  CHECK(text(x, r.cos, r.sin, Tensor::zeros({3}, DType::i64)) ==
        "rope: positions must be i32 with shape [3] or [2, 3], got i64 [3]");
  CHECK(text(x, r.cos, r.sin, Tensor::zeros({4}, DType::i32)) ==
        "rope: positions must be i32 with shape [3] or [2, 3], got i32 [4]");
  CHECK(text(x, r.cos, r.sin, Tensor::empty({3}, DType::i32, kMeta)) ==
        "rope: positions must be on the device of x, cpu, got meta");
  CHECK(text(x, r.cos, r.sin, Tensor::of({0, 16, 1}, {3}, DType::i32)) ==
        "rope: positions must be in [0, 16), got 16");
  CHECK(test::error_of([] { rope_tables(0, 4); }) ==
        "rope_tables: max_seq must be at least 1, got 0");
  CHECK(test::error_of([] { rope_tables(4, 5); }) == "rope_tables: head_dim must be even, got 5");
  CHECK(test::error_of([] { rope_tables(4, 4, 0); }) ==
        "rope_tables: theta must be above 0, got 0");
  CHECK(test::error_of([] { rope_tables(4, 4, 10, DType::bf16); }) ==
        "rope_tables: dtype must be f32 or f64, got bf16");
}

}  // namespace weft::rope_test
