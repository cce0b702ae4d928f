// Where draws may go: the range of uniform numbers in every dtype, and the tensors that they
// refuse.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/core/random.h"
#include "weft/tests/support.h"

namespace weft::random_range_test {
namespace {

using test::error_of;
using test::values;

// The largest of many uniform numbers.
double most(DType dtype, double low, double high) {
  const Tensor t = Tensor::empty({1 << 14}, dtype);
  uniform_(t, {3, 4, 0}, low, high);
  CHECK(min(t.to(DType::f64)).item() >= low);
  return max(t.to(DType::f64)).item();
}

}  // namespace

TEST_CASE("random: no uniform number is rounded to the end of its range") {
  // One in 512 numbers in [0, 1) is nearest to 1 in bf16, one in 4,096 in f16.
  CHECK(most(DType::bf16, 0, 1) == 1 - 0x1p-8);
  CHECK(most(DType::f16, 0, 1) == 1 - 0x1p-11);
  CHECK(most(DType::e4m3, 0, 1) == 1 - 0x1p-4);
  CHECK(most(DType::e5m2, 0, 1) == 1 - 0x1p-3);
  CHECK(most(DType::bf16, 1, 2) == 2 - 0x1p-7);
  CHECK(most(DType::bf16, -1, 0) < 0);
  CHECK(most(DType::bf16, -2, -1) == -1 - 0x1p-7);
  // A bound that the dtype does not have.
  CHECK(most(DType::bf16, 1, 1.012) == 1.0078125);
  // Half of these numbers are nearest to the end.
  CHECK(most(DType::f32, 0x1p24, 0x1p24 + 2) == 0x1p24);
  CHECK(most(DType::f64, 0x1p53, 0x1p53 + 2) == 0x1p53);
  // The range is one number, or the dtype has none in it.
  CHECK(values(uniform_(Tensor::empty({2}), {1, 2, 0}, 3, 3)) == std::vector<double>(2, 3));
  CHECK(values(uniform_(Tensor::empty({2}, DType::bf16), {1, 2, 0}, 1.001, 1.002)) ==
        std::vector<double>(2, 1));
}

TEST_CASE("random: draws of integers are cut off toward 0, and to the dtype's range") {
  CHECK(most(DType::i64, 0, 10) == 9);
  const std::pair<DType, std::pair<double, double>> cases[] = {{DType::u8, {0, 255}},
                                                               {DType::i32, {-0x1p31, 0x1p31 - 1}}};
  for (const auto& [dtype, range] : cases) {
    const Tensor t = Tensor::empty({100}, dtype);
    normal_(t, {1, 2, 0}, 0, 1e12);
    CHECK(min(t.to(DType::f64)).item() == range.first);
    CHECK(max(t.to(DType::f64)).item() == range.second);
  }
}

TEST_CASE("random: draws refuse a recorded tensor except under NoGradGuard") {
  const Tensor w = Tensor::ones({2}, DType::f64).set_requires_grad();
  uniform_(w, {1, 2, 0});  // no tape records
  Tape tape;
  const Tensor y = w * 3;
  for (const Tensor& t : {w, y}) {
    const std::vector<double> before = values(t);
    const std::uint32_t version = t.version();
    const std::string text =
        ": cannot change a tensor that is part of a recording; use the out-of-place op, or a "
        "NoGradGuard, got shape [2]";
    CHECK(error_of([&] { uniform_(t, {}); }) == "uniform_" + text);
    CHECK(error_of([&] { normal_(t, {}); }) == "normal_" + text);
    CHECK(error_of([&] { truncated_normal_(t, {}, 0, 1, -1, 1); }) == "truncated_normal_" + text);
    CHECK(error_of([&] { bernoulli_(t, {}, 0.5); }) == "bernoulli_" + text);
    CHECK(t.version() == version);
    CHECK(values(t) == before);
  }
  normal_(Tensor::empty({2}), {});
  const NoGradGuard off;
  CHECK(values(bernoulli_(w, {}, 1)) == std::vector<double>(2, 1));
  CHECK(error_of([] { normal_({}, {}); }) ==
        "normal_: the tensor must be a tensor, got a null handle");
}

}  // namespace weft::random_range_test
