// The comparisons that all other tests rely on: which differences they must report.
#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/tests/support.h"

namespace weft::support_test {
namespace {

using test::different_bits;
using test::mismatch;

constexpr double kInf64 = std::numeric_limits<double>::infinity(), kNan64 = NAN;

Tensor of(std::initializer_list<double> v, DType t = DType::f64) {
  return Tensor::of(v, {static_cast<std::int64_t>(v.size())}, t);
}

}  // namespace

TEST_CASE("mismatch: an error is relative to the tensor's own size but at most to 1") {
  const Tensor small = mul(test::random({1000}), 1e-3);
  CHECK(mismatch(small * 1.001, small, 2e-3) == "");
  CHECK(mismatch(zeros_like(small), small, 2e-2) != "");
  CHECK(mismatch(small * 1.1, small, 2e-2) != "");
  CHECK(mismatch(of({1e-3, 0, 1e-3}), of({1e-3, 1e-5, 1e-3}), 2e-2) == "");
  CHECK(mismatch(of({1e-3, 0, 1e-3}), of({1e-3, 1e-4, 1e-3}), 2e-2) != "");
  // One large element does not hide the others.
  const Tensor one = cat({of({1}), small});
  CHECK(mismatch(cat({of({1}), zeros_like(small)}), one, 2e-2) != "");
  CHECK(mismatch(of({1000, 0.01}), of({1000, 0}), 1e-2) == "");
  CHECK(mismatch(of({1000, 0.02}), of({1000, 0}), 1e-2) != "");
  // Where larger terms cancel, the caller passes their size.
  CHECK(mismatch(of({1e-16}), of({0}), 1e-12) != "");
  CHECK(mismatch(of({1e-16}), of({0}), 1e-12, 1) == "");
}

TEST_CASE("mismatch: shapes, infinities and NaN") {
  CHECK(mismatch(of({1, 2}), of({1, 2}).view({1, 2}), 1) != "");
  CHECK(mismatch(of({kInf64, -kInf64, kNan64}), of({kInf64, -kInf64, kNan64}), 0) == "");
  CHECK(mismatch(of({1}), of({kInf64}), 1e-2) != "");
  CHECK(mismatch(of({-kInf64}), of({kInf64}), 1e-2) != "");
  CHECK(mismatch(of({kInf64}), of({1}), 1e-2) != "");
  CHECK(mismatch(of({1}), of({kNan64}), 1e-2) != "");
  CHECK(mismatch(of({kNan64}), of({1}), 1e-2) != "");
  CHECK(mismatch(of({kNan64}), of({kInf64}), 1e-2) != "");
  CHECK(mismatch(of({1.5, kInf64}), of({1, kInf64}), 1e-2) != "");  // the scale skips infinity
}

TEST_CASE("different_bits: the sign of 0, NaN, neighbours and integers beyond 2^53") {
  CHECK(different_bits(of({0, 1}), of({0, 1})) == "");
  CHECK(different_bits(of({0}), of({-0.0})) == "element 0: 0 and -0");
  CHECK(different_bits(of({1}), of({1 + 1e-15})) != "");
  CHECK(different_bits(of({1}), of({1}, DType::f32)) == "dtype f64 and f32");
  CHECK(different_bits(of({kNan64}), of({kNan64})) == "element 0 is NaN");
  CHECK(different_bits(of({kNan64}), of({-kNan64}), test::Nan::allowed) == "");
  CHECK(different_bits(of({1}), of({kNan64}), test::Nan::allowed) != "");
  CHECK(different_bits(of({kInf64}), of({-kInf64})) != "");
  const Tensor a = Tensor::zeros({1}, DType::i64), b = Tensor::zeros({1}, DType::i64);
  a.data<std::int64_t>()[0] = (std::int64_t{1} << 53) + 1;
  b.data<std::int64_t>()[0] = std::int64_t{1} << 53;
  CHECK(different_bits(a, b) != "");
}

}  // namespace weft::support_test
