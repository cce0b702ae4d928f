// Integers wrap around; numbers that their dtype cannot represent are refused.
#include <doctest/doctest.h>

#include <string>

#include "weft/autograd/elementwise.h"
#include "weft/tests/elementwise_support.h"
#include "weft/tests/support.h"

namespace weft::elementwise_test {
using test::error_of;

TEST_CASE("elementwise: integers add, subtract, multiply, compare and wrap around") {
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    CAPTURE(name(t));
    const Tensor a = Tensor::of({5, 7, 9}, {3}, t), b = Tensor::of({5, 2, 3}, {3}, t);
    CHECK(test::different_bits(a + b, Tensor::of({10, 9, 12}, {3}, t)) == "");
    CHECK(test::different_bits(a - b, Tensor::of({0, 5, 6}, {3}, t)) == "");
    CHECK(test::different_bits(a * b, Tensor::of({25, 14, 27}, {3}, t)) == "");
    CHECK(test::different_bits(minimum(a, b), Tensor::of({5, 2, 3}, {3}, t)) == "");
    CHECK(test::different_bits(maximum(a, b), Tensor::of({5, 7, 9}, {3}, t)) == "");
    CHECK(test::different_bits(a * 3 + 1, Tensor::of({16, 22, 28}, {3}, t)) == "");
    CHECK(test::different_bits(clamp(a, 6, 8), Tensor::of({6, 7, 8}, {3}, t)) == "");
  }
  const Tensor largest = Tensor::of({2147483647}, {1}, DType::i32);
  CHECK((largest + 1).item() == -2147483648.0);
  CHECK(test::different_bits(abs(Tensor::of({-4, 4}, {2}, DType::i64)),
                             Tensor::of({4, 4}, {2}, DType::i64)) == "");
  CHECK(neg(Tensor::of({1}, {1}, DType::u8)).item() == 255);
  CHECK((Tensor::of({1}, {1}, DType::u8) + -3.0).item() == 254);
  CHECK((Tensor::of({1}, {1}, DType::u8) * -255.0).item() == 1);
  CHECK((largest + 2147483647.0).item() == -2);
}

TEST_CASE("elementwise: a number that the integer dtype cannot represent is refused") {
  struct Range {
    DType dtype;
    const char* text;
    double low, high;
  };
  for (const Range& r :
       {Range{DType::i32, "[-2147483648, 2147483647]", -0x1p31, 0x1p31 - 1},
        Range{DType::i64, "[-9223372036854775808, 9223372036854775807]", -0x1p63, 0x1p63 - 1024},
        Range{DType::u8, "[-255, 255]", -255, 255}}) {
    CAPTURE(name(r.dtype));
    const Tensor x = Tensor::of({1, 2}, {2}, r.dtype);
    const auto refused = [&](const char* op, double v, auto f) {
      CAPTURE(v);
      CHECK(error_of([&] { f(v); }) == message("{}: the number must be in {} for a tensor of {}, "
                                               "got {}",
                                               op, r.text, r.dtype, v));
    };
    for (const double v : {kInf, -kInf, 1e300, -1e300, 2 * r.high + 2, 2 * r.low - 2}) {
      refused("add", v, [&](double n) { x + n; });
      refused("sub", v, [&](double n) { x - n; });
      refused("sub", v, [&](double n) { n - x; });
      refused("mul", v, [&](double n) { x* n; });
      refused("mul_", v, [&](double n) { x.clone().mul_(n); });
      refused("add_", v, [&](double n) { x.clone().add_(x, n); });
    }
    for (const double v : {kNan, 0.5, -2.5})
      for (const std::string& text :
           {error_of([&] { x + v; }), error_of([&] { maximum(x, v); }),
            error_of([&] { minimum(x, v); }), error_of([&] { x.clone().mul_(v); })})
        CHECK(text.ends_with(
            message(": the number must be whole for a tensor of {}, got {}", r.dtype, v)));
    CHECK(error_of([&] { x + r.high; }) == "no error");
    CHECK(error_of([&] { x* r.low; }) == "no error");
  }
}

TEST_CASE("elementwise: a bound that excludes an integer dtype's whole range is refused") {
  const Tensor x = Tensor::of({1, 200}, {2}, DType::u8);
  const std::string text = "a tensor of u8 must have a number from ";
  CHECK(error_of([&] { maximum(x, 256); }) ==
        "maximum: " + text + "256 to inf, its range is [0, 255]");
  CHECK(error_of([&] { maximum(x, kInf); }) ==
        "maximum: " + text + "inf to inf, its range is [0, 255]");
  CHECK(error_of([&] { minimum(x, -1); }) ==
        "minimum: " + text + "-inf to -1, its range is [0, 255]");
  CHECK(error_of([&] { clamp(x, 300, 400); }) ==
        "clamp: " + text + "300 to 400, its range is [0, 255]");
  CHECK(error_of([&] { clamp(x, -9, -1); }) ==
        "clamp: " + text + "-9 to -1, its range is [0, 255]");
  CHECK(error_of([&] { clamp(x.to(DType::i64), 1e300, kInf); }) ==
        "clamp: a tensor of i64 must have a number from 1e+300 to inf, its range is "
        "[-9223372036854775808, 9223372036854775807]");
  CHECK(test::different_bits(maximum(x, 255), Tensor::full({2}, 255, DType::u8)) == "");
  CHECK(test::different_bits(clamp(x, -kInf, 100), Tensor::of({1, 100}, {2}, DType::u8)) == "");
}

TEST_CASE("elementwise: bounds outside an integer dtype's range are accepted") {
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    CAPTURE(name(t));
    const Tensor x = Tensor::of({1, 5}, {2}, t);
    for (const double far : {1e30, kInf}) {
      CHECK(test::different_bits(clamp(x, -far, far), x) == "");
      CHECK(test::different_bits(clamp(x, -1, 4), Tensor::of({1, 4}, {2}, t)) == "");
      CHECK(test::different_bits(minimum(x, far), x) == "");
      CHECK(test::different_bits(maximum(x, -far), x) == "");
      CHECK(test::different_bits(maximum(x, -1), x) == "");
    }
  }
}

}  // namespace weft::elementwise_test
