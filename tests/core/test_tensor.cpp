#include <doctest/doctest.h>

#include <array>
#include <climits>
#include <cmath>
#include <utility>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/core/allocator.h"
#include "weft/core/tensor.h"
#include "weft/tests/support.h"

namespace weft::tensor_test {
namespace {

using test::different_bits;
using test::error_of;
using test::strided;
using test::values;

constexpr DType kAll[] = {DType::f32,  DType::f64, DType::bf16, DType::f16, DType::e4m3,
                          DType::e5m2, DType::i32, DType::i64,  DType::u8,  DType::boolean};

}  // namespace

TEST_CASE("tensor: zeros_like and empty_like take shape, dtype and device") {
  for (const Device d : {kCpu, kMeta}) {
    const Tensor x = Tensor::ones({2, 0, 3}, DType::bf16, d);
    for (const Tensor& like : {zeros_like(x), empty_like(x)}) {
      CHECK(like.shape() == x.shape());
      CHECK(like.dtype() == DType::bf16);
      CHECK(like.device() == d);
    }
  }
  CHECK(test::mismatch(zeros_like(Tensor::ones({3})), Tensor::of({0, 0, 0}, {3}), 0) == "");
}

TEST_CASE("tensor: factories of every dtype") {
  for (const DType dtype : kAll) {
    CAPTURE(name(dtype));
    CHECK(values(Tensor::zeros({2, 2}, dtype)) == std::vector<double>(4, 0));
    CHECK(values(Tensor::ones({3}, dtype)) == std::vector<double>(3, 1));
    CHECK(values(Tensor::full({2}, 1, dtype)) == std::vector<double>(2, 1));
    CHECK(values(Tensor::eye(2, dtype)) == std::vector<double>{1, 0, 0, 1});
    CHECK(values(Tensor::of({1, 0}, {2}, dtype)) == std::vector<double>{1, 0});
    CHECK(Tensor::empty({5, 0}, dtype).dtype() == dtype);
  }
  CHECK(Tensor::ones({2}, DType::f32, kMeta).is_meta());
}

TEST_CASE("tensor: arange stops before its end") {
  CHECK(values(Tensor::arange(0, 4)) == std::vector<double>{0, 1, 2, 3});
  CHECK(values(Tensor::arange(1, 2, 0.25, DType::f64)) == std::vector<double>{1, 1.25, 1.5, 1.75});
  CHECK(values(Tensor::arange(5, 0, -2, DType::i32)) == std::vector<double>{5, 3, 1});
  CHECK(Tensor::arange(3, 3).numel() == 0);
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

TEST_CASE("tensor: from copies, wrap does not") {
  std::array<float, 4> data{1, 2, 3, 4};
  const Tensor copied = Tensor::from<float>(data, {2, 2});
  const Tensor wrapped = Tensor::wrap(data.data(), {4}, DType::f32);
  data[0] = 9;
  CHECK(values(copied) == std::vector<double>{1, 2, 3, 4});
  CHECK(values(wrapped) == std::vector<double>{9, 2, 3, 4});
}

TEST_CASE("tensor: wrap calls the deleter once with the last view") {
  std::array<std::int32_t, 2> data{5, 6};
  int calls = 0;
  {
    Tensor view;
    {
      const Tensor t = Tensor::wrap(
          data.data(), {2}, DType::i32, [](void* n) { ++*static_cast<int*>(n); }, &calls);
      view = t.slice(0, 1);
    }
    CHECK(calls == 0);
    CHECK(view.item() == 6);
  }
  CHECK(calls == 1);
}

TEST_CASE("tensor: item converts every dtype, item_int keeps all 64 bits") {
  for (const DType dtype : kAll) CHECK(Tensor::ones({1, 1}, dtype).item() == 1);
  CHECK(Tensor::full({}, 2.5).item<float>() == 2.5f);
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  CHECK(Tensor::from<std::int64_t>(std::array{large}, {1}).item_int() == large);
  CHECK(Tensor::from<std::int64_t>(std::array{large}, {1}).item<std::int64_t>() == large);
  CHECK(Tensor::full({}, 0.5).item<bool>());
  CHECK(Tensor::full({}, -7.9).item_int() == -7);
}

TEST_CASE("tensor: copy_to follows strides") {
  CHECK(values(Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3}).t()) ==
        std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(values(strided(Tensor::of({1, 2}, {2}, DType::u8))) == std::vector<double>{1, 2});
}

TEST_CASE("tensor: is_contiguous") {
  const Tensor x = Tensor::zeros({2, 3, 4});
  CHECK(x.is_contiguous());
  CHECK_FALSE(x.transpose(0, 1).is_contiguous());
  CHECK_FALSE(x.slice(2, 0, 2).is_contiguous());
  CHECK(x.narrow(0, 1, 1).is_contiguous());
  CHECK(x.select(0, 1).is_contiguous());
  CHECK_FALSE(x.select(2, 1).is_contiguous());
  CHECK_FALSE(Tensor::zeros({1, 3}).expand({2, 3}).is_contiguous());
  // The strides of axes of length 1 do not matter, nor do any in an empty tensor.
  CHECK(Tensor::zeros({3, 1}).t().is_contiguous());
  CHECK(Tensor::zeros({4, 3}).alias({1, 3}, {999, 1}, 0).is_contiguous());
  CHECK(Tensor::zeros({0, 3}).t().is_contiguous());
  CHECK(Tensor::zeros({2, 0, 3}).permute({2, 0, 1}).is_contiguous());
  CHECK(Tensor::zeros({}).is_contiguous());
}

TEST_CASE("tensor: alias and detach share storage and version") {
  Tensor x = Tensor::arange(0, 6);
  x.set_requires_grad();
  const Tensor middle = x.alias({2, 2}, {2, 1}, 1), again = middle.alias({2}, {2}, 1);
  CHECK(values(middle) == std::vector<double>{1, 2, 3, 4});
  CHECK(values(again) == std::vector<double>{2, 4});
  CHECK(again.offset() == 2);
  CHECK_FALSE(middle.requires_grad());
  CHECK_FALSE(x.detach().requires_grad());
  const std::uint32_t before = x.version();
  middle.fill_(8);
  CHECK(x.version() == before + 1);
  CHECK(values(x) == std::vector<double>{0, 8, 8, 8, 8, 5});
}

TEST_CASE("tensor: handles compare by identity and a null handle is false") {
  const Tensor a = Tensor::ones({2}), b = a;
  CHECK(a.same(b));
  CHECK_FALSE(a.same(a.detach()));
  CHECK_FALSE(Tensor().defined());
  Tensor c = std::move(Tensor(a));
  c = c;
  CHECK(c.same(a));
  CHECK(Tensor::zeros({2, 3}).dim(-1) == 3);
}

TEST_CASE("tensor: a recycled header has no old state") {
  {
    Tensor t = Tensor::ones({2}).set_requires_grad(), g = Tensor::ones({2});
    t.set_grad(g);
  }
  for (int i = 0; i < 3; ++i) {
    const Tensor t = Tensor::empty({3});
    CHECK_FALSE(t.requires_grad());
    CHECK_FALSE(t.grad().defined());
    CHECK(t.offset() == 0);
  }
}

TEST_CASE("tensor: in-place ops change every view and the version") {
  const Tensor x = Tensor::arange(0, 4), view = x.slice(0, 1, 3);
  const std::uint32_t before = x.version();
  view.fill_(7);
  view.mul_(2);
  view.add_(Tensor::ones({2}), 0.5);
  CHECK(values(x) == std::vector<double>{0, 14.5, 14.5, 3});
  view.copy_(Tensor::of({1, 2}, {2}, DType::i64));
  CHECK(values(x) == std::vector<double>{0, 1, 2, 3});
  CHECK(x.version() == before + 4);
  x.zero_();
  CHECK(values(x) == std::vector<double>(4, 0));
}

TEST_CASE("tensor: in-place ops read the old values of an overlapping source") {
  const auto square = [] { return Tensor::arange(0, 4, 1, DType::f64).view({2, 2}); };
  Tensor a = square();
  CHECK(values(a.add_(a.t())) == std::vector<double>{0, 3, 3, 6});
  a = square();
  CHECK(values(a.copy_(a.t())) == std::vector<double>{0, 2, 1, 3});
  a = square();
  CHECK(values(a.add_(a, 2)) == std::vector<double>{0, 3, 6, 9});
  for (const DType t : kAll) {
    CAPTURE(name(t));
    // A row shifted by one position in either direction, in each layout.
    const std::vector<double> ones{1, 0, 0, 1, 1, 0, 1, 0};
    for (const bool up : {false, true}) {
      const Tensor row = Tensor::of({1, 0, 0, 1, 1, 0, 1, 0}, {8}, DType::f64).to(t);
      row.narrow(0, up, 7).copy_(row.narrow(0, !up, 7));
      std::vector<double> want = ones;
      for (std::size_t i = 0; i < 7; ++i) want[i + up] = ones[i + !up];
      CHECK(values(row) == want);
    }
  }
  // Every second element into the others: the ranges overlap, the elements do not.
  const Tensor row = Tensor::arange(0, 6);
  row.slice(0, 0, 6, 2).add_(row.slice(0, 1, 6, 2));
  CHECK(values(row) == std::vector<double>{1, 1, 5, 3, 9, 5});
  // The same memory, wrapped twice, and viewed as another type.
  std::array<float, 4> data{1, 2, 3, 4};
  const Tensor low = Tensor::wrap(data.data(), {3}, DType::f32);
  const Tensor high = Tensor::wrap(data.data() + 1, {3}, DType::f32);
  high.copy_(low);
  CHECK(values(high) == std::vector<double>{1, 2, 3});
  const Tensor bits = Tensor::wrap(data.data(), {3}, DType::i32);
  bits.copy_(low);
  CHECK(values(bits) == std::vector<double>{1, 1, 2});
  // Memory without overlap is not copied.
  const Tensor whole = Tensor::ones({1 << 20});
  const std::int64_t before = memory_stats(kCpu).hits + memory_stats(kCpu).misses;
  whole.narrow(0, 0, 1 << 19).copy_(whole.narrow(0, 1 << 19, 1 << 19));
  whole.add_(whole);
  CHECK(memory_stats(kCpu).hits + memory_stats(kCpu).misses == before);
  const Tensor meta = Tensor::ones({4}, DType::f32, kMeta), other = Tensor::ones({4}).to(kMeta);
  CHECK(meta.copy_(other).is_meta());
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

TEST_CASE("tensor: release_storage empties every handle and view") {
  const Tensor a = Tensor::ones({4, 2}), b = a, view = a.narrow(0, 1, 2);
  const std::int64_t live = memory_stats().live_bytes;
  CHECK(error_of([&] { release_storage(a); }) ==
        "release_storage: the storage must have no other owner than the 1 declared, got 3");
  CHECK(values(a) == std::vector<double>(8, 1));  // a refused release changes nothing
  release_storage(a, 3);
  CHECK(memory_stats().live_bytes == live - size_class_bytes(32));
  CHECK(error_of([&] { b.data<float>(); }) ==
        "data: the storage of this tensor [4, 2] was released");
  CHECK(error_of([&] { view.data<float>(); }) ==
        "data: the storage of this tensor [2, 2] was released");
  CHECK(error_of([&] { b.item(); }) == "item: needs exactly 1 element, got shape [4, 2]");
  CHECK(b.shape() == Shape{4, 2});
  CHECK(b.dtype() == DType::f32);
  CHECK(b.device() == kCpu);
  release_storage(a, 3);
  CHECK(memory_stats().live_bytes == live - size_class_bytes(32));
}

TEST_CASE("tensor: release_storage runs the deleter of wrapped memory once") {
  std::array<float, 2> data{};
  int calls = 0;
  {
    const Tensor t = Tensor::wrap(
        data.data(), {2}, DType::f32, [](void* n) { ++*static_cast<int*>(n); }, &calls);
    release_storage(t);
    CHECK(calls == 1);
    release_storage(t);
  }
  CHECK(calls == 1);
}

TEST_CASE("tensor: all empty tensors of a device share one storage") {
  const Tensor a = Tensor::empty({0, 3}), b = empty_operand(DType::i64);
  CHECK(a.storage() == b.storage());
  CHECK(a.storage() != empty_operand(DType::f32, kMeta).storage());
  CHECK(b.dtype() == DType::i64);
  release_storage(a, 1000);
  release_storage(a);  // the other empty tensors do not own its data
  CHECK(values(a).empty());
  CHECK_FALSE(Tensor::empty({0}).storage()->released);
}

TEST_CASE("tensor: a list grows past its inline capacity and can be moved") {
  TensorList list;
  for (int i = 0; i < 40; ++i) list.push_back(Tensor::full({1}, i));
  CHECK(list.size() == 40);
  for (int i = 0; i < 40; ++i) CHECK(list[i].item() == i);
  const TensorList copy = list;
  CHECK(copy[39].same(list[39]));
  TensorList moved = std::move(list);
  CHECK(moved.size() == 40);
  CHECK(moved[0].item() == 0);
  TensorList few{Tensor::full({1}, 5), Tensor()};
  CHECK(few.size() == 2);
  CHECK_FALSE(few[1].defined());
  few = moved;
  CHECK(few.size() == 40);
  moved = TensorList{};
  CHECK(moved.empty());
  CHECK(few[20].item() == 20);
  double sum = 0;
  for (const Tensor& t : few) sum += t.item();
  CHECK(sum == 780);
}

TEST_CASE("tensor: a list releases its elements") {
  const Tensor t = Tensor::ones({1});
  const int before = t.impl()->refs.load();
  {
    TensorList list;
    for (int i = 0; i < 20; ++i) list.push_back(t);
    CHECK(t.impl()->refs.load() == before + 20);
    TensorList moved = std::move(list);
    moved = TensorList{t};
    CHECK(t.impl()->refs.load() == before + 1);
  }
  CHECK(t.impl()->refs.load() == before);
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

}  // namespace weft::tensor_test
