#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/nn/norm.h"
#include "weft/nn/shard.h"
#include "weft/tests/support.h"

namespace weft::norm_module_test {

// 1 + 0.003 is 1 in bf16; what f64 gives is rounded once.
TEST_CASE("norm: zero-centred weights count in 16 bits, alone and in rows cut over ranks") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(std::string(name(t)));
    const nn::DeviceScope scope(kCpu, t);
    nn::Norm norm(nn::Norm::Kind::rms_centered, 8, 1e-6);
    CHECK(test::values(norm.weight) == std::vector<double>(8, 0));
    norm.weight.fill_(0.003);
    const Tensor x = test::random({6, 8}, 1, t), wide = x.to(DType::f64);
    const Tensor gain = add(norm.weight.detach().to(DType::f64), 1);
    const auto scaled = [&](const Tensor& v) {
      return mul(mul(v, rsqrt(add(mean(square(v), -1, true), 1e-6))), gain);
    };
    const auto check_same = [&](const Tensor& got, const Tensor& want) {
      if (t == DType::f32)
        CHECK(test::mismatch(got, want, 1e-6) == "");
      else
        CHECK(test::different_bits(got, want.to(t)) == "");
    };
    check_same(norm(x), scaled(wide));
    const auto [y, sum] = norm(x, x);
    check_same(y, scaled(sum.to(DType::f64)));

    // The first half of each row; the other rank's sum of squares arrives through sum_row.
    nn::Norm half(nn::Norm::Kind::rms_centered, 4, 1e-6);
    half.weight.fill_(0.003);
    const Tensor other = x.narrow(1, 4, 4).to(DType::f32);
    nn::Shard shard;
    shard.row_ranks = 2;
    shard.sum_row = [&](const Tensor& part) {
      return add(part, weft::sum(square(other), -1, true));
    };
    half.shard = std::make_shared<const nn::Shard>(shard);
    Tape tape;
    const Tensor part = half(x.narrow(1, 0, 4));
    check_same(part, scaled(wide).narrow(1, 0, 4));
    // The gradient of the weight is that of the gain.
    const Tensor dweight = tape.gradients(part, {half.weight}, Tensor::ones({6, 4}, t))[0];
    CHECK(test::mismatch(dweight, div(scaled(wide), gain).narrow(1, 0, 4).sum({0}),
                         test::tolerance(t)) == "");
  }
}

}  // namespace weft::norm_module_test
