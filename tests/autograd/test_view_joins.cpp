// Ops that join tensors, split them, or copy elements to other places.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/values.h"
#include "weft/autograd/view.h"
#include "weft/core/cuda.h"
#include "weft/tests/support.h"
#include "weft/tests/view_support.h"

namespace weft::view_test {
namespace {

using test::different_bits;
using test::error_of;

}  // namespace

TEST_CASE("view: split, cat and stack") {
  const Tensor x = counting({5, 2});
  const TensorList parts = split(x, 2);
  REQUIRE(parts.size() == 3);
  CHECK(parts[2].shape() == Shape{1, 2});
  CHECK(parts[1].storage() == x.storage());
  CHECK(different_bits(cat(parts), x) == "");
  CHECK(different_bits(cat(split(x, {1, 0, 1}, -1), 1), x) == "");
  CHECK(split(Tensor::empty({0, 3}), 2).size() == 1);
  CHECK(split(counting({20}), 1).size() == 20);
  CHECK(different_bits(cat(split(counting({20}), 1)), counting({20})) == "");
  const Tensor rows = stack({counting({3}), counting({3}) + 3.0});
  CHECK(different_bits(rows, counting({2, 3})) == "");
  CHECK(different_bits(stack({counting({3}), counting({3}) + 3.0}, -1), counting({2, 3}).t()) ==
        "");
  CHECK(stack({Tensor::ones({}), Tensor::ones({})}).shape() == Shape{2});
}

TEST_CASE("view: pad and roll") {
  const Tensor x = counting({2, 2});
  CHECK(different_bits(pad(x, 1, 1, 2, -1),
                       Tensor::of({-1, 0, 1, -1, -1, -1, 2, 3, -1, -1}, {2, 5}, DType::f64)) == "");
  CHECK(pad(Tensor::empty({0}, DType::i32), 0, 1, 2, 4).to(DType::f64).sum().item() == 12);
  const Tensor line = counting({5});
  CHECK(different_bits(roll(line, 2, 0), Tensor::of({3, 4, 0, 1, 2}, {5}, DType::f64)) == "");
  CHECK(different_bits(roll(line, -7, -1), Tensor::of({2, 3, 4, 0, 1}, {5}, DType::f64)) == "");
  CHECK(roll(Tensor::empty({0, 2}), 3, 0).shape() == Shape{0, 2});
}

TEST_CASE("view: contiguous and cast return x itself if nothing changes") {
  const Tensor x = counting({2, 3}), t = x.t();
  CHECK(contiguous(x).same(x));
  CHECK_FALSE(contiguous(t).same(t));
  CHECK(contiguous(t).is_contiguous());
  CHECK(different_bits(contiguous(t), t) == "");
  CHECK(cast(x, DType::f64).same(x));
  CHECK(clone(x).storage() != x.storage());
  CHECK(clone(t).is_contiguous());
  const Tensor halves = Tensor::of({0.5, -1.5, 2.7, 0}, {4}, DType::f64);
  CHECK(different_bits(cast(halves, DType::i32).to(DType::f64),
                       Tensor::of({0, -1, 2, 0}, {4}, DType::f64)) == "");
  CHECK(different_bits(cast(halves, DType::boolean).to(DType::f64),
                       Tensor::of({1, 1, 1, 0}, {4}, DType::f64)) == "");
  const double big = std::numeric_limits<double>::infinity();
  const Tensor wild = Tensor::of({-big, -1, -0.5, 255.5, 256, 3e9, 1e30, std::nan("")}, {8});
  const auto integers = [&](DType from, DType to) {
    return cast(wild.to(from), to).to(DType::f64);
  };
  for (const DType from : {DType::f64, DType::f32, DType::bf16}) {
    const double rounded = from == DType::bf16 ? 256 : 255;
    const double least = -2147483648.0, most = 2147483647.0, far = -0x1p63;
    const double above = from == DType::bf16 ? 3003121664.0 : 3e9;
    CHECK(different_bits(integers(from, DType::u8),
                         Tensor::of({0, 0, 0, 255, 255, 255, 255, 0}, {8}, DType::f64)) == "");
    CHECK(different_bits(
              integers(from, DType::i32),
              Tensor::of({least, -1, 0, rounded, 256, most, most, 0}, {8}, DType::f64)) == "");
    CHECK(different_bits(integers(from, DType::i64),
                         Tensor::of({far, -1, 0, rounded, 256, above, -far, 0}, {8}, DType::f64)) ==
          "");
  }
  const Tensor wide = Tensor::of({-1, 256, 0x1p32 + 7}, {3}, DType::i64);
  CHECK(different_bits(cast(wide, DType::u8).to(DType::f64),
                       Tensor::of({255, 0, 7}, {3}, DType::f64)) == "");
  // Only one rounding is right: this value lies just above a bf16 midpoint and rounds to it in f32.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  CHECK(cast(Tensor::full({1}, above, DType::f64), DType::bf16).item() == 1 + 0x1p-7);
  // So do these, which round to a midpoint in f64.
  const std::int64_t middle = (std::int64_t{1} << 62) + (std::int64_t{1} << 54);
  const std::int64_t near[] = {middle + 1, middle, middle - 1, -middle - 1, -middle + 1};
  CHECK(different_bits(cast(Tensor::from<std::int64_t>(near, {5}), DType::bf16).to(DType::f64),
                       Tensor::of({0x1p62 + 0x1p55, 0x1p62, 0x1p62, -0x1p62 - 0x1p55, -0x1p62}, {5},
                                  DType::f64)) == "");
}

TEST_CASE("view: errors of joins and moves name the rule") {
  const Tensor x = counting({2, 3});
  CHECK(error_of([&] { split(x, 0); }) == "split: size must be at least 1, got 0");
  CHECK(error_of([&] {
          split(x, {1, 1}, 1);
        }) == "split: the sizes must add up to 3 (axis 1 of x [2, 3]), got 2");
  CHECK(error_of([&] { split(x, {4, -1}, 1); }) == "split: every size must be at least 0, got -1");
  CHECK(error_of([&] { cat({}); }) == "cat: needs at least one tensor, got an empty list");
  CHECK(error_of([&] { cat({Tensor::ones({})}); }) ==
        "cat: x must have at least one axis, got a scalar");
  CHECK(error_of([&] {
          cat({x, counting({2, 4})}, 0);
        }) == "cat: every tensor must have the shape [2, 3] but for axis 0, got [2, 4]");
  CHECK(error_of([&] {
          cat({x, x.to(DType::f32)});
        }) == "cat: every tensor must be f64 on cpu, got f32 on cpu");
  CHECK(error_of([&] {
          cat({x, x.to(kMeta)});
        }) == "cat: every tensor must be f64 on cpu, got f64 on meta");
  CHECK(error_of([&] { stack({}); }) == "stack: needs at least one tensor, got an empty list");
  CHECK(error_of([&] {
          stack({x, x.t()});
        }) == "stack: every tensor must be f64 [2, 3] on cpu, got f64 [3, 2] on cpu");
  CHECK(error_of([&] { pad(x, 0, -1, 0); }) ==
        "pad: counts must be at least 0, got -1 before and 0 after");
  CHECK(error_of([&] { roll(x, 1, 2); }) == "roll: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { to_device(x.to(kMeta), kCpu); }) ==
        "to_device: a tensor on meta has no values to move to cpu, got shape [2, 3]");
  if (cuda::device_count() == 0) {
    const std::string text = error_of([&] { to_device(x, Device::parse("cuda:1")); });
    CHECK(text.starts_with("device: cuda:1 cannot be used: "));
  }
}

TEST_CASE("view: chunk, flip and repeat against their definitions") {
  const Tensor x = test::random({2, 5, 3});
  const TensorList parts = chunk(x, 3, 1);
  CHECK(parts.size() == 3);
  CHECK(parts[2].shape() == Shape{2, 1, 3});
  CHECK(test::different_bits(cat(parts, 1), x) == "");
  CHECK(chunk(x, 9, -1).size() == 3);
  CHECK(chunk(Tensor::empty({0}), 2).size() == 1);
  const Tensor turned = flip(x, {0, -1}), wide = repeat(x, {2, 1, 1, 2});
  CHECK(turned.shape() == x.shape());
  CHECK(wide.shape() == Shape{2, 2, 5, 6});
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 5; ++j)
      for (int k = 0; k < 3; ++k) {
        const double v = x[i][j][k].item();
        CHECK(turned[1 - i][j][2 - k].item() == v);
        for (int copy = 0; copy < 4; ++copy)
          CHECK(wide[copy / 2][i][j][k + copy % 2 * 3].item() == v);
      }
  CHECK(test::different_bits(flip(x, 1), flip(x, {1})) == "");
  CHECK(repeat(x, {2, 0, 1}).shape() == Shape{4, 0, 3});
  CHECK(flip(Tensor::empty({0, 2}), 0).shape() == Shape{0, 2});
  CHECK(test::error_of([&] {
          flip(x, {0, -3});
        }) == "flip: every axis must be given once, got -3 twice");
  CHECK(repeat(Tensor::full({}, 3), {2}).shape() == Shape{2});
}

TEST_CASE("view: flip and repeat copy, even where nothing moves") {
  const Tensor x = Tensor::of({1, 2});
  flip(x, {}).fill_(0);
  repeat(x, {1, 1}).fill_(0);
  CHECK(equal(x, Tensor::of({1, 2})));
}

TEST_CASE("view: chunk, flip and repeat, gradients and errors") {
  const auto pieces = [](const TensorList& in) {
    const TensorList p = chunk(in[0], 2, 1);
    return cat({p[1], p[0] * 2}, 1);
  };
  const auto turned = [](const TensorList& in) { return flip(in[0], {0, 1}); };
  const auto wide = [](const TensorList& in) { return repeat(in[0], {2, 1, 3}); };
  for (const Tensor& x : {test::random({3, 5}), test::strided(test::random({2, 3}))}) {
    CHECK(gradcheck(pieces, {x}) == "");
    CHECK(gradcheck(turned, {x}) == "");
    CHECK(gradcheck(wide, {x}) == "");
  }
  const Tensor x = Tensor::ones({2, 3}), none;
  CHECK(test::error_of([&] { chunk(x, 0); }) == "chunk: count must be at least 1, got 0");
  CHECK(test::error_of([&] { chunk(none, 2); }) == "chunk: x must be a tensor, got a null handle");
  CHECK(test::error_of([&] { flip(x, 2); }) == "flip: dim must be in [-2, 2), got 2");
  CHECK(test::error_of([&] { repeat(x, {2}); }) ==
        "repeat: x [2, 3] needs at least 2 numbers, got [2]");
  CHECK(test::error_of([&] {
          repeat(x, {2, -1});
        }) == "repeat: every number must be at least 0, got [2, -1]");
}

TEST_CASE("view: vectors of tensors join, and a tensor splits by sizes") {
  const Tensor x = test::random({4, 3});
  const TensorList parts = x.split({1, 3}, 0);
  const std::vector<Tensor> pieces(parts.begin(), parts.end());
  CHECK(test::different_bits(cat(pieces), x) == "");
  CHECK(stack(std::vector<Tensor>(9, x)).shape() == Shape{9, 4, 3});
}

TEST_CASE("view: a tensor splits by sizes computed at run time, also by more than it has axes") {
  const std::vector<std::int64_t> sizes{3, 0, 1};
  const Tensor x = test::random({4, 3});
  CHECK(x.split(sizes)[0].shape() == Shape{3, 3});
  CHECK(split(x, std::vector<std::int64_t>{1, 2}, -1)[1].shape() == Shape{4, 2});
  CHECK(x.split({4})[0].shape() == Shape{4, 3});  // one size, not pieces of this size
  const TensorList pieces = counting({20}).split(std::vector<std::int64_t>(20, 1));
  CHECK(pieces.size() == 20);
  CHECK(different_bits(cat(pieces), counting({20})) == "");
  CHECK(error_of([&] { split(x, std::vector<std::int64_t>{5}); }) ==
        "split: the sizes must add up to 4 (axis 0 of x [4, 3]), got 5");
}

TEST_CASE("view: unbind, movedim and repeat_interleave against their definitions") {
  const Tensor x = test::random({2, 5, 3});
  const TensorList rows = unbind(x, 1);
  REQUIRE(rows.size() == 5);
  CHECK(rows[4].storage() == x.storage());
  CHECK(different_bits(stack(rows, 1), x) == "");
  CHECK(unbind(Tensor::empty({2, 0}), -1).empty());
  CHECK(unbind(Tensor::empty({2, 0}))[1].shape() == Shape{0});
  CHECK(different_bits(movedim(x, 0, -1), x.permute({1, 2, 0})) == "");
  CHECK(different_bits(movedim(x, 2, 0), x.permute({2, 0, 1})) == "");
  CHECK(movedim(x, 1, 1).storage() == x.storage());
  const Tensor doubled = repeat_interleave(x, 2, -2);
  CHECK(doubled.shape() == Shape{2, 10, 3});
  for (int j = 0; j < 10; ++j) CHECK(different_bits(select(doubled, 1, j), rows[j / 2]) == "");
  CHECK(test::values(repeat_interleave(Tensor::of({1, 2}), 3, 0)) ==
        std::vector<double>{1, 1, 1, 2, 2, 2});
  CHECK(repeat_interleave(x, 0, 2).shape() == Shape{2, 5, 0});
  CHECK(repeat_interleave(x, 1, 0).storage() != x.storage());
}

TEST_CASE("view: unbind, movedim and repeat_interleave, gradients and errors") {
  const auto pieces = [](const TensorList& in) {
    const TensorList p = unbind(in[0], 1);
    return p[0] * p[2];
  };
  const auto moved = [](const TensorList& in) { return square(movedim(in[0], 0, 1)); };
  const auto wide = [](const TensorList& in) { return square(repeat_interleave(in[0], 3, 1)); };
  for (const Tensor& x : {test::random({3, 5}), test::strided(test::random({2, 3}))})
    for (const bool second_order : {false, true}) {
      const GradcheckOptions o{.second_order = second_order};
      CHECK(gradcheck(pieces, {x}, o) == "");
      CHECK(gradcheck(moved, {x}, o) == "");
      CHECK(gradcheck(wide, {x}, o) == "");
    }
  const Tensor x = Tensor::ones({2, 3}), scalar = Tensor::ones({});
  CHECK(error_of([&] { unbind(scalar); }) == "unbind: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { movedim(x, 0, 2); }) == "movedim: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { repeat_interleave(x, -1, 0); }) ==
        "repeat_interleave: count must be at least 0, got -1");
  CHECK(error_of([&] { repeat_interleave(x, INT64_MAX, 0); }) ==
        "repeat_interleave: too many elements, got count 9223372036854775807 for x [2, 3]");
  CHECK(error_of([&] { repeat_interleave(x, 2, 2); }) ==
        "repeat_interleave: dim must be in [-2, 2), got 2");
}

}  // namespace weft::view_test
