// The code of docs/own_op.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::own_op_test {
namespace {

// ln(cosh(y - target)), a squared error that grows only linearly; the form cannot overflow.
Tensor log_cosh_loss(const Tensor& y, const Tensor& target) {
  const Tensor error = (y - target).abs();
  return (error + softplus(error * -2) - std::log(2.0)).mean();
}

// 1 where x > 0, else -1. The gradient passes where |x| <= 1, as if this were clamp(x, -1, 1).
// Source: Courbariaux et al. 2016, arXiv:1602.02830, section 1.3.
Tensor binarize(const Tensor& x) {
  return custom_function(
      "binarize", {x}, [](const TensorList& in) { return gt(in[0], 0).to(in[0].dtype()) * 2 - 1; },
      [](const TensorList& in, const Tensor&, const Tensor& dy) {
        return TensorList{where(le(in[0].abs(), 1), dy, zeros_like(dy))};
      });
}

// Kernels: plain loops over contiguous memory that allocate nothing and throw nothing.
template <class T>
void hardswish_fwd(const Tensor& x, const Tensor& y) {
  const T *in = x.data<T>(), *end = in + x.numel();
  T* out = y.data<T>();
  parallel_for(end - in, 4, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto v = static_cast<Compute<T>>(in[i]);
      out[i] = static_cast<T>(v * std::clamp<Compute<T>>(v + 3, 0, 6) / 6);
    }
  });
}
template <class T>
void hardswish_bwd(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  const T *in = x.data<T>(), *slope = dy.data<T>();
  T* out = dx.data<T>();
  parallel_for(x.numel(), 4, [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto v = static_cast<Compute<T>>(in[i]), d = static_cast<Compute<T>>(slope[i]);
      out[i] = static_cast<T>(v <= -3 ? 0 : v >= 3 ? d : d * (2 * v + 3) / 6);
    }
  });
}

/// y = x min(max(x + 3, 0), 6) / 6.
///
/// Shapes   x (...)  ->  (...)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, meta
/// Saves    x
/// Throws   Error on another dtype or device; once differentiable
/// Source   Howard et al. 2019, arXiv:1905.02244, section 5.2
Tensor hardswish(const Tensor& input) {
  check(!input.device().is_gpu(), "hardswish: x must be on cpu or meta, got {}", input.device());
  if (!is_compute(input.dtype())) throw_bad_dtype("hardswish", input.dtype(), kFloatingNames);
  const Tensor x = contiguous(input);
  const Tensor y = empty_like(x);
  if (!x.is_meta()) dispatch_floating(x.dtype(), [&]<class T>() { hardswish_fwd<T>(x, y); });
  if (recording(x))
    Tape::record("hardswish", {&x}, {&y}, [saved = save(x)](Backward& b) {
      b.once_differentiable();
      const Tensor& in = saved.get();
      const Tensor dy = contiguous(b.dy()), dx = empty_like(in);
      if (!in.is_meta())
        dispatch_floating(in.dtype(), [&]<class T>() { hardswish_bwd<T>(in, dy, dx); });
      b.add(0, dx);
    });
  return y;
}

}  // namespace

TEST_CASE("own op: made of other ops") {
  const Tensor y = test::random({4, 3}), target = test::random({4, 3}, 2);
  const auto loss = [](const TensorList& in) { return log_cosh_loss(in[0], in[1]); };
  CHECK(gradcheck(loss, {y, target}) == "");
  CHECK(gradcheck(loss, {y, target}, {.second_order = true}) == "");
  const Tensor far = Tensor::full({1}, 1e30);
  CHECK(log_cosh_loss(far, zeros_like(far)).item() == doctest::Approx(1e30));
}

TEST_CASE("own op: custom_function") {
  const Tensor x = Tensor::of({-2, -0.5, 0.5, 2}, {4}).set_requires_grad();
  Tape tape;
  const Tensor y = binarize(x);
  y.backward(Tensor::ones({4}));
  CHECK(test::values(y) == std::vector<double>{-1, -1, 1, 1});
  CHECK(test::values(x.grad()) == std::vector<double>{0, 1, 1, 0});
}

TEST_CASE("own op: gradients of hardswish agree with differences") {
  const auto f = [](const TensorList& in) { return hardswish(in[0]); };
  for (const Shape& shape : {Shape{7}, Shape{2, 0}, Shape{3, 5}})
    CHECK(gradcheck(f, {test::random(shape) * 3}) == "");
  CHECK(gradcheck(f, {test::strided(test::random({3, 5}))}) == "");
}

TEST_CASE("own op: hardswish in every dtype, on meta, and its error") {
  const Tensor x = test::random({4, 1025}) * 3;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    CHECK(test::mismatch(hardswish(x.to(dtype)), hardswish(x), test::tolerance(dtype)) == "");
  CHECK(hardswish(x.to(kMeta)).shape() == x.shape());
  CHECK(test::error_of([&] { hardswish(x.to(DType::i32)); }) ==
        "hardswish: dtype must be one of f32, f64, bf16, f16, got i32");
}

}  // namespace weft::own_op_test
