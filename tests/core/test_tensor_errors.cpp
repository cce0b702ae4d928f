// What tensors refuse: members of a null handle, numbers out of range, recorded operands, and more.
#include <doctest/doctest.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/core/tensor.h"
#include "weft/tests/support.h"

namespace weft::tensor_errors_test {
namespace {

using test::error_of;
using test::values;

}  // namespace

TEST_CASE("tensor: members of a null handle throw") {
  const Tensor none;
  const auto text = [](const char* member) { return std::string(member) + ": the tensor is null"; };
  CHECK(error_of([&] { none.shape(); }) == text("shape"));
  CHECK(error_of([&] { none.strides(); }) == text("strides"));
  CHECK(error_of([&] { none.ndim(); }) == text("ndim"));
  CHECK(error_of([&] { none.dim(0); }) == text("dim"));
  CHECK(error_of([&] { none.numel(); }) == text("numel"));
  CHECK(error_of([&] { none.offset(); }) == text("offset"));
  CHECK(error_of([&] { none.dtype(); }) == text("dtype"));
  CHECK(error_of([&] { none.device(); }) == text("device"));
  CHECK(error_of([&] { none.is_meta(); }) == text("device"));
  CHECK(error_of([&] { none.is_contiguous(); }) == text("is_contiguous"));
  CHECK(error_of([&] { none.data<float>(); }) == text("data"));
  CHECK(error_of([&] { none.raw(); }) == text("raw"));
  CHECK(error_of([&] { none.storage(); }) == text("storage"));
  CHECK(error_of([&] { none.version(); }) == text("version"));
  CHECK(error_of([&] { none.bump_version(); }) == text("storage"));
  CHECK(error_of([&] { none.grad(); }) == text("grad"));
  CHECK(error_of([&] { none.set_grad({}); }) == text("set_grad"));
  CHECK(error_of([&] { none.main_grad(); }) == text("main_grad"));
  CHECK(error_of([&] { none.set_main_grad({}); }) == text("set_main_grad"));
  CHECK(error_of([&] { none.detach(); }) == text("detach"));
  CHECK(error_of([&] { none.alias({}, {}, 0); }) == text("alias"));
  CHECK(error_of([&] { Tensor().set_requires_grad(); }) == text("set_requires_grad"));
  std::vector<double> out;
  CHECK(error_of([&] { none.copy_to(out); }) == text("numel"));
  CHECK(!none.requires_grad());
}

TEST_CASE("tensor: a number outside an integer dtype's range is refused") {
  const Tensor u = Tensor::zeros({2}, DType::u8), i = Tensor::zeros({2}, DType::i32),
               l = Tensor::zeros({2}, DType::i64);
  const auto whole = [](const char* op, const char* dtype, double v) {
    return message("{}: the number must be whole for a tensor of {}, got {}", op, dtype, v);
  };
  for (const double v : {0.5, std::nan("")}) {
    CHECK(error_of([&] { Tensor::full({2}, v, DType::i32); }) == whole("full", "i32", v));
    CHECK(error_of([&] { i.fill_(v); }) == whole("fill_", "i32", v));
    CHECK(error_of([&] { Tensor::of({v}, {1}, DType::u8); }) == whole("of", "u8", v));
    CHECK(error_of([&] { pad(i, 0, 1, 1, v); }) == whole("pad", "i32", v));
  }
  CHECK(error_of([] { Tensor::arange(0, 1, 0.5, DType::i64); }) == whole("arange", "i64", 0.5));
  CHECK(error_of([] { Tensor::arange(0, 300, 1, DType::u8); }) ==
        "arange: the number must be in [0, 255] for a tensor of u8, got 299");
  for (const double v : {-1.0, 256.0, 1e300, HUGE_VAL}) {
    const std::string text =
        message(": the number must be in [0, 255] for a tensor of u8, got {}", v);
    CHECK(error_of([&] { u.fill_(v); }) == "fill_" + text);
    CHECK(error_of([&] { Tensor::full({2}, v, DType::u8); }) == "full" + text);
    CHECK(error_of([&] { Tensor::of({3, v}, {2}, DType::u8); }) == "of" + text);
    CHECK(error_of([&] { pad(u, 0, 1, 1, v); }) == "pad" + text);
  }
  CHECK(error_of([&] { l.fill_(0x1p63); }) ==
        "fill_: the number must be in [-9223372036854775808, 9223372036854775807] for a tensor of "
        "i64, got 9223372036854775808");
  CHECK(values(u) == std::vector<double>{0, 0});
  CHECK(values(l.fill_(-0x1p63)) == std::vector<double>(2, -0x1p63));
  CHECK(values(u.fill_(255)) == std::vector<double>(2, 255));
}

TEST_CASE("tensor: in-place ops refuse a recorded source except under NoGradGuard") {
  const Tensor x = Tensor::of({1, 2}, {2}, DType::f64).set_requires_grad();
  const Tensor plain = Tensor::zeros({2}, DType::f64), wide = Tensor::zeros({2, 2}, DType::f64);
  plain.copy_(x);  // no tape records
  Tape tape;
  const Tensor y = x * 2;
  const auto text = [](const char* op, const char* label) {
    return message(
        "{}: {} is part of a recording, and its gradient would end here; give {}.detach(), or use "
        "the out-of-place op, got shape [2]",
        op, label, label);
  };
  for (const Tensor& source : {x, y}) {
    const std::uint32_t version = plain.version();
    CHECK(error_of([&] { plain.copy_(source); }) == text("copy_", "source"));
    CHECK(error_of([&] { plain.add_(source); }) == text("add_", "other"));
    CHECK(error_of([&] { wide.select(0, 1).copy_(source); }) == text("copy_", "source"));
    CHECK(plain.version() == version);
    CHECK(values(plain) == std::vector<double>{1, 2});
    plain.add_(source.detach(), 0);
  }
  const NoGradGuard off;
  plain.copy_(y);
  CHECK(values(plain) == std::vector<double>{2, 4});
}

TEST_CASE("tensor: in-place ops refuse a recorded tensor except under NoGradGuard") {
  Tensor w = Tensor::ones({2});
  w.set_requires_grad();
  w.fill_(3);  // no tape records
  Tape tape;
  const auto text = [](const char* op) {
    return message(
        "{}: cannot change a tensor that is part of a recording; use the out-of-place "
        "op, or a NoGradGuard, got shape [2]",
        op);
  };
  CHECK(error_of([&] { w.fill_(1); }) == text("fill_"));
  CHECK(error_of([&] { w.zero_(); }) == text("fill_"));
  CHECK(error_of([&] { w.copy_(Tensor::ones({2})); }) == text("copy_"));
  CHECK(error_of([&] { w.add_(Tensor::ones({2})); }) == text("add_"));
  CHECK(error_of([&] { w.mul_(2); }) == text("mul_"));
  const Tensor y = w.slice(0, 0, 2);
  CHECK(error_of([&] { y.mul_(2); }) == text("mul_"));
  CHECK(values(w) == std::vector<double>(2, 3));
  Tensor::ones({2}).mul_(2);  // not tracked
  const NoGradGuard off;
  w.mul_(2);
  CHECK(values(w) == std::vector<double>(2, 6));
}

TEST_CASE("tensor: errors name the rule") {
  const Tensor x = Tensor::ones({2, 3});
  CHECK(error_of([] {
          Tensor::empty({2, -1});
        }) == "empty: every axis must be at least 0, got shape [2, -1]");
  CHECK(error_of([] {
          Tensor::empty({std::int64_t{1} << 40, std::int64_t{1} << 40});
        }) == "empty: too many elements, got shape [1099511627776, 1099511627776]");
  // The order of the axes does not matter, nor does an axis of length 0.
  const std::int64_t big = std::int64_t{1} << 32;
  CHECK(error_of([&] {
          Tensor::empty({big, big, 0});
        }) == "empty: too many elements, got shape [4294967296, 4294967296, 0]");
  CHECK(error_of([&] {
          Tensor::empty({0, big, big});
        }) == "empty: too many elements, got shape [0, 4294967296, 4294967296]");
  CHECK(Tensor::empty({0, big}).strides() == Shape{big, 1});
  float number = 0;
  CHECK(error_of([&] { Tensor::wrap(&number, {-2}, DType::f32); }) ==
        "wrap: every axis must be at least 0, got shape [-2]");
  CHECK(error_of([&] {
          Tensor::wrap(&number, {big, big}, DType::f32);
        }) == "wrap: too many elements, got shape [4294967296, 4294967296]");
  CHECK(error_of([] { Tensor::wrap(nullptr, {2}, DType::f32); }) ==
        "wrap: data must not be null for shape [2]");
  CHECK(Tensor::wrap(nullptr, {0}, DType::f32).numel() == 0);
  CHECK(error_of([] {
          Tensor::of({}, {-1, 0});
        }) == "from: every axis must be at least 0, got shape [-1, 0]");
  for (const int axis : {2, -3, 99, INT_MIN})
    CHECK(error_of([&] { x.dim(axis); }) ==
          message("dim: axis must be in [-2, 2) for shape [2, 3], got {}", axis));
  CHECK(error_of([] { Tensor::ones({}).dim(-1); }) ==
        "dim: axis must be in [0, 0) for shape [], got -1");
  const TensorList two{x, x};
  CHECK(error_of([&] { two[2]; }) == "list: the index must be in [0, 2), got 2");
  TensorList mine = two;
  CHECK(error_of([&] { mine[-1]; }) == "list: the index must be in [0, 2), got -1");
  CHECK(error_of([&] {
          x.set_grad(Tensor::ones({3, 2}));
        }) == "set_grad: the gradient must be [2, 3] on cpu like its tensor, got [3, 2] on cpu");
  CHECK(error_of([&] {
          x.set_main_grad(Tensor::ones({3, 2}));
        }) ==
        "set_main_grad: the gradient must be [2, 3] on cpu like its tensor, got [3, 2] on cpu");
  CHECK(error_of([] { Tensor::full({1}, HUGE_VAL).item<int>(); }) ==
        "item: the value must fit an integer, got inf");
  CHECK(error_of([] { Tensor::full({}, 0x1p32 + 5, DType::i64).item<int>(); }) ==
        "item: the value must fit an integer of 32 bits, got 4294967301");
  CHECK(error_of([] { Tensor::full({}, 256).item<std::uint8_t>(); }) ==
        "item: the value must fit an unsigned integer of 8 bits, got 256");
  CHECK(error_of([] { Tensor::full({}, -1).item<std::size_t>(); }) ==
        "item: the value must fit an unsigned integer of 64 bits, got -1");
  CHECK(error_of([] { Tensor::arange(0, 1, 0); }) ==
        "arange: step must lead from start 0 to end 1, got 0");
  CHECK(error_of([] { Tensor::arange(0, 1, -1); }) ==
        "arange: step must lead from start 0 to end 1, got -1");
  CHECK(error_of([] { Tensor::arange(0, HUGE_VAL, 2); }) ==
        "arange: too many elements from 0 to inf in steps of 2");
  CHECK(error_of([] { Tensor::of({1, 2}, {3}); }) == "from: shape [3] needs 3 values, got 2");
  CHECK(error_of([&] { x.data<double>(); }) ==
        "data: the tensor's dtype is f32, got a request for f64");
  CHECK(error_of([&] { x.to(kMeta).data<float>(); }) ==
        "data: a tensor on device meta has no data on the host");
  CHECK(error_of([&] { x.item(); }) == "item: needs exactly 1 element, got shape [2, 3]");
  CHECK(error_of([&] { x.item_int(); }) == "item: needs exactly 1 element, got shape [2, 3]");
  CHECK(error_of([] { Tensor().item(); }) == "item: the tensor is null");
  CHECK(error_of([] { Tensor().item_int(); }) == "item: the tensor is null");
  CHECK(error_of([] { Tensor::ones({1}, DType::f32, kMeta).item(); }) ==
        "to_device: a tensor on meta has no values to move to cpu, got shape [1]");
  CHECK(error_of([] { release_storage({}); }) ==
        "release_storage: t must be a tensor, got a null handle");
  CHECK(error_of([&] {
          std::vector<double> out(5);
          x.copy_to(out);
        }) == "copy_to: the buffer must hold 6 values, got 5");
  CHECK(error_of([&] { x.to(DType::i64).set_requires_grad(); }) ==
        "set_requires_grad: dtype must be one of f32, f64, bf16, f16, got i64");
  const Tensor repeated = Tensor::ones({1}).expand({3});
  const std::string rule =
      "the tensor must not repeat its elements, got shape [3] with strides [0]";
  CHECK(error_of([&] { repeated.add_(Tensor::ones({3})); }) == "add_: " + rule);
  CHECK(error_of([&] { repeated.copy_(Tensor::ones({3})); }) == "copy_: " + rule);
  CHECK(error_of([&] { repeated.mul_(2); }) == "mul_: " + rule);
  CHECK(values(repeated.fill_(4)) == std::vector<double>(3, 4));
  Tensor leaf = x.clone();
  leaf.set_requires_grad();
  const Tape tape;
  Tensor y = leaf.clone();
  CHECK(error_of([&] { y.set_requires_grad(); }) ==
        "set_requires_grad: the tensor must be a leaf, got the output of a recorded op with shape "
        "[2, 3]; detach() it first");
  CHECK(error_of([&] { x.to(DType::i32).mul_(0.5); }) ==
        "mul_: the number must be whole for a tensor of i32, got 0.5");
  CHECK(error_of([&] { x.to(DType::i32).add_(x.to(DType::i32), 0.5); }) ==
        "add_: the number must be whole for a tensor of i32, got 0.5");
  CHECK(error_of([&] {
          x.copy_(Tensor::ones({3, 2}));
        }) == "copy_: source must have shape [2, 3], got [3, 2]");
  CHECK(error_of([&] {
          x.add_(Tensor::ones({2, 3}, DType::f64));
        }) == "add_: other must have shape [2, 3] and dtype f32, got [2, 3] and f64");
}

}  // namespace weft::tensor_errors_test
