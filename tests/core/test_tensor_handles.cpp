// Handles of tensors, what they share, and when its memory is released.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/tensor.h"
#include "weft/tests/support.h"

namespace weft::tensor_handles_test {
namespace {

using test::error_of;
using test::values;

}  // namespace

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

}  // namespace weft::tensor_handles_test
