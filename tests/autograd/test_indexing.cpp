#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/reduce.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::indexing_test {
namespace {

using test::different_bits;
using test::error_of;
using test::random;
using test::strided;

const GradcheckOptions kTwice{.second_order = true};

Tensor ids_of(std::initializer_list<double> values, const Shape& shape, DType dtype = DType::i64) {
  return Tensor::of(values, shape, dtype);
}

// Indices in [0, limit) that depend only on the seed, with repeats.
Tensor random_ids(const Shape& shape, std::int64_t limit, std::uint64_t seed = 3,
                  DType dtype = DType::i64) {
  return test::random_in(shape, 0, static_cast<double>(limit), seed, dtype);
}

}  // namespace

TEST_CASE("indexing: index_select works along every axis") {
  const Tensor x = Tensor::arange(0, 24, 1, DType::f32).view({2, 3, 4});
  for (const DType dtype : {DType::i32, DType::i64}) {
    CHECK(different_bits(index_select(x, 0, ids_of({1, 1}, {2}, dtype)),
                         cat({x.narrow(0, 1, 1), x.narrow(0, 1, 1)})) == "");
    CHECK(different_bits(index_select(x, -1, ids_of({3, 0}, {2}, dtype)),
                         cat({x.narrow(2, 3, 1), x.narrow(2, 0, 1)}, 2)) == "");
    CHECK(different_bits(index_select(x.transpose(0, 1), 0, ids_of({2}, {1}, dtype)),
                         x.transpose(0, 1).narrow(0, 2, 1)) == "");
  }
  CHECK(index_select(x, 1, ids_of({}, {0})).shape() == Shape{2, 0, 4});
  CHECK(index_select(x.to(DType::boolean), 1, ids_of({0}, {1})).dtype() == DType::boolean);
}

TEST_CASE("indexing: gather and scatter_add equal plain loops") {
  const Tensor x = random({3, 4, 5}), source = random({3, 2, 5}, 2);
  const Tensor index = random_ids({3, 2, 5}, 4);
  const Tensor picked = gather(x, 1, index), summed = scatter_add(x, 1, index, source);
  const Tensor want = x.clone();
  for (std::int64_t o = 0; o < 3; ++o)
    for (std::int64_t j = 0; j < 2; ++j)
      for (std::int64_t i = 0; i < 5; ++i) {
        const std::int64_t at = (o * 2 + j) * 5 + i;
        const std::int64_t to = (o * 4 + index.data<std::int64_t>()[at]) * 5 + i;
        CHECK(picked.data<double>()[at] == x.data<double>()[to]);
        want.data<double>()[to] += source.data<double>()[at];
      }
  CHECK(different_bits(summed, want) == "");
  CHECK(different_bits(gather(strided(x), 1, strided(index)), picked) == "");
  CHECK(different_bits(scatter_add(strided(x), 1, strided(index), strided(source)), summed) == "");
}

TEST_CASE("indexing: scatter_add and embedding sum bf16 in f32") {
  // 256 + 1 rounds back to 256 in bf16, so a bf16 sum would lose all of the ones.
  const Tensor x = Tensor::full({1}, 256, DType::bf16), ones = Tensor::ones({64}, DType::bf16);
  CHECK(scatter_add(x, 0, Tensor::zeros({64}, DType::i64), ones).item() == 320);
  Tensor w = Tensor::zeros({2, 1}, DType::bf16);
  w.set_requires_grad();
  Tape tape;
  embedding(w, Tensor::zeros({512}, DType::i32)).backward(Tensor::ones({512, 1}, DType::bf16));
  CHECK(w.grad().dtype() == DType::bf16);
  CHECK(w.grad().select(0, 0).item() == 512);
}

TEST_CASE("indexing: integers can be scattered") {
  const Tensor y = scatter_add(Tensor::zeros({3}, DType::i64), 0, ids_of({0, 2, 2}, {3}),
                               ids_of({5, 6, 7}, {3}));
  CHECK(different_bits(y, ids_of({5, 0, 13}, {3})) == "");
}

TEST_CASE("indexing: embedding selects rows for ids of any shape") {
  const Tensor w = random({7, 3}, 1, DType::f32);
  const Tensor y = embedding(w, ids_of({6, 0, 0, 2, 5, 1}, {2, 3}, DType::i32));
  CHECK(y.shape() == Shape{2, 3, 3});
  CHECK(different_bits(y.select(0, 0).select(0, 0), w.select(0, 6)) == "");
  CHECK(different_bits(y.select(0, 1).select(0, 1), w.select(0, 5)) == "");
  CHECK(embedding(w, ids_of({3}, {})).shape() == Shape{3});
  CHECK(embedding(w, ids_of({}, {0, 4})).shape() == Shape{0, 4, 3});
  CHECK(embedding(Tensor::empty({0, 3}), ids_of({}, {0})).shape() == Shape{0, 3});
}

TEST_CASE("indexing: one_hot and tril") {
  CHECK(different_bits(one_hot(ids_of({2, 0}, {2}), 3), Tensor::of({0, 0, 1, 1, 0, 0}, {2, 3})) ==
        "");
  CHECK(one_hot(ids_of({1}, {}), 2, DType::boolean).dtype() == DType::boolean);
  CHECK(one_hot(ids_of({}, {0}), 2).shape() == Shape{0, 2});
  const Tensor x = Tensor::arange(1, 7, 1, DType::f64).view({2, 3});
  CHECK(different_bits(tril(x), Tensor::of({1, 0, 0, 4, 5, 0}, {2, 3}, DType::f64)) == "");
  CHECK(different_bits(tril(x, 1), Tensor::of({1, 2, 0, 4, 5, 6}, {2, 3}, DType::f64)) == "");
  CHECK(different_bits(tril(x, -1), Tensor::of({0, 0, 0, 4, 0, 0}, {2, 3}, DType::f64)) == "");
  CHECK(different_bits(tril(x, -9), Tensor::zeros({2, 3}, DType::f64)) == "");
  for (const std::int64_t far : {INT64_MAX, INT64_MAX - 1}) {
    CHECK(different_bits(tril(x, far), x) == "");
    CHECK(different_bits(tril(x, -far), Tensor::zeros({2, 3}, DType::f64)) == "");
  }
  CHECK(different_bits(tril(x, INT64_MIN), Tensor::zeros({2, 3}, DType::f64)) == "");
  const Tensor batch = expand(x, {4, 2, 3});
  CHECK(different_bits(tril(batch, 1).select(0, 3), tril(x, 1)) == "");
  CHECK(tril(Tensor::empty({2, 0, 3})).shape() == Shape{2, 0, 3});
}

TEST_CASE("indexing: gradients to the second order") {
  const Tensor x = random({2, 4, 3}), source = random({2, 5, 3}, 2);
  const Tensor line = ids_of({3, 0, 3, 3, 1}, {5}), index = random_ids({2, 5, 3}, 4);
  for (const bool gaps : {false, true}) {
    const Tensor a = gaps ? strided(x) : x, b = gaps ? strided(source) : source;
    CHECK(gradcheck(
              [&](const TensorList& in) {
                return index_select(in[0] * in[0], 1, gaps ? strided(line) : line);
              },
              {a}, kTwice) == "");
    CHECK(gradcheck([&](const TensorList& in) { return gather(in[0] * in[0], 1, index); }, {a},
                    kTwice) == "");
    CHECK(gradcheck(
              [&](const TensorList& in) {
                return scatter_add(in[0] * in[0], 1, index, in[1] * in[1]);
              },
              {a, b}, kTwice) == "");
    CHECK(gradcheck(
              [&](const TensorList& in) {
                const Tensor w = reshape(in[0] * in[0], {8, 3});
                return embedding(w, ids_of({7, 7, 0, 2}, {2, 2}));
              },
              {a}, kTwice) == "");
    CHECK(gradcheck([&](const TensorList& in) { return tril(in[0] * in[0], -1); }, {a}, kTwice) ==
          "");
  }
}

TEST_CASE("indexing: gradients of empty inputs and of an input used twice") {
  const Tensor none = Tensor::empty({0, 3}, DType::f64), x = random({4, 4});
  CHECK(gradcheck(
            [](const TensorList& in) {
              return embedding(in[0], ids_of({}, {2, 0}));
            },
            {random({3, 2})}) == "");
  CHECK(gradcheck([](const TensorList& in) { return index_select(in[0], 1, ids_of({2}, {1})); },
                  {none}) == "");
  CHECK(gradcheck(
            [&](const TensorList& in) {
              return gather(in[0], 1, Tensor::empty({0, 2}, DType::i32));
            },
            {none}) == "");
  CHECK(gradcheck([](const TensorList& in) { return tril(in[0]); }, {none}) == "");
  const Tensor index = random_ids({4, 4}, 4);
  CHECK(gradcheck([&](const TensorList& in) { return scatter_add(in[0], 0, index, in[0] * in[0]); },
                  {x}) == "");
}

TEST_CASE("indexing: the number of threads changes no bit of a table's gradient") {
  const test::RestoreThreads restore;
  // Long rows are split into columns, short rows are assigned whole; half of the ids are equal.
  for (const Shape& table : {Shape{256, 200}, Shape{5000, 8}, Shape{3000, 1}}) {
    const Tensor ids = cat({random_ids({6000}, table[0]), Tensor::full({6000}, 7, DType::i64)});
    const Tensor dy = random({12'000, table[1]}, 5, DType::f32);
    const auto gradient = [&] {
      Tensor w = Tensor::zeros(table);
      w.set_requires_grad();
      Tape tape;
      embedding(w, ids).backward(dy);
      return w.grad();
    };
    set_num_threads(1);
    const Tensor one = gradient();
    const Tensor want = Tensor::zeros(table, DType::f64);
    for (std::int64_t j = 0; j < 12'000; ++j)
      for (std::int64_t c = 0; c < table[1]; ++c)
        want.data<double>()[ids.data<std::int64_t>()[j] * table[1] + c] +=
            static_cast<double>(dy.data<float>()[j * table[1] + c]);
    CHECK(test::mismatch(one, want, 1e-4) == "");
    for (const int threads : {2, 3, 4}) {
      set_num_threads(threads);
      CHECK(different_bits(gradient(), one) == "");
    }
  }
}

TEST_CASE("indexing: index_add backward with an outer axis and any number of threads") {
  const test::RestoreThreads restore;
  const Tensor ids = random_ids({300}, 50);
  const auto gradient = [&](std::int64_t inner) {
    Tensor x = Tensor::zeros({8, 50, inner});
    x.set_requires_grad();
    Tape tape;
    index_select(x, 1, ids).backward(random({8, 300, inner}, 5, DType::f32));
    return x.grad();
  };
  for (const std::int64_t inner : {1, 16, 100}) {
    set_num_threads(1);
    const Tensor one = gradient(inner);
    set_num_threads(3);
    CHECK(different_bits(gradient(inner), one) == "");
    const Tensor by_outer = one.select(0, 5);
    Tensor x = Tensor::zeros({50, inner});
    x.set_requires_grad();
    Tape tape;
    index_select(x, 0, ids).backward(random({8, 300, inner}, 5, DType::f32).select(0, 5));
    CHECK(different_bits(x.grad(), by_outer) == "");
  }
}

TEST_CASE("indexing: f32 and bf16 agree with f64") {
  const Tensor x = random({6, 5}), source = random({9, 5}, 2), index = random_ids({9, 5}, 6);
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor low = x.to(t), add = source.to(t);
    CHECK(test::mismatch(scatter_add(low, 0, index, add),
                         scatter_add(low.to(DType::f64), 0, index, add.to(DType::f64)),
                         test::tolerance(t)) == "");
    CHECK(test::mismatch(gather(low, 0, index), gather(low.to(DType::f64), 0, index), 0) == "");
  }
}

TEST_CASE("indexing: meta tensors take the same shapes") {
  const Tensor x = Tensor::empty({4, 3}, DType::f32, kMeta);
  const Tensor ids = Tensor::empty({5}, DType::i64, kMeta);
  const Tensor index = Tensor::empty({2, 3}, DType::i32, kMeta);
  CHECK(index_select(x, 0, ids).shape() == Shape{5, 3});
  CHECK(gather(x, 0, index).shape() == Shape{2, 3});
  CHECK(scatter_add(x, 0, index, Tensor::empty({2, 3}, DType::f32, kMeta)).is_meta());
  CHECK(one_hot(ids, 7).shape() == Shape{5, 7});
  CHECK(tril(x).is_meta());
  Tensor w = Tensor::empty({10, 3}, DType::bf16, kMeta);
  w.set_requires_grad();
  Tape tape;
  const Tensor y = embedding(w, ids);
  y.backward(empty_like(y));
  CHECK(w.grad().shape() == Shape{10, 3});
  CHECK(w.grad().dtype() == DType::bf16);
}

TEST_CASE("indexing: errors are thrown before anything is written") {
  const Tensor w = Tensor::zeros({10, 4}), x = Tensor::zeros({3, 2});
  const auto two = [](double v) { return ids_of({0, 0, 0, v}, {2, 2}); };
  CHECK(error_of([&] {
          embedding(w, ids_of({3, 12, -1}, {3}));
        }) == "embedding: ids must be in [0, 10), got 12");
  CHECK(error_of([&] {
          embedding(w, ids_of({3, -1}, {2}, DType::i32));
        }) == "embedding: ids must be in [0, 10), got -1");
  CHECK(error_of([&] { embedding(Tensor::zeros({10}), ids_of({1}, {1})); }) ==
        "embedding: weight must have shape (V, C), got [10]");
  CHECK(error_of([&] { embedding(w, Tensor::zeros({2})); }) ==
        "embedding: ids must be i32 or i64, got f32");
  CHECK(error_of([&] { embedding(w, Tensor::empty({2}, DType::i64, kMeta)); }) ==
        "embedding: ids must be on cpu, got meta");
  CHECK(error_of([&] { embedding(w.to(DType::i32), ids_of({1}, {1})); }) ==
        "embedding: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { index_select(x, 0, ids_of({3}, {1})); }) ==
        "index_select: index must be in [0, 3), got 3");
  CHECK(error_of([&] { index_select(x, 0, two(0)); }) ==
        "index_select: index must have shape (n), got [2, 2]");
  CHECK(error_of([&] { index_select(Tensor::ones({}), 0, ids_of({0}, {1})); }) ==
        "index_select: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { gather(x, 0, two(3)); }) == "gather: index must be in [0, 3), got 3");
  CHECK(error_of([&] { gather(x, 1, two(0)); }) ==
        "gather: index must have the shape [3, 2] of x but for axis 1, got [2, 2]");
  CHECK(error_of([&] { gather(x, 0, ids_of({0}, {1})); }) ==
        "gather: index must have the shape [3, 2] of x but for axis 0, got [1]");
  CHECK(error_of([&] {
          scatter_add(x, 0, two(-1), Tensor::ones({2, 2}));
        }) == "scatter_add: index must be in [0, 3), got -1");
  CHECK(error_of([&] { scatter_add(x, 0, two(0), x); }) ==
        "scatter_add: source must have the shape [2, 2] of index, got [3, 2]");
  CHECK(error_of([&] {
          scatter_add(x, 0, two(0), Tensor::ones({2, 2}, DType::f64));
        }) == "scatter_add: source must be f32 on cpu, got f64 on cpu");
  CHECK(error_of([&] {
          scatter_add(x.to(DType::e5m2), 0, two(0), Tensor::ones({2, 2}, DType::e5m2));
        }) == "scatter_add: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got e5m2");
  CHECK(error_of([&] { one_hot(ids_of({2}, {1}), 2); }) == "one_hot: ids must be in [0, 2), got 2");
  CHECK(error_of([&] { one_hot(ids_of({0}, {1}), 0); }) ==
        "one_hot: classes must be at least 1, got 0");
  CHECK(error_of([&] { tril(Tensor::ones({3})); }) ==
        "tril: x must have at least 2 axes, got shape [3]");
}

TEST_CASE("indexing: the error names the first bad id for any number of threads") {
  const test::RestoreThreads restore;
  const Tensor ids = Tensor::zeros({200'000}, DType::i64);
  ids.narrow(0, 70'001, 100'000).fill_(99);
  ids.narrow(0, 70'000, 1).fill_(55);
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    CHECK(error_of([&] {
            embedding(Tensor::zeros({10, 1}), ids);
          }) == "embedding: ids must be in [0, 10), got 55");
  }
}

TEST_CASE("indexing: backward refuses indices changed after the forward") {
  Tensor w = Tensor::zeros({3, 2});
  w.set_requires_grad();
  const Tensor ids = ids_of({1, 2}, {2});
  Tape tape;
  const Tensor y = embedding(w, ids);
  ids.fill_(0);
  CHECK(error_of([&] {
          y.backward(Tensor::ones({2, 2}));
        }) == message("embedding: saved ids was changed in place (version {}, saved at {})",
                      ids.version(), ids.version() - 1));
}

TEST_CASE("indexing: triu keeps the other triangle of tril") {
  for (const std::int64_t diagonal : {-2, -1, 0, 1, 3})
    for (const DType t :
         {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::boolean}) {
      const Tensor x = test::random({2, 4, 3}, 1, DType::i32).to(t);
      const Tensor upper = triu(x, diagonal);
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 3; ++c)
          CHECK(upper[1][r][c].item() == (c - r >= diagonal ? x[1][r][c].item() : 0));
    }
  CHECK(test::values(triu(Tensor::full({2, 2}, INFINITY)))[2] == 0);
  for (const std::int64_t far : {INT64_MIN, INT64_MAX}) {
    const Tensor square = test::random({3, 4});
    CHECK(test::different_bits(triu(square, far), far < 0 ? square : zeros_like(square)) == "");
  }
  CHECK(gradcheck([](const TensorList& in) { return triu(in[0], 1); }, {test::random({3, 4})}) ==
        "");
  CHECK(test::error_of([] { triu(Tensor::ones({2})); }) ==
        "triu: x must have at least 2 axes, got shape [2]");
}

}  // namespace weft::indexing_test
