#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/autograd/view.h"
#include "weft/core/cuda.h"
#include "weft/tests/support.h"

namespace weft::view_test {
namespace {

using test::different_bits;
using test::error_of;
using test::random;
using test::strided;

using UnaryCase = std::function<Tensor(const Tensor&)>;

const GradcheckOptions kTwice{.second_order = true};

// First and second gradients. x*x makes the op's gradient depend on x.
std::string check_gradients(const UnaryCase& f, const Tensor& x) {
  const auto squared = [&](const TensorList& in) { return f(in[0] * in[0]); };
  std::string wrong = gradcheck([&](const TensorList& in) { return f(in[0]); }, {x});
  if (wrong.empty()) wrong = gradcheck(squared, {x}, kTwice);
  if (wrong.empty()) wrong = gradcheck(squared, {strided(x)}, kTwice);
  return wrong;
}

// Elements 0, 1, 2, ... so that a value identifies its position.
Tensor counting(const Shape& shape, DType dtype = DType::f64) {
  return Tensor::arange(0, static_cast<double>(shape.numel()), 1, dtype).view(shape);
}

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
  // Only one rounding is right: this value lies just above a bf16 midpoint and rounds to it in f32.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  CHECK(cast(Tensor::full({1}, above, DType::f64), DType::bf16).item() == 1 + 0x1p-7);
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

TEST_CASE("view: first and second gradients of contiguous and strided inputs") {
  const Tensor x = random({2, 3, 4});
  struct Case {
    const char* label;
    UnaryCase f;
    bool for_empty = true;  ///< also valid for (2, 3, 0)
  };
  const Case cases[] = {
      {"view",
       [](const Tensor& t) {
         return reshape(t, {4, -1});
       },
       false},
      {"permute",
       [](const Tensor& t) {
         return permute(t, {2, 0, 1});
       }},
      {"transpose", [](const Tensor& t) { return transpose(t, 0, 1); }},
      {"reshape by copy",
       [](const Tensor& t) {
         return reshape(t.transpose(0, 2), {6, 4});
       },
       false},
      {"expand",
       [](const Tensor& t) {
         return expand(t.unsqueeze(1), {3, 2, 5, 3, -1});
       }},
      {"slice", [](const Tensor& t) { return slice(t, 2, 1, kEnd, 2); }},
      {"empty slice", [](const Tensor& t) { return slice(t, 1, 2, 2); }},
      {"narrow", [](const Tensor& t) { return narrow(t, 1, 1, 2); }},
      {"select", [](const Tensor& t) { return select(t, 0, -1); }},
      {"squeeze", [](const Tensor& t) { return squeeze(t.narrow(1, 1, 1), 1); }},
      {"unsqueeze", [](const Tensor& t) { return unsqueeze(t, 2); }},
      {"flatten", [](const Tensor& t) { return flatten(t, 1); }},
      {"contiguous", [](const Tensor& t) { return contiguous(t.t()); }},
      {"clone", [](const Tensor& t) { return clone(t); }},
      {"pad", [](const Tensor& t) { return pad(t, 1, 2, 1, 3); }},
      {"roll", [](const Tensor& t) { return roll(t, 3, 2); }},
      {"cat",
       [](const Tensor& t) {
         return cat({t, t * 2.0, t.narrow(1, 0, 1)}, 1);
       }},
      {"stack",
       [](const Tensor& t) {
         return stack({t, t * t}, 1);
       }},
      {"split",
       [](const Tensor& t) {
         const TensorList p = split(t, 2, 1);
         return cat({p[1] * 2.0, p[0]}, 1);
       }},
      {"split, pieces unused",
       [](const Tensor& t) {
         return split(t, {1, 0, 1, 1}, 1)[2] * 3.0;
       }},
  };
  for (const auto& [label, f, for_empty] : cases) {
    CAPTURE(std::string(label));
    CHECK(check_gradients(f, x) == "");
    if (for_empty) CHECK(check_gradients(f, Tensor::empty({2, 3, 0}, DType::f64)) == "");
  }
}

TEST_CASE("view: cast passes the gradient back in the dtype of x") {
  Tensor x = random({2, 3}, 1, DType::f32);
  x.set_requires_grad();
  Tape tape;
  const Tensor y = cast(x, DType::bf16);
  y.backward(Tensor::full({2, 3}, 0.1, DType::bf16));
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(x.grad().select(0, 0).select(0, 0).item() == static_cast<double>(bf16(0.1f)));
}

TEST_CASE("view: gradients of view and of a cast to f32 and back") {
  const auto viewed = [](const Tensor& x) { return view(x.clone(), {3, -1}); };
  CHECK(check_gradients(viewed, random({2, 3, 2})) == "");
  CHECK(check_gradients(
            [](const Tensor& x) {
              return view(x.clone(), {0, 4});
            },
            random({2, 0, 2})) == "");
  // Through f32 a difference is exact only to 1e-7, so its step must be large.
  const auto through_f32 = [](const TensorList& in) {
    return cast(cast(in[0], DType::f32), DType::f64);
  };
  const GradcheckOptions wide{.step = 0.125, .tolerance = 1e-5};
  CHECK(gradcheck(through_f32, {random({2, 5})}, wide) == "");
  CHECK(gradcheck(through_f32, {strided(random({2, 5}))}, wide) == "");
}

TEST_CASE("view: split and cat of many pieces pass every gradient") {
  CHECK(gradcheck(
            [](const TensorList& in) {
              TensorList parts = split(in[0] * in[0], 1), kept;
              for (int i = 0; i < parts.size(); i += 2) kept.push_back(parts[i] * (i + 1.0));
              return cat(kept);
            },
            {random({21})}, kTwice) == "");
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

}  // namespace weft::view_test
