#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/ddp.h"
#include "weft/nn/mlp.h"
#include "weft/tests/support.h"

namespace weft::test {

/// A few layers, small enough for many ranks on one machine.
struct Stack : nn::Module {
  std::vector<nn::Mlp> layers;

  explicit Stack(int depth, DType dtype = DType::f32, std::int64_t width = 6) {
    const nn::DeviceScope scope(kCpu, dtype);
    for (int i = 0; i < depth; ++i) layers.emplace_back(width, 2 * width + 1);
    nn::init(*this, 7);
    // Larger than usual, so that the gradients of all layers have similar magnitudes.
    NoGradGuard off;
    for (const Tensor& p : parameters()) p.mul_(20);
  }
  Tensor operator()(Tensor x) const {
    for (const nn::Mlp& layer : layers) x = add(x, layer(x));
    return x;
  }
  void visit(nn::Visitor& v) override { v("layers", layers); }
};

/// One rank's rows of a fixed batch, for one of several micro-batches.
inline Tensor rows_of(std::int64_t batch, int rank, int ranks, DType dtype = DType::f32,
                      int micro = 0, int micros = 1, std::int64_t width = 6) {
  const std::int64_t share = batch / ranks, part = share / micros;
  return random({batch, width}, 3, dtype).narrow(0, rank * share + micro * part, part).clone();
}

/// Sum over the rows. The caller divides it by the number of values.
inline Tensor loss_of(const Stack& model, const Tensor& x) { return sum(square(model(x))); }

inline Tensor cotangent(const Tensor& loss, double count) {
  return Tensor::full(loss.shape(), 1 / count, loss.dtype());
}

/// |a - b| / |b| over all values, or |a| where b is 0.
inline double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    std::vector<double> x(static_cast<std::size_t>(a[i].numel())), y(x.size());
    a[i].copy_to(x);
    b[i].copy_to(y);
    for (std::size_t k = 0; k < x.size(); ++k) {
      difference += (x[k] - y[k]) * (x[k] - y[k]);
      size += y[k] * y[k];
    }
  }
  return std::sqrt(size > 0 ? difference / size : difference);
}

inline std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(t.detach().clone());
  return out;
}

inline std::vector<Tensor> gradients(const nn::Module& model) {
  std::vector<Tensor> out;
  for (const Tensor& p : model.parameters())
    out.push_back((p.main_grad().defined() ? p.main_grad() : p.grad()).clone());
  return out;
}

inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = different_bits(a[i], b[i]).empty();
  return same;
}

}  // namespace weft::test
