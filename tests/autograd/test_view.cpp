// Views share storage: their shapes and strides, and what is refused. Gradients are in
// test_view_grad.cpp, ops that join or copy in test_view_joins.cpp.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "weft/autograd/view.h"
#include "weft/tests/support.h"
#include "weft/tests/view_support.h"

namespace weft::view_test {
namespace {

using test::different_bits;
using test::error_of;

}  // namespace

TEST_CASE("view: shares storage and infers one axis") {
  const Tensor x = counting({2, 3, 4});
  const Tensor y = view(x, {6, -1});
  CHECK(y.shape() == Shape{6, 4});
  CHECK(y.storage() == x.storage());
  y.select(0, 5).fill_(7);
  CHECK(x.select(0, 1).select(0, 2).select(0, 3).item() == 7);
  CHECK(view(counting({1}), {}).ndim() == 0);
  CHECK(view(Tensor::ones({}), {1, 1}).shape() == Shape{1, 1});
  CHECK(view(Tensor::empty({0, 3}), {3, 0, 2}).shape() == Shape{3, 0, 2});
  CHECK(view(Tensor::empty({0, 3}), {-1, 3}).shape() == Shape{0, 3});
}

TEST_CASE("view: accepts a strided tensor where its strides allow it") {
  const Tensor x = counting({4, 6});
  const Tensor columns = x.slice(1, 0, 4, 2);  // (4, 2), strides (6, 2)
  CHECK(view(columns, {2, 2, 1, 2}).storage() == x.storage());
  CHECK(different_bits(view(columns, {2, 2, 1, 2}), columns.clone().view({2, 2, 1, 2})) == "");
  CHECK(different_bits(view(columns, {2, 2, 2}), columns.clone().view({2, 2, 2})) == "");
  const Tensor rows = x.slice(0, 0, 4, 2);  // (2, 6), strides (12, 1)
  CHECK(different_bits(view(rows, {2, 3, 2}), rows.clone().view({2, 3, 2})) == "");
  const Tensor every_other = x.view({24}).slice(0, 1, kEnd, 2);  // (12), stride 2
  const Tensor square = view(every_other, {3, 4});
  CHECK(square.storage() == x.storage());
  CHECK(different_bits(square, every_other.clone().view({3, 4})) == "");
  const Tensor repeated = expand(x.select(0, 0), {2, 3, 6});  // strides (0, 0, 1)
  CHECK(different_bits(view(repeated, {6, 2, 3}), repeated.clone().view({6, 2, 3})) == "");
  const Tensor swapped = counting({2, 3, 4}).permute({2, 0, 1});  // strides (1, 12, 4)
  CHECK(different_bits(view(swapped, {4, 6}), swapped.clone().view({4, 6})) == "");
}

TEST_CASE("view: refuses shapes that need a copy and reshape copies") {
  const Tensor t = counting({2, 3}).t();
  CHECK(error_of([&] { view(t, {6}); }) ==
        "view: x of shape [3, 2] and strides [1, 3] cannot be seen as [6] without a copy; use "
        "reshape");
  const Tensor flat = reshape(t, {6});
  CHECK(flat.storage() != t.storage());
  CHECK(different_bits(flat, Tensor::of({0, 3, 1, 4, 2, 5}, {6}, DType::f64)) == "");
  CHECK(reshape(t, {3, 1, 2}).storage() == t.storage());
}

TEST_CASE("view: permute, transpose, expand") {
  const Tensor x = counting({2, 3, 4});
  const Tensor p = permute(x, {2, 0, -2});
  CHECK(p.shape() == Shape{4, 2, 3});
  CHECK(p.select(0, 3).select(0, 1).select(0, 2).item() == 1 * 12 + 2 * 4 + 3);
  CHECK(transpose(x, 0, -1).shape() == Shape{4, 3, 2});
  CHECK(different_bits(transpose(x, 1, 1), x) == "");
  CHECK(permute(Tensor::ones({}), {}).shape() == Shape{});
  const Tensor e = expand(counting({3, 1}), {2, -1, 4});
  CHECK(e.shape() == Shape{2, 3, 4});
  CHECK(e.strides() == Shape{0, 1, 0});
  CHECK(expand(Tensor::ones({1}), {0}).numel() == 0);
}

TEST_CASE("view: slice, narrow and select count negative positions from the end") {
  const Tensor x = counting({6});
  CHECK(different_bits(slice(x, 0, 1, 6, 2), Tensor::of({1, 3, 5}, {3}, DType::f64)) == "");
  CHECK(different_bits(slice(x, -1, -3, -1), Tensor::of({3, 4}, {2}, DType::f64)) == "");
  CHECK(different_bits(slice(x, 0, -100, 100, 4), Tensor::of({0, 4}, {2}, DType::f64)) == "");
  CHECK(slice(x, 0, 4, 2).shape() == Shape{0});
  CHECK(slice(x, 0, 9).shape() == Shape{0});
  CHECK(different_bits(narrow(x, 0, -2, 2), Tensor::of({4, 5}, {2}, DType::f64)) == "");
  CHECK(narrow(x, 0, 6, 0).shape() == Shape{0});
  CHECK(select(x, 0, -1).item() == 5);
  CHECK(select(counting({2, 3}), 1, 2).shape() == Shape{2});
}

TEST_CASE("view: squeeze, unsqueeze, flatten") {
  const Tensor x = counting({2, 1, 3});
  CHECK(squeeze(x, 1).shape() == Shape{2, 3});
  CHECK(unsqueeze(x, -1).shape() == Shape{2, 1, 3, 1});
  CHECK(unsqueeze(x, 0).shape() == Shape{1, 2, 1, 3});
  CHECK(unsqueeze(Tensor::ones({}), 0).shape() == Shape{1});
  CHECK(unsqueeze(x, 1).is_contiguous());
  CHECK(flatten(x).shape() == Shape{6});
  CHECK(flatten(x, 1).shape() == Shape{2, 3});
  CHECK(flatten(x, 0, -2).shape() == Shape{2, 3});
  CHECK(flatten(Tensor::ones({})).shape() == Shape{1});
  CHECK(flatten(counting({2, 3}).t()).numel() == 6);
}

TEST_CASE("view: nothing is recorded where no gradient is needed") {
  Tensor x = counting({2, 3});
  x.set_requires_grad();
  Tape tape;
  contiguous(x);
  cast(x, DType::f64);
  CHECK_FALSE(cast(x, DType::i64).requires_grad());
  CHECK_FALSE(cast(x, DType::e4m3).requires_grad());
  CHECK(tape.size() == 0);
  CHECK(split(x, 1, 1).size() == 3);
  CHECK(tape.size() == 1);
}

TEST_CASE("view: meta tensors take the same shapes") {
  const Tensor m = to_device(counting({2, 3, 4}), kMeta);
  CHECK(m.is_meta());
  CHECK(m.dtype() == DType::f64);
  CHECK(m.shape() == Shape{2, 3, 4});
  CHECK(to_device(m, kMeta).same(m));
  const Tensor t = permute(m, {2, 1, 0});
  CHECK(reshape(t, {6, -1}).shape() == Shape{6, 4});
  CHECK(cat({m, m}, 1).shape() == Shape{2, 6, 4});
  CHECK(stack({m, m}, 1).shape() == Shape{2, 2, 3, 4});
  CHECK(pad(m, 0, 1, 1).shape() == Shape{4, 3, 4});
  CHECK(roll(m, 1, 0).is_meta());
  CHECK(cast(m, DType::bf16).dtype() == DType::bf16);
  Tensor leaf = m.detach();
  leaf.set_requires_grad();
  Tape tape;
  const Tensor y = cat({split(leaf, 2, 2)[1].contiguous(), slice(leaf, 2, 0, 4, 3)}, 2);
  y.backward(Tensor::empty({2, 3, 4}, DType::f64, kMeta));
  CHECK(leaf.grad().shape() == Shape{2, 3, 4});
  CHECK(leaf.grad().is_meta());
}

TEST_CASE("view: errors of views name the rule") {
  const Tensor x = counting({2, 3}), scalar = Tensor::ones({});
  CHECK(error_of([&] { view(x, {4}); }) ==
        "view: shape must have the 6 elements of x [2, 3], got [4]");
  CHECK(error_of([&] {
          reshape(x, {4, -1});
        }) == "reshape: shape must have the 6 elements of x [2, 3], got [4, -1]");
  CHECK(error_of([&] {
          view(x, {-1, -1});
        }) == "view: every axis must be at least 0, one may be -1, got shape [-1, -1]");
  CHECK(error_of([&] {
          view(Tensor::empty({0}), {0, -1});
        }) == "view: shape must have the 0 elements of x [0], got [0, -1]");
  CHECK(error_of([&] {
          view(Tensor::empty({0}), {std::int64_t{1} << 32, std::int64_t{1} << 32});
        }) == "view: shape must have the 0 elements of x [0], got [4294967296, 4294967296]");
  CHECK(error_of([&] {
          permute(x, {0, 0});
        }) == "permute: axes must name each of the 2 axes of x once, got [0, 0]");
  CHECK(error_of([&] { permute(x, {0}); }) ==
        "permute: axes must name each of the 2 axes of x once, got [0]");
  CHECK(error_of([&] {
          permute(x, {0, 2});
        }) == "permute: axes must name each of the 2 axes of x once, got [0, 2]");
  CHECK(error_of([&] { transpose(x, 0, 2); }) == "transpose: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { transpose(scalar, 0, 0); }) ==
        "transpose: x must have at least one axis, got a scalar");
  CHECK(error_of([&] {
          expand(x, {2, 6});
        }) == "expand: x must broadcast to [2, 6], got shape [2, 3]");
  CHECK(error_of([&] { expand(x, {3}); }) == "expand: x must broadcast to [3], got shape [2, 3]");
  CHECK(error_of([&] {
          expand(x, {-1, 2, 3});
        }) == "expand: x must broadcast to [-1, 2, 3], got shape [2, 3]");
  CHECK(error_of([&] { slice(x, 0, 0, 2, -1); }) == "slice: step must be at least 1, got -1");
  CHECK(error_of([&] { slice(x, -3, 0); }) == "slice: dim must be in [-2, 2), got -3");
  CHECK(error_of([&] { narrow(x, 1, 2, 2); }) ==
        "narrow: begin 2 and length 2 must stay inside axis 1 of length 3");
  CHECK(error_of([&] { narrow(x, 1, 0, -1); }) ==
        "narrow: begin 0 and length -1 must stay inside axis 1 of length 3");
  CHECK(error_of([&] { select(x, 1, 3); }) == "select: index must be in [-3, 3), got 3");
  CHECK(error_of([&] { squeeze(x, 0); }) == "squeeze: axis 0 must have length 1, got shape [2, 3]");
  CHECK(error_of([&] { unsqueeze(x, 3); }) == "unsqueeze: dim must be in [-3, 3), got 3");
  CHECK(error_of([&] { flatten(x, 1, 0); }) == "flatten: first must not come after last 0, got 1");
}

TEST_CASE("view: sizes that overflow are refused") {
  const std::int64_t big = std::int64_t{1} << 32;
  const Tensor one = Tensor::ones({1, 1}), four = Tensor::ones({4});
  CHECK(error_of([&] {
          one.expand({big, big});
        }) == "expand: too many elements, got shape [4294967296, 4294967296]");
  CHECK(error_of([&] {
          one.expand({big, big / 2});
        }) == "expand: too many elements, got shape [4294967296, 2147483648]");
  CHECK(one.expand({big, 4}).numel() == 4 * big);
  CHECK(error_of([&] {
          Tensor::empty({0}).view({0, big, big});
        }) == "view: too many elements, got shape [0, 4294967296, 4294967296]");
  CHECK(error_of([&] { pad(four, 0, INT64_MAX, INT64_MAX); }) ==
        "pad: too many elements, got 9223372036854775807 before and 9223372036854775807 after axis "
        "0 of x [4]");
  CHECK(error_of([&] { pad(four, 0, 0, INT64_MAX); }) ==
        "pad: too many elements, got 0 before and 9223372036854775807 after axis 0 of x [4]");
  CHECK(error_of([&] {
          split(four, {INT64_MAX, INT64_MAX, 6});
        }) == "split: the sizes must add up to 4 (axis 0 of x [4]), got more than fits an integer");
  CHECK(split(four, INT64_MAX).size() == 1);
  const Tensor huge = Tensor::ones({1}).expand({std::int64_t{1} << 55});
  TensorList many;
  for (int i = 0; i < 256; ++i) many.push_back(huge);
  CHECK(error_of([&] { cat(many); }) ==
        "cat: the lengths of axis 0 must add up to an integer, got more");
  // A step beyond the end leaves one element.
  CHECK(test::values(Tensor::arange(0, 8).view({2, 4}).slice(0, 1, kEnd, INT64_MAX)) ==
        std::vector<double>{4, 5, 6, 7});
}

}  // namespace weft::view_test
