#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "weft/core/cpu/transpose.h"
#include "weft/core/tensor.h"

namespace weft::transpose_test {
namespace {

std::span<std::byte> bytes_of(const Tensor& base) {
  return {static_cast<std::byte*>(base.raw()),
          static_cast<std::size_t>(base.numel()) * size_of(base.dtype())};
}

// Bytes that do not repeat soon: any element may be a NaN, which must keep its payload.
void scramble(const Tensor& base, unsigned seed) {
  for (std::byte& b : bytes_of(base))
    b = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
}

// Element by element, in the order of the shape.
void copy_elements(const Tensor& source, const Tensor& out) {
  const std::size_t size = size_of(out.dtype());
  for (std::int64_t n = 0; n < out.numel(); ++n) {
    std::int64_t rest = n, from = 0, to = 0;
    for (int i = out.ndim() - 1; i >= 0; --i) {
      from += rest % out.dim(i) * source.strides()[i];
      to += rest % out.dim(i) * out.strides()[i];
      rest /= out.dim(i);
    }
    std::memcpy(static_cast<std::byte*>(out.raw()) + static_cast<std::size_t>(to) * size,
                static_cast<const std::byte*>(source.raw()) + static_cast<std::size_t>(from) * size,
                size);
  }
}

constexpr DType kSizes[] = {DType::u8, DType::bf16, DType::f32, DType::f64};

// Copies a view of one tensor to a view of another: whether copy_transposed() did it. Memory of the
// other outside the view stays.
template <class From, class To>
bool copies(const Shape& source_shape, From from, const Shape& out_shape, To to, DType dtype) {
  const Tensor source = Tensor::empty(source_shape, dtype), out = Tensor::empty(out_shape, dtype);
  const Tensor expected = Tensor::empty(out_shape, dtype);
  scramble(source, 1);
  for (const Tensor& t : {out, expected}) scramble(t, 2);
  const bool did = cpu::copy_transposed(from(source), to(out));
  if (did) copy_elements(from(source), to(expected));
  CHECK(std::ranges::equal(bytes_of(out), bytes_of(expected)));
  return did;
}

Tensor same(const Tensor& x) { return x; }

}  // namespace

TEST_CASE("copy_transposed: every element size, sides that are no multiple of a vector or line") {
  const auto turned = [](const Tensor& x) { return x.transpose(0, 1); };
  const auto check = [&](std::int64_t m, std::int64_t n, DType dtype) {
    CAPTURE(name(dtype));
    CAPTURE(m);
    CAPTURE(n);
    CHECK(copies({n, m}, turned, {m, n}, same, dtype));
    CHECK(copies({n, m}, same, {m, n}, turned, dtype));
  };
  for (const DType dtype : kSizes)
    for (const std::int64_t m : {16, 17, 63, 64, 65, 130})
      for (const std::int64_t n : {16, 31, 64}) check(m, n, dtype);
  check(17, 4099, DType::bf16);  // longer than a piece
  check(4099, 17, DType::f32);
}

TEST_CASE("copy_transposed: more axes, slices of wider rows, a source that repeats a row") {
  for (const DType dtype : kSizes) {
    CAPTURE(name(dtype));
    const Shape shape{3, 18, 5, 33};
    CHECK(copies(
        shape,
        [](const Tensor& x) {
          return x.permute({3, 0, 2, 1});
        },
        {33, 3, 5, 18}, same, dtype));
    CHECK(copies(
        shape,
        [](const Tensor& x) {
          return x.permute({0, 3, 1, 2});
        },
        {3, 33, 18, 5}, same, dtype));
    CHECK(copies(
        {40, 50}, [](const Tensor& x) { return x.slice(0, 3, 37).slice(1, 7, 41).transpose(0, 1); },
        {36, 90}, [](const Tensor& x) { return x.slice(0, 1, 35).slice(1, 20, 54); }, dtype));
    CHECK(copies(
        {1, 20},
        [](const Tensor& x) {
          return x.expand({30, 20}).transpose(0, 1);
        },
        {20, 30}, same, dtype));
    CHECK(copies(
        {64, 40}, [](const Tensor& x) { return x.slice(0, 0, 64, 2).transpose(0, 1); }, {40, 32},
        same, dtype));
  }
}

TEST_CASE("copy_transposed: refuses other layouts, short axes and tensors without elements") {
  const auto turned = [](const Tensor& x) { return x.transpose(0, 1); };
  CHECK_FALSE(copies({40, 50}, same, {40, 50}, same, DType::f32));
  CHECK_FALSE(copies({20, 30, 40}, turned, {30, 20, 40}, same, DType::f32));  // rows stay rows
  CHECK_FALSE(copies({40, 50}, turned, {50, 40}, turned, DType::f32));
  CHECK_FALSE(copies({500, 3}, turned, {3, 500}, same, DType::f32));
  CHECK_FALSE(copies({3, 500}, turned, {500, 3}, same, DType::f32));
  CHECK_FALSE(cpu::copy_transposed(Tensor::ones({40, 50}, DType::f32).transpose(0, 1),
                                   Tensor::empty({50, 40}, DType::i32)));
  CHECK_FALSE(copies({0, 40}, turned, {40, 0}, same, DType::f32));
  CHECK_FALSE(copies(
      {40, 80}, [](const Tensor& x) { return x.slice(1, 0, 80, 2).transpose(0, 1); }, {40, 40},
      same, DType::f32));  // no axis of stride 1 in the source
}

}  // namespace weft::transpose_test
