// The values of tensors: factories, reading, and ops in place.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/tensor.h"
#include "weft/tests/support.h"

namespace weft::tensor_test {
namespace {

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
  const Tensor large = Tensor::arange(0x1p53, 0x1p53 + 4, 1, DType::i64);  // not all are doubles
  for (const std::int64_t i : {0, 1, 2, 3})
    CHECK(large[i].item_int() == (std::int64_t{1} << 53) + i);
  // Rounded once, as by full(): just above the middle of two bf16.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  CHECK(Tensor::arange(above, 2, 1, DType::bf16).item() == 1 + 0x1p-7);
}

TEST_CASE("tensor: from copies, wrap does not") {
  std::array<float, 4> data{1, 2, 3, 4};
  const Tensor copied = Tensor::from<float>(data, {2, 2});
  const Tensor wrapped = Tensor::wrap(data.data(), {4}, DType::f32);
  data[0] = 9;
  CHECK(values(copied) == std::vector<double>{1, 2, 3, 4});
  CHECK(values(wrapped) == std::vector<double>{9, 2, 3, 4});
}

TEST_CASE("tensor: item converts every dtype, item_int keeps all 64 bits") {
  for (const DType dtype : kAll) CHECK(Tensor::ones({1, 1}, dtype).item() == 1);
  CHECK(Tensor::full({}, 2.5).item<float>() == 2.5f);
  const std::int64_t large = (std::int64_t{1} << 60) + 1;
  CHECK(Tensor::from<std::int64_t>(std::array{large}, {1}).item_int() == large);
  CHECK(Tensor::from<std::int64_t>(std::array{large}, {1}).item<std::int64_t>() == large);
  CHECK(Tensor::full({}, 0.5).item<bool>());
  CHECK(Tensor::full({}, -7.9).item_int() == -7);
  CHECK(Tensor::full({}, -0x1p31, DType::i64).item<int>() == INT32_MIN);
  CHECK(Tensor::full({}, 255).item<std::uint8_t>() == 255);
  CHECK(Tensor::full({}, 0x1p62).item<std::uint64_t>() == std::uint64_t{1} << 62);
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

}  // namespace weft::tensor_test
