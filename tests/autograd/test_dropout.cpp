#include <doctest/doctest.h>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::dropout_test {
namespace {

using test::different_bits;
using test::error_of;

// The expected element i, one Philox call at a time.
template <class T>
Tensor reference(const Tensor& x, double p, const RandomKey& key) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  using R = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const R scale = static_cast<R>(1 / (1 - p));
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::uint32_t bits = random_bits(key, static_cast<std::uint64_t>(i));
    const bool dropped = static_cast<double>(uniform_from_bits(bits)) < p;
    y.data<T>()[i] = dropped ? T(R(0)) : T(static_cast<R>(x.data<T>()[i]) * scale);
  }
  return y;
}

}  // namespace

TEST_CASE("dropout: equals one random_bits call per element bit by bit") {
  const std::uint64_t far = (std::uint64_t{1} << 34) - 6;  // the block number exceeds 32 bits
  for (const std::int64_t n : {0, 1, 3, 255, 256, 257, 1031})
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2},
                                      std::uint64_t{3}, std::uint64_t{77}, far}) {
      CAPTURE(n);
      CAPTURE(first);
      const RandomKey key{0x123456789abcdef0u, 0xfedcba9876543210u, first};
      const Tensor x = test::random({n}, 1);
      CHECK(different_bits(dropout(x, 0.3, key), reference<double>(x, 0.3, key)) == "");
      const Tensor f = x.to(DType::f32), h = x.to(DType::bf16);
      CHECK(different_bits(dropout(f, 0.3, key), reference<float>(f, 0.3, key)) == "");
      CHECK(different_bits(dropout(h, 0.3, key), reference<bf16>(h, 0.3, key)) == "");
    }
}

TEST_CASE("dropout: the boundary of p is exact") {
  const RandomKey key{5, 6, 0};
  const Tensor x = Tensor::ones({64}, DType::f64);
  for (std::int64_t i = 0; i < 64; ++i) {
    const double u =
        static_cast<double>(uniform_from_bits(random_bits(key, static_cast<std::uint64_t>(i))));
    CHECK(dropout(x, u, key).data<double>()[i] != 0);
    CHECK(dropout(x, std::nextafter(u, 1), key).data<double>()[i] == 0);
  }
}

TEST_CASE("dropout: backward drops the elements that forward dropped") {
  Tensor x = test::random({7, 41}, 2, DType::f32);
  x.set_requires_grad();
  const RandomKey key{1, 2, 3};
  const Tensor dy = test::random({7, 41}, 3, DType::f32);
  Tape tape;
  const Tensor y = dropout(x, 0.4, key);
  const TensorList g = tape.gradients(y, {x}, dy);
  CHECK(different_bits(g[0], reference<float>(dy, 0.4, key)) == "");
  int dropped = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    CHECK((y.data<float>()[i] == 0) == (g[0].data<float>()[i] == 0));
    dropped += y.data<float>()[i] == 0;
  }
  CHECK(dropped > 0);
  CHECK(dropped < x.numel());
}

TEST_CASE("dropout: a shard draws its part of the whole mask") {
  const Tensor x = test::random({10, 13}, 4, DType::f32);
  const RandomKey key{7, 8, 100};
  const Tensor whole = dropout(x, 0.5, key);
  for (const std::int64_t cut : {1, 3, 4, 9}) {
    RandomKey rest = key;
    rest.first += static_cast<std::uint64_t>(13 * cut);
    CHECK(different_bits(dropout(x.slice(0, 0, cut), 0.5, key), whole.slice(0, 0, cut)) == "");
    CHECK(different_bits(dropout(x.slice(0, cut, 10), 0.5, rest), whole.slice(0, cut, 10)) == "");
  }
}

TEST_CASE("dropout: the rate is p within 5 sigma and keys differ") {
  const std::int64_t n = 200000;
  const Tensor x = Tensor::ones({n});
  for (const double p : {0.001, 0.1, 0.5, 0.9}) {
    const Tensor y = dropout(x, p, {11, 12, 0});
    double dropped = 0;
    for (std::int64_t i = 0; i < n; ++i) dropped += y.data<float>()[i] == 0;
    const double sigma = std::sqrt(static_cast<double>(n) * p * (1 - p));
    CHECK(std::abs(dropped - p * static_cast<double>(n)) < 5 * sigma);
  }
  const Tensor base = dropout(x, 0.5, {11, 12, 0});
  for (const RandomKey& key : {RandomKey{10, 12, 0}, RandomKey{11, 13, 0}, RandomKey{11, 12, 4}}) {
    const Tensor other = dropout(x, 0.5, key);
    double same = 0;
    for (std::int64_t i = 0; i < n; ++i) same += base.data<float>()[i] == other.data<float>()[i];
    CHECK(std::abs(same - 0.5 * static_cast<double>(n)) <
          5 * std::sqrt(0.25 * static_cast<double>(n)));
  }
}

TEST_CASE("dropout: the number of threads changes no bit") {
  const Tensor x = test::random({50001}, 5, DType::f32);
  const RandomKey key{13, 14, 2};
  const test::RestoreThreads restore;
  set_num_threads(1);
  const Tensor one = dropout(x, 0.2, key);
  for (const int threads : {2, 5}) {
    set_num_threads(threads);
    CHECK(different_bits(dropout(x, 0.2, key), one) == "");
  }
}

TEST_CASE("dropout: gradcheck of first and second order") {
  const RandomKey key{15, 16, 1};
  const auto once = [&](const TensorList& in) { return dropout(in[0], 0.3, key); };
  const auto squared = [&](const TensorList& in) {
    const Tensor y = dropout(in[0], 0.3, key);
    return y * y * in[0];
  };
  for (const Shape& shape : {Shape{3, 5}, Shape{1}, Shape{0, 4}, Shape{}}) {
    Tensor x = test::random(shape, 6);
    x.set_requires_grad();
    CHECK(gradcheck(once, {x}) == "");
    CHECK(gradcheck(squared, {x}, {.second_order = true}) == "");
  }
  Tensor gaps = test::strided(test::random({3, 5}, 6));
  gaps.set_requires_grad();
  CHECK(gradcheck(squared, {gaps}, {.second_order = true}) == "");
}

TEST_CASE("dropout: strided inputs count elements in row-major order") {
  const Tensor x = test::random({6, 9}, 7, DType::f32);
  const RandomKey key{17, 18, 0};
  const Tensor want = dropout(x, 0.5, key);
  CHECK(different_bits(dropout(test::strided(x), 0.5, key), want) == "");
  CHECK(different_bits(dropout(x.transpose(0, 1).contiguous().transpose(0, 1), 0.5, key), want) ==
        "");
}

TEST_CASE("dropout: p = 0, p = 1 and evaluation mode") {
  const Tensor x = Tensor::of({1, std::nan(""), INFINITY, -2}, {4});
  CHECK(dropout(x, 0, {1, 1, 0}).same(x));
  CHECK(dropout(x, 0.5, {1, 1, 0}, false).same(x));
  CHECK(different_bits(dropout(x, 1, {1, 1, 0}), Tensor::zeros({4})) == "");
}

TEST_CASE("dropout: meta device") {
  const Tensor y = dropout(Tensor::empty({2, 3}, DType::bf16, kMeta), 0.5, {1, 1, 0});
  CHECK(y.is_meta());
  CHECK(y.shape() == Shape{2, 3});
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("dropout: errors name the rule") {
  const Tensor x = Tensor::zeros({2});
  CHECK(error_of([&] { dropout(x, -0.1, {}); }) == "dropout: p must be in [0, 1], got -0.1");
  CHECK(error_of([&] { dropout(x, 1.5, {}); }) == "dropout: p must be in [0, 1], got 1.5");
  CHECK(error_of([&] { dropout(x, std::nan(""), {}); }) == "dropout: p must be in [0, 1], got nan");
  CHECK(error_of([&] { dropout(Tensor::zeros({2}, DType::i32), 0.5, {}); }) ==
        "dropout: x must have dtype f32, f64, bf16 or f16, got i32");
}

}  // namespace weft::dropout_test
