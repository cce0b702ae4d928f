#include "weft/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft {
namespace {

using Function = std::function<Tensor(const TensorList&)>;

bool repeats(const Tensor& x) {
  for (int d = 0; d < x.ndim(); ++d)
    if (x.dim(d) > 1 && x.strides()[d] == 0) return true;
  return false;
}

// Element i (row-major) of a tensor with any strides.
double& element(const Tensor& t, std::int64_t i) {
  std::int64_t at = 0;
  for (int d = t.ndim() - 1; d >= 0; --d) {
    at += i % t.dim(d) * t.strides()[d];
    i /= t.dim(d);
  }
  return t.data<double>()[at];
}

std::string first_order(const Function& f, const TensorList& in, const GradcheckOptions& o) {
  Tensor r;
  TensorList xs;
  for (const Tensor& x : in)
    if (x.requires_grad()) xs.push_back(x);
  TensorList grads;
  {
    Tape tape;
    const Tensor y = f(in);
    check(y.dtype() == DType::f64, "gradcheck: the function must return f64, got {}", y.dtype());
    r = uniform_(Tensor::empty(y.shape(), DType::f64), {o.seed, stream_of("gradcheck"), 0}, -1, 1);
    // What no input leads to, as the gradient of a linear function, has gradients of 0.
    if (Tape::follows(y)) grads = tape.gradients(y, xs, r);
  }
  const auto scalar = [&] {
    NoGradGuard off;
    const Tensor y = f(in).contiguous();
    double s = 0;
    for (std::int64_t i = 0; i < y.numel(); ++i) s += y.data<double>()[i] * r.data<double>()[i];
    return s;
  };
  for (int k = 0; k < xs.size(); ++k) {
    const Tensor& x = xs[k];
    const Tensor grad = grads.empty() ? Tensor() : grads[k];
    if (grad.defined() && !(grad.shape() == x.shape()))
      return message("input {}: gradient has shape {}, the input {}", k, grad.shape(), x.shape());
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      double& v = element(x, i);
      const double keep = v;
      v = keep + o.step;
      const double up = scalar();
      v = keep - o.step;
      const double down = scalar();
      v = keep;
      const double difference = (up - down) / (2 * o.step);
      const double tape = grad.defined() ? element(grad, i) : 0;
      if (!(std::abs(difference - tape) <= o.tolerance * std::max(1.0, std::abs(difference))))
        return message("input {} element {}: finite difference {}, tape {}", k, i, difference,
                       tape);
    }
  }
  return "";
}

}  // namespace

std::string gradcheck(const Function& f, const TensorList& inputs, const GradcheckOptions& o) {
  TensorList in;
  for (const Tensor& x : inputs) {
    check(x.dtype() == DType::f64 || !is_floating(x.dtype()),
          "gradcheck: inputs must be f64 or integers, got {}", x.dtype());
    // The same memory and strides: non-contiguous inputs stay non-contiguous. An element that
    // appears several times could not be changed alone, so a repeated input is copied.
    Tensor leaf = repeats(x) ? x.detach().clone() : x.detach();
    if (x.dtype() == DType::f64) leaf.set_requires_grad();
    in.push_back(leaf);
  }
  const std::string first = first_order(f, in, o);
  if (!first.empty() || !o.second_order) return first;
  // The gradient of sum(f * r) is itself a function of the inputs, which the outer tape records.
  const Function gradient = [&](const TensorList& xs) {
    Tape inner;
    const Tensor y = f(xs);
    if (!Tape::follows(y)) return Tensor::zeros({}, DType::f64);
    TensorList leaves;
    for (const Tensor& x : xs)
      if (x.requires_grad()) leaves.push_back(x);
    const Tensor r =
        uniform_(Tensor::empty(y.shape(), DType::f64), {o.seed, stream_of("second"), 0}, -1, 1);
    const TensorList g = inner.gradients(y, leaves, r);
    Tensor total;
    std::uint64_t n = 0;
    for (const Tensor& t : g) {
      if (!t.defined()) continue;
      const Tensor w = uniform_(Tensor::empty(t.shape(), DType::f64), {o.seed, ++n, 0}, -1, 1);
      const Tensor part = sum(t * w);
      total = total.defined() ? total + part : part;
    }
    return total;
  };
  const std::string second = first_order(gradient, in, o);
  return second.empty() ? "" : "second order: " + second;
}

}  // namespace weft
