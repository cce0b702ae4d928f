#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/core/allocator.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/overlap.h"
#include "weft/tests/poisoned_memory.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::overlap_test {
namespace {

using test::distributed_test;
using test::error_of;

constexpr Overlap kForms[] = {Overlap::none, Overlap::ring, Overlap::pipeline};

Tensor of_rank(const Shape& shape, int rank, std::uint64_t seed, DType dtype) {
  return test::random(shape, seed + 100 * static_cast<std::uint64_t>(rank), dtype);
}

struct Outcome {
  Tensor y, dx, dw1, db, dw2;
};

// A column-parallel layer, an activation and a row-parallel layer, twice.
template <class Up, class Down>
Outcome two_layers(const Tensor& x_in, const TensorList& weights, const Up& up, const Down& down) {
  Tensor x = x_in.detach(), w1 = weights[0].detach(), b = weights[1].detach(),
         w2 = weights[2].detach();
  for (Tensor* t : {&x, &w1, &b, &w2}) t->set_requires_grad();
  Tape tape;
  const Tensor h = down(gelu(up(x, w1, b)), w2);
  const Tensor y = down(gelu(up(h, w1, b)), w2);
  const TensorList g = tape.gradients(y, {x, w1, b, w2}, test::random(y.shape(), 9, y.dtype()));
  return {y.detach(), g[0], g[1], g[2], g[3]};
}

}  // namespace

TEST_CASE("overlap: two layers equal plain collectives in poisoned memory") {
  const test::PoisonedMemory memory;
  distributed_test({1, 2, 4}, [](World& w) {
    ProcessGroup& g = w.all();
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const Overlap form : kForms)
        for (const std::int64_t n : {3, 1, 0}) {
          const int r = w.rank();
          const Tensor x = of_rank({1, n, 5}, r, 1, dtype);
          const TensorList weights{of_rank({7, 5}, r, 2, dtype), of_rank({7}, r, 3, dtype),
                                   of_rank({5, 7}, r, 4, dtype)};
          const Outcome want = two_layers(
              x, weights,
              [&](const Tensor& a, const Tensor& weight, const Tensor& bias) {
                return linear(gather_rows(a, g), weight, bias);
              },
              [&](const Tensor& a, const Tensor& weight) {
                return reduce_scatter_rows(linear(a, weight), g);
              });
          const Outcome got = two_layers(
              x, weights,
              [&](const Tensor& a, const Tensor& weight, const Tensor& bias) {
                return gather_linear(a, weight, bias, g);
              },
              [&](const Tensor& a, const Tensor& weight) {
                return linear_scatter(a, weight, g, form);
              });
          CAPTURE(name(dtype));
          CAPTURE(static_cast<int>(form));
          CAPTURE(n);
          // The bits of a product's rows do not depend on the number of rows, and ranks are added
          // in the same order.
          CHECK(test::different_bits(got.y, want.y) == "");
          CHECK(test::different_bits(got.dx, want.dx) == "");
          CHECK(test::different_bits(got.dw1, want.dw1) == "");
          CHECK(test::different_bits(got.db, want.db) == "");
          CHECK(test::different_bits(got.dw2, want.dw2) == "");
        }
  });
}

TEST_CASE("overlap: a sum of input gradients that a product hides has the same bits") {
  const test::PoisonedMemory memory;
  distributed_test({1, 2, 4}, [](World& w) {
    ProcessGroup& g = w.all();
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t n : {3, 1, 0}) {
        const int r = w.rank();
        const Tensor x = test::random({2, n, 5}, 1, dtype);  // equal on all ranks
        const TensorList weights{of_rank({7, 5}, r, 2, dtype), of_rank({7}, r, 3, dtype),
                                 of_rank({5, 7}, r, 4, dtype)};
        const auto down = [&](const Tensor& a, const Tensor& weight) {
          return reduce_from_group(linear(a, weight), g);
        };
        const Outcome want = two_layers(
            x, weights,
            [&](const Tensor& a, const Tensor& weight, const Tensor& bias) {
              return linear(copy_to_group(a, g), weight, bias);
            },
            down);
        const Outcome got = two_layers(
            x, weights,
            [&](const Tensor& a, const Tensor& weight, const Tensor& bias) {
              return copy_linear(a, weight, bias, g);
            },
            down);
        CAPTURE(name(dtype));
        CAPTURE(n);
        CHECK(test::different_bits(got.y, want.y) == "");
        CHECK(test::different_bits(got.dx, want.dx) == "");
        CHECK(test::different_bits(got.dw1, want.dw1) == "");
        CHECK(test::different_bits(got.db, want.db) == "");
        CHECK(test::different_bits(got.dw2, want.dw2) == "");
      }
    CHECK(copy_linear(Tensor::empty({2, 3, 4}, DType::bf16, kMeta),
                      Tensor::empty({5, 4}, DType::bf16, kMeta), {}, g)
              .shape() == Shape{2, 3, 5});
    CHECK(error_of([&] {
            copy_linear(Tensor::zeros({3, 4}), Tensor::zeros({5, 3}), {}, g);
          }) == "copy_linear: weight must have shape [N, 4] (last axis of x [3, 4]), got [5, 3]");
  });
}

TEST_CASE("overlap: gradients match finite differences for views of weights too") {
  distributed_test({1, 2, 4}, [](World& w) {
    ProcessGroup& g = w.all();
    const Tensor w1 = of_rank({3, 5}, w.rank(), 2, DType::f64),
                 b = of_rank({3}, w.rank(), 3, DType::f64);
    const Tensor w2 = test::strided(of_rank({5, 3}, w.rank(), 4, DType::f64));
    for (const Overlap form : kForms) {
      const auto f = [&](const TensorList& in) {
        const Tensor own = scatter_rows(in[0], g);
        const Tensor h = gather_linear(mul(own, own), w1, b, g);
        return gather_rows_replicated(linear_scatter(mul(h, h), w2, g, form), g);
      };
      CHECK(gradcheck(f, {test::random({2, 4, 5}, 1)}) == "");
    }
  });
}

TEST_CASE("overlap: meta device shapes and errors") {
  distributed_test({2}, [](World& w) {
    ProcessGroup& g = w.all();
    const auto meta = [](const Shape& s) { return Tensor::empty(s, DType::bf16, kMeta); };
    CHECK(gather_linear(meta({1, 3, 4}), meta({5, 4}), {}, g).shape() == Shape{1, 6, 5});
    for (const Overlap form : kForms)
      CHECK(linear_scatter(meta({2, 3, 4}), meta({5, 4}), g, form).shape() == Shape{1, 3, 5});
    const Tensor x = Tensor::zeros({3, 4}), weight = Tensor::zeros({5, 4});
    CHECK(error_of([&] { linear_scatter(x, weight, g); }) ==
          "linear_scatter: the 3 rows of x [3, 4] do not divide among 2 ranks");
    CHECK(error_of([&] {
            gather_linear(x, Tensor::zeros({5, 3}), {}, g);
          }) == "gather_linear: weight must have shape [N, 4] (last axis of x [3, 4]), got [5, 3]");
    CHECK(error_of([&] { gather_linear(Tensor::zeros({4}), weight, {}, g); }) ==
          "gather_linear: x must have at least 2 axes, got shape [4]");
    CHECK(error_of([&] { gather_linear(x, weight.to(DType::f64), {}, g); }) ==
          "gather_linear: weight must have the dtype of x, f32, got f64");
    CHECK(error_of([&] { gather_linear(x, weight, Tensor::zeros({4}), g); }) ==
          "gather_linear: bias must be f32 with shape [5] (rows of weight [5, 4]), got f32 [4]");
    CHECK(error_of([&] { linear_scatter(x.to(DType::i32), weight, g); }) ==
          "linear_scatter: x must have dtype f32, f64, bf16 or f16, got i32");
  });
}

}  // namespace weft::distributed::overlap_test
