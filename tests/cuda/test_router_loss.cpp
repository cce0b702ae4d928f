#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_loss.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::router_loss_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::Op;
using test::random;

const RouterScore kScores[] = {RouterScore::softmax, RouterScore::sigmoid,
                               RouterScore::sqrt_softplus};

}  // namespace

TEST_CASE("router_loss: values and gradients of every score with sequences and padding") {
  const Tensor pad = Tensor::of({0, 1, 1, 0, 1, 1, 0, 0}, {8}, DType::boolean);
  for (const Shape& s : {Shape{8, 8}, Shape{8, 37}, Shape{8, 264}, Shape{0, 4}}) {
    CAPTURE(to_string(s));
    const Tensor x = random(s, 1);
    for (const RouterScore score : kScores)
      for (const std::int64_t sequences : {1, 4}) {
        const Tensor counts = test::random({sequences, s[1]}, 2, DType::i64);
        const Op plain = [=](const TensorList& in) {
          return TensorList{balance_loss(in[0], in[1], score, 3)};
        };
        CHECK(disagreement(plain, {x, counts}, {.all_orders = s.numel() < 100}) == "");
        const Op padded = [=](const TensorList& in) {
          return TensorList{balance_loss(in[0], in[1], score, 3, in[2])};
        };
        if (s[0] == 8)
          CHECK(disagreement(padded, {x, counts, pad}, {.all_orders = s.numel() < 100}) == "");
      }
    const Op z = [](const TensorList& in) { return TensorList{z_loss(in[0], 0.5)}; };
    CHECK(disagreement(z, {x}, {.all_orders = s.numel() < 100}) == "");
    const Op padded = [](const TensorList& in) { return TensorList{z_loss(in[0], 0.5, in[1])}; };
    if (s[0] == 8) CHECK(disagreement(padded, {x, pad}, {.all_orders = s.numel() < 100}) == "");
  }
}

TEST_CASE("router_loss: zero counts, only padding, more tokens than the summing block") {
  const Op none = [](const TensorList& in) {
    return TensorList{balance_loss(in[0], in[1], RouterScore::sigmoid, 3)};
  };
  CHECK(disagreement(none, {random({4, 6}, 1), Tensor::zeros({2, 6}, DType::i64)}) == "");
  const Op all_padded = [](const TensorList& in) {
    return TensorList{
        add(z_loss(in[0], 1, in[2]), balance_loss(in[0], in[1], RouterScore::softmax, 3, in[2]))};
  };
  CHECK(disagreement(all_padded, {random({4, 6}, 1), Tensor::ones({2, 6}, DType::i64),
                                  Tensor::ones({4}, DType::boolean)}) == "");
  const Op z = [](const TensorList& in) { return TensorList{z_loss(in[0], 1)}; };
  CHECK(disagreement(z, {random({1100, 2}, 1)}, {.gradients = false, .all_orders = false}) == "");
}

TEST_CASE("router_loss: counts equal the CPU's") {
  for (const std::int64_t sequences : {1, 2, 5}) {
    const Tensor experts = sub(random({10, 3}, 3, DType::i64), 1);  // -1 .. 8
    const Tensor want = count_experts(experts, 7, sequences);
    test::for_each_order([&] {
      CHECK(different_bits(count_experts(experts.to(kGpu), 7, sequences).to(kCpu), want) == "");
    });
  }
  // More slots than a block has, and the largest number of experts.
  const Tensor many = test::random_in({2100, 2}, 0, 1024, 4).to(DType::i64);
  CHECK(different_bits(count_experts(many.to(kGpu), 1024).to(kCpu), count_experts(many, 1024)) ==
        "");
  // More sequences than a grid has blocks along y and z.
  const Tensor each = test::random_in({65537, 1}, 0, 2, 4).to(DType::i64);
  CHECK(different_bits(count_experts(each.to(kGpu), 2, 65537).to(kCpu),
                       count_experts(each, 2, 65537)) == "");
  const Tensor x = random({10, 12}, 5, DType::f32);
  const Tensor pad = Tensor::of({0, 1, 1, 0, 1, 1, 0, 0, 0, 1}, {10}, DType::boolean);
  test::for_each_order([&] {
    CHECK(different_bits(count_top_experts(x.to(kGpu), 3, 2, pad.to(kGpu)).to(kCpu),
                         count_top_experts(x, 3, 2, pad)) == "");
  });
}

TEST_CASE("router_loss: packed sequences of any length are counted and weighted") {
  const std::int32_t bounds[] = {0, 0, 3, 4, 4, 9, 10, 10};
  const Tensor cu = Tensor::from<std::int32_t>(bounds, {8});
  const Tensor pad = Tensor::of({0, 1, 1, 0, 1, 1, 0, 0, 0, 1}, {10}, DType::boolean);
  const Tensor counts = random({7, 37}, 2, DType::i64);
  for (const RouterScore score : kScores) {
    const Op plain = [=](const TensorList& in) {
      return TensorList{balance_loss(in[0], in[1], score, 3, {}, {in[2], true})};
    };
    CHECK(disagreement(plain, {random({10, 37}, 1), counts, cu}) == "");
    const Op padded = [=](const TensorList& in) {
      return TensorList{balance_loss(in[0], in[1], score, 3, in[3], {in[2]})};
    };
    CHECK(disagreement(padded, {random({10, 37}, 1), counts, cu, pad}) == "");
  }
  const Tensor experts = sub(random({10, 3}, 3, DType::i64), 1);  // -1 .. 8
  const Tensor want = count_experts(experts, 7, 1, {cu});
  test::for_each_order([&] {
    CHECK(different_bits(count_experts(experts.to(kGpu), 7, 1, {cu.to(kGpu)}).to(kCpu), want) ==
          "");
  });
  // More slots than a block has, and zero tokens.
  const std::int32_t far[] = {0, 999, 1000, 2100};
  const PackedTokens many{Tensor::from<std::int32_t>(far, {4}).to(kGpu), true};
  const Tensor chosen = test::random_in({2100, 2}, 0, 1024, 4).to(DType::i64);
  CHECK(different_bits(count_experts(chosen.to(kGpu), 1024, 1, many).to(kCpu),
                       count_experts(chosen, 1024, 1, {many.cu_seqlens.to(kCpu)})) == "");
  const PackedTokens none{Tensor::zeros({1}, DType::i32, kGpu)};
  CHECK(count_experts(Tensor::zeros({0, 2}, DType::i64, kGpu), 3, 1, none).shape() == Shape{0, 3});
}

}  // namespace weft::router_loss_test
