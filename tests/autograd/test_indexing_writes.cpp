// Ops that write to positions given by an index: scatter and index_add.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/values.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::indexing_writes_test {
namespace {

using test::different_bits;
using test::error_of;
using test::random;
using test::strided;

const GradcheckOptions kTwice{.second_order = true};

// Indices in [0, limit) that depend only on the seed, with repeats.
Tensor random_ids(const Shape& shape, std::int64_t limit, DType dtype = DType::i64) {
  return test::random_in(shape, 0, static_cast<double>(limit), 3, dtype);
}

}  // namespace

TEST_CASE("indexing: scatter and index_add equal plain loops, for every axis and layout") {
  for (const DType dtype : {DType::i32, DType::i64})
    for (const int dim : {0, 1, 2, -1}) {
      CAPTURE(dim);
      const int axis = dim < 0 ? dim + 3 : dim;
      const Tensor x = random({3, 4, 5});
      Shape shape = x.shape();
      shape[axis] = 7;
      const Tensor source = random(shape, 2), index = random_ids(shape, x.dim(dim), dtype);
      const Tensor line = random_ids({7}, x.dim(dim), dtype);
      const Tensor written = x.clone(), summed = x.clone();
      for (int i = 0; i < shape[0]; ++i)
        for (int j = 0; j < shape[1]; ++j)
          for (int k = 0; k < shape[2]; ++k) {
            std::int64_t to[] = {i, j, k};
            const Tensor from = source[i][j][k];
            to[axis] = index[i][j][k].item<std::int64_t>();
            written[to[0]][to[1]][to[2]].copy_(from);
            to[axis] = line[axis == 0 ? i : axis == 1 ? j : k].item<std::int64_t>();
            summed[to[0]][to[1]][to[2]] += from;
          }
      CHECK(different_bits(scatter(x, dim, index, source), written) == "");
      CHECK(different_bits(scatter(strided(x), dim, strided(index), strided(source)), written) ==
            "");
      CHECK(test::mismatch(index_add(x, dim, line, source), summed, 1e-15) == "");
      CHECK(test::mismatch(index_add(strided(x), dim, strided(line), strided(source)), summed,
                           1e-15) == "");
    }
}

TEST_CASE("indexing: scatter moves every dtype and keeps the last of equal indices") {
  const Tensor index = Tensor::of({2, 0, 2, 2}, DType::i64);
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64,
                        DType::u8, DType::boolean}) {
    const Tensor x = Tensor::zeros({4}, t), source = Tensor::of({1, 1, 0, 1}, t);
    CHECK(test::values(scatter(x, 0, index, source)) == std::vector<double>{1, 0, 1, 0});
    CHECK(scatter(x, 0, index, source).dtype() == t);
    CHECK(x.to(DType::f64).sum().item() == 0);  // x itself stays
  }
  const Tensor numbers = Tensor::of({5, 6, 7, 8}, DType::i32);
  CHECK(test::values(scatter(zeros_like(numbers), 0, index, numbers)) ==
        std::vector<double>{6, 0, 8, 0});
}

TEST_CASE("indexing: index_add of integers and of 16 bits, which are summed in f32") {
  const Tensor zero = Tensor::zeros({64}, DType::i64), ones = Tensor::ones({64}, DType::bf16);
  CHECK(index_add(Tensor::full({1}, 256, DType::bf16), 0, zero, ones).item() == 320);
  const Tensor ids = Tensor::of({0, 2, 2}, DType::i32);
  CHECK(test::values(
            index_add(Tensor::ones({3}, DType::u8), 0, ids, Tensor::of({5, 6, 255}, DType::u8))) ==
        std::vector<double>{6, 1, 6});
}

TEST_CASE("indexing: gradients of scatter and index_add, twice and with equal indices") {
  const Tensor x = random({2, 4, 3}), source = random({2, 6, 3}, 2);
  const Tensor index = random_ids({2, 6, 3}, 4), line = random_ids({6}, 4);
  const auto write = [&](const TensorList& in) {
    return scatter(in[0] * in[0], 1, index, in[1] * in[1]);
  };
  const auto add = [&](const TensorList& in) {
    return index_add(in[0] * in[0], 1, line, in[1] * in[1]);
  };
  for (const TensorList& in : {TensorList{x, source}, TensorList{strided(x), strided(source)}}) {
    CHECK(gradcheck(write, in, kTwice) == "");
    CHECK(gradcheck(add, in, kTwice) == "");
  }
  const Tensor ids = random_ids({4, 4}, 4), square = random({4, 4});
  CHECK(gradcheck([&](const TensorList& in) { return scatter(in[0], 0, ids, in[0] * in[0]); },
                  {square}) == "");
  const Tensor none = Tensor::empty({0, 3}, DType::f64);
  const Tensor no_ids = Tensor::empty({0, 2}, DType::i64);
  CHECK(gradcheck([&](const TensorList& in) { return scatter(in[0], 1, no_ids, in[1]); },
                  {none, Tensor::empty({0, 2}, DType::f64)}) == "");
  CHECK(gradcheck(
            [&](const TensorList& in) {
              return index_add(in[0], 1, Tensor::empty({0}, DType::i32), in[1]);
            },
            {square, Tensor::empty({4, 0}, DType::f64)}) == "");
}

TEST_CASE("indexing: scatter has the same bits for any number of threads") {
  const test::RestoreThreads restore;
  const Tensor index = random_ids({40, 500, 6}, 30), source = random({40, 500, 6}, 2, DType::f32);
  const Tensor x = Tensor::zeros({40, 30, 6});
  set_num_threads(1);
  const Tensor one = scatter(x, 1, index, source);
  set_num_threads(3);
  CHECK(different_bits(scatter(x, 1, index, source), one) == "");
}

TEST_CASE("indexing: scatter and index_add on meta, and their errors") {
  const Tensor x = Tensor::zeros({3, 2}), meta = Tensor::empty({3, 2}, DType::f32, kMeta);
  const Tensor index = Tensor::zeros({2, 2}, DType::i64), line = Tensor::zeros({2}, DType::i64);
  const Tensor source = Tensor::ones({2, 2});
  CHECK(scatter(meta, 0, index.to(kMeta), source.to(kMeta)).shape() == Shape{3, 2});
  CHECK(index_add(meta, 0, line.to(kMeta), source.to(kMeta)).is_meta());
  CHECK(error_of([&] { scatter(x, 0, index + 3, source); }) ==
        "scatter: index must be in [0, 3), got 3");
  CHECK(error_of([&] { scatter(x, 1, index, source); }) ==
        "scatter: index must have the shape [3, 2] of x but for axis 1, got [2, 2]");
  CHECK(error_of([&] { scatter(x, 0, index, x); }) ==
        "scatter: source must have the shape [2, 2] of index, got [3, 2]");
  CHECK(error_of([&] { scatter(x, 0, index, index); }) ==
        "scatter: source must be f32 on cpu, got i64 on cpu");
  CHECK(error_of([&] { index_add(x, 0, index, source); }) ==
        "index_add: index must have shape (n), got [2, 2]");
  CHECK(error_of([&] { index_add(x, 0, line - 1, source); }) ==
        "index_add: index must be in [0, 3), got -1");
  CHECK(error_of([&] { index_add(x, 0, line, x); }) ==
        "index_add: source must have the shape [2, 2] of x with one row for each index, got "
        "[3, 2]");
  CHECK(error_of([&] { index_add(x > 0, 0, line, source > 0); }) ==
        "index_add: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { index_add(x, 0, line, Tensor()); }) ==
        "index_add: source must be a tensor, got a null handle");
}

}  // namespace weft::indexing_writes_test
