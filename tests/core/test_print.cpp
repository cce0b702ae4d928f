#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "weft/tests/support.h"

namespace weft::print_test {

TEST_CASE("print: numbers, dtype and device") {
  CHECK(to_string(Tensor::of({1, 2, 3, 4}, {2, 2})) ==
        "tensor([[1, 2],\n"
        "        [3, 4]], f32, cpu)");
  CHECK(to_string(Tensor::of({0.5, -1e-7, 123456, NAN, -INFINITY}, {5}, DType::f64)) ==
        "tensor([0.5, -1e-07, 1.2346e+05, nan, -inf], f64, cpu)");
  CHECK(to_string(Tensor::of({3.14159265}, {1}, DType::bf16)) == "tensor([3.1406], bf16, cpu)");
  CHECK(to_string(Tensor::of({448}, {1}, DType::e4m3)) == "tensor([448], e4m3, cpu)");
  CHECK(to_string(Tensor::of({1, 0}, {2}, DType::boolean)) == "tensor([true, false], bool, cpu)");
  CHECK(to_string(Tensor::of({123456789}, {1}, DType::i64)) == "tensor([123456789], i64, cpu)");
  CHECK(to_string(Tensor::of({255}, {1}, DType::u8)) == "tensor([255], u8, cpu)");
}

TEST_CASE("print: scalars, empty axes, null and meta tensors") {
  CHECK(to_string(Tensor::full({}, 2.5)) == "tensor(2.5, f32, cpu)");
  CHECK(to_string(Tensor::empty({0})) == "tensor([], f32, cpu)");
  CHECK(to_string(Tensor::empty({2, 0})) == "tensor([[],\n        []], f32, cpu)");
  CHECK(to_string(Tensor()) == "tensor(null)");
  CHECK(to_string(Tensor::empty({2, 4}, DType::bf16, kMeta)) == "tensor([2, 4], bf16, meta)");
}

TEST_CASE("print: a released tensor shows its shape") {
  const Tensor t = Tensor::ones({2, 3});
  release_storage(t);
  CHECK(to_string(t) == "tensor([2, 3], f32, cpu)");
}

TEST_CASE("print: long axes omit their middle from nine elements on") {
  CHECK(to_string(Tensor::arange(0, 8, 1, DType::i32)) ==
        "tensor([0, 1, 2, 3, 4, 5, 6, 7], i32, cpu)");
  CHECK(to_string(Tensor::arange(0, 9, 1, DType::i32)) ==
        "tensor([0, 1, 2, ..., 6, 7, 8], i32, cpu)");
  CHECK(to_string(Tensor::arange(0, 10, 1, DType::i32).view({10, 1})) ==
        "tensor([[0],\n"
        "        [1],\n"
        "        [2],\n"
        "        ...,\n"
        "        [7],\n"
        "        [8],\n"
        "        [9]], i32, cpu)");
}

TEST_CASE("print: three axes and strided views") {
  const Tensor x = Tensor::arange(0, 8, 1, DType::i64).view({2, 2, 2});
  CHECK(to_string(x) ==
        "tensor([[[0, 1],\n"
        "         [2, 3]],\n"
        "        [[4, 5],\n"
        "         [6, 7]]], i64, cpu)");
  CHECK(to_string(x.transpose(0, 2).select(0, 1)) ==
        "tensor([[1, 5],\n"
        "        [3, 7]], i64, cpu)");
  std::ostringstream out;
  out << x.select(0, 1).select(0, 0);
  CHECK(out.str() == "tensor([4, 5], i64, cpu)");
}

TEST_CASE("print: shapes, dtypes and devices, in a stream") {
  const Tensor x = Tensor::ones({2, 4}, DType::bf16);
  std::ostringstream out;
  out << x.shape() << " " << x.dtype() << " " << x.device() << " " << kMeta;
  CHECK(out.str() == "[2, 4] bf16 cpu meta");
}

}  // namespace weft::print_test
