#include "weft/tests/cuda/gpu.h"

namespace weft::test {
namespace {

// Outputs, then the gradients of the floating inputs.
TensorList run(const Op& op, const TensorList& inputs, const TensorList& cotangents,
               bool gradients) {
  TensorList leaves, wanted;
  for (const Tensor& x : inputs) {
    Tensor leaf = x.detach();
    if (gradients && is_compute(leaf.dtype())) {
      leaf.set_requires_grad();
      wanted.push_back(leaf);
    }
    leaves.push_back(leaf);
  }
  const TensorList outputs = op(leaves);
  TensorList result = outputs;
  for (int i = 0; gradients && i < outputs.size(); ++i) {
    if (!is_compute(outputs[i].dtype())) continue;
    Tape tape;  // a tape runs backward only once
    const Tensor y = op(leaves)[i];
    if (!y.requires_grad()) continue;
    const Tensor dy = cotangents[i].to(y.dtype());  // a loss may be wider than its inputs
    for (const Tensor& g : tape.gradients(y, wanted, dy))
      // An input that does not affect this output has a gradient of 0.
      result.push_back(g.defined() ? g : Tensor::zeros({1}));
  }
  return result;
}

// The values with the same memory layout, strides included, rounded to dtype and moved.
Tensor prepared(const Tensor& x, DType dtype, Device device) {
  const Tensor typed = is_compute(x.dtype()) ? x.to(dtype) : x;
  const Tensor moved = typed.to(device);
  if (x.is_contiguous() || x.numel() == 0) return moved;
  // The same strides as in x.
  std::int64_t room = 1;
  for (int i = 0; i < x.ndim(); ++i) room += (x.dim(i) - 1) * x.strides()[i];
  const Tensor gaps =
      Tensor::full({room}, 0, moved.dtype(), device).alias(x.shape(), x.strides(), 0);
  gaps.copy_(moved);
  return gaps;
}

}  // namespace

std::string disagreement(const Op& op, const TensorList& inputs, const Agreement& how) {
  for (const DType dtype : how.dtypes) {
    TensorList exact, on_gpu;
    for (const Tensor& x : inputs) {
      exact.push_back(is_compute(x.dtype()) ? x.to(dtype).to(DType::f64) : x);
      on_gpu.push_back(prepared(x, dtype, kGpu));
    }
    TensorList cotangents, gpu_cotangents;
    if (how.gradients) {
      std::uint64_t seed = 1000;
      for (const Tensor& y : op(exact)) {
        const Tensor dy = is_compute(y.dtype()) ? random(y.shape(), ++seed).to(dtype) : Tensor();
        cotangents.push_back(dy.defined() ? dy.to(DType::f64) : dy);
        gpu_cotangents.push_back(dy.defined() ? dy.to(kGpu) : dy);
      }
    }
    const TensorList want = run(op, exact, cotangents, how.gradients);
    std::string wrong;
    const auto once = [&] {
      const TensorList got = run(op, on_gpu, gpu_cotangents, how.gradients);
      // A gradient that only the CPU computes must be an error.
      if (got.size() != want.size())
        wrong =
            message("{}: {} results where {} were expected", name(dtype), got.size(), want.size());
      for (int i = 0; i < got.size() && wrong.empty(); ++i) {
        const std::string text =
            mismatch(got[i].to(kCpu), want[i], how.tolerance * test::tolerance(dtype),
                     i < cotangents.size() ? 0 : how.terms);
        if (!text.empty()) wrong = message("{}, result {}: {}", name(dtype), i, text);
      }
    };
    if (how.all_orders)
      for_each_order(once);
    else
      once();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace weft::test
