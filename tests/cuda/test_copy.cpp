#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::copy_test {
namespace {

using test::different_bits;
using test::kEveryDType;
using test::kGpu;
using test::random;

const Shape kCopyShapes[] = {{}, {1}, {7}, {3, 5}, {2, 3, 37}, {0, 4}, {4, 0}, {2, 1031}};

}  // namespace

TEST_CASE("copy: to a GPU and back for every dtype and shape") {
  for (const Shape& s : kCopyShapes)
    for (const DType t : kEveryDType) {
      CAPTURE(to_string(s));
      CAPTURE(std::string(name(t)));
      const Tensor x = random(s, 1).to(t);
      CHECK(different_bits(x.to(kGpu).to(kCpu), x) == "");
      CHECK(different_bits(test::strided(x).to(kGpu).to(kCpu), x) == "");
    }
}

TEST_CASE("copy: conversions round once as on the CPU") {
  const Tensor x =
      cat({test::random_in({37}, -300, 300), Tensor::of({0, -0.0, 1e-9, 3e5}, {4}, DType::f64)});
  const Tensor far = cat({x, Tensor::of({3e9, -1e30, std::nan("")}, {3}, DType::f64)});
  for (const DType from : kEveryDType)
    for (const DType to : kEveryDType) {
      CAPTURE(std::string(name(from)));
      CAPTURE(std::string(name(to)));
      const Tensor source = (is_floating(to) ? x : far).to(from);
      test::for_each_order(
          [&] { CHECK(different_bits(source.to(kGpu).to(to).to(kCpu), source.to(to)) == ""); });
    }
}

TEST_CASE_TEMPLATE("copy: a NaN becomes the same 16 bits as on the CPU", T, bf16, f16) {
  constexpr DType kHalf = dtype_of<T>();
  const std::vector<std::uint32_t> nans = {0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff,
                                           0x7fc00000, 0xffc00000, 0x7f81ffff, 0xffabcdef};
  const Tensor x = Tensor::empty({2, 8}, DType::f32);
  std::memcpy(x.raw(), nans.data(), 32);
  std::memcpy(x.data<float>() + 8, nans.data(), 32);
  const Tensor want = x.to(kHalf), g = x.to(kGpu);
  const auto same = [&](const Tensor& y) {
    const Tensor host = y.to(kCpu);
    return std::memcmp(host.raw(), want.raw(), 32) == 0;
  };
  CHECK(same(g.to(kHalf)));
  const Tensor strided = Tensor::empty({8, 2}, kHalf, kGpu).transpose(0, 1);
  strided.copy_(g.to(kHalf));
  CHECK(same(strided.contiguous()));
  strided.copy_(g);
  CHECK(same(strided.contiguous()));
}

TEST_CASE("copy: strided sources and targets") {
  const Tensor x = random({4, 6, 10}, 1, DType::f32);
  const Tensor g = x.to(kGpu);
  test::for_each_order([&] {
    CHECK(different_bits(g.transpose(0, 2).contiguous().to(kCpu), x.transpose(0, 2)) == "");
    CHECK(different_bits(g.slice(1, 1, 6, 2).clone().to(kCpu), x.slice(1, 1, 6, 2)) == "");
    CHECK(different_bits(g.narrow(0, 1, 2).to(DType::f64).to(kCpu),
                         x.narrow(0, 1, 2).to(DType::f64)) == "");
    const Tensor target = Tensor::zeros({10, 6, 4}, DType::f32, kGpu);
    target.transpose(0, 2).copy_(g);
    CHECK(different_bits(target.to(kCpu), x.transpose(0, 2)) == "");
  });
}

TEST_CASE("copy: an overlapping source is read with its old values") {
  const Tensor x = random({6, 6}, 1, DType::f32);
  test::for_each_order([&] {
    Tensor g = x.to(kGpu);
    g.copy_(g.t());
    CHECK(different_bits(g.to(kCpu), x.t()) == "");
    g = x.to(kGpu);
    g.add_(g.t());
    CHECK(different_bits(g.to(kCpu), x + x.t()) == "");
    g = x.to(kGpu);
    g.narrow(0, 1, 5).copy_(g.narrow(0, 0, 5));
    CHECK(different_bits(g.narrow(0, 1, 5).to(kCpu), x.narrow(0, 0, 5)) == "");
  });
}

TEST_CASE("fill: values of every dtype and views") {
  for (const DType t : kEveryDType) {
    CAPTURE(std::string(name(t)));
    const double v = is_integral(t) ? 3 : 1.75;
    CHECK(different_bits(Tensor::full({3, 7}, v, t, kGpu).to(kCpu), Tensor::full({3, 7}, v, t)) ==
          "");
  }
  const Tensor x = Tensor::zeros({4, 5}, DType::f32, kGpu), y = Tensor::zeros({4, 5});
  x.narrow(1, 1, 2).fill_(3);
  y.narrow(1, 1, 2).fill_(3);
  CHECK(different_bits(x.to(kCpu), y) == "");
}

}  // namespace weft::copy_test
