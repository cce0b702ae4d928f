#pragma once
#include <map>
#include <vector>

#include "weft/bench/step_products.h"

namespace weft::bench {

/// The products of a training step with weights, in the order of a step: forward through the
/// layers, then backward, the gradient of a weight before that of its input. Every layer has its
/// own weights, their gradients and activations, so that operands lie where a step finds them, and
/// not in the caches as in a loop over one product.
class ProductSequence {
 public:
  explicit ProductSequence(const StepModel& model) {
    const std::vector<StepProduct> kinds = step_products(model);
    std::vector<Weight> forward;
    // step_products() lists the three products of each weight, and those of the head last.
    constexpr std::size_t kProducts = 3;
    for (std::int64_t layer = 0; layer < model.config.layers; ++layer)
      for (std::size_t i = 0; i + kProducts < kinds.size(); i += kProducts)
        forward.push_back(weight(kinds[i]));
    forward.push_back(weight(kinds[kinds.size() - kProducts]));
    for (const Weight& w : forward) add(w.x, transposed(w.w), w.y);
    Tensor dy = gradient(forward.back().y.shape(), Tensor());
    for (auto w = forward.rbegin(); w != forward.rend(); ++w) {
      if (dy.dim(1) != w->y.dim(1)) dy = gradient(w->y.shape(), Tensor());  // attention's
      const Tensor dx = gradient(w->x.shape(), dy);
      add(transposed(dy), w->x, w->dw);
      add(dy, w->w, dx);
      dy = dx;
    }
  }

  double flops() const { return flops_; }
  void run() const {
    for (const Product& p : products_) gemm(p.a, p.b, p.out);
  }

 private:
  struct Weight {
    Tensor x, w, y, dw;
  };
  struct Product {
    Tensor a, b, out;
  };

  static Weight weight(const StepProduct& forward) {
    const Shape out_in{forward.n, forward.k};
    return {Tensor::full({forward.m, forward.k}, 0.5), Tensor::full(out_in, 0.25),
            Tensor::full({forward.m, forward.n}, 0), Tensor::full(out_in, 0)};
  }
  // One of two for each width, and not `other`: a step reuses the memory of gradients.
  Tensor gradient(const Shape& shape, const Tensor& other) {
    std::vector<Tensor>& both = gradients_[shape[1]];
    const std::size_t which = !both.empty() && other.defined() && both[0].raw() == other.raw();
    if (both.size() == which) both.push_back(Tensor::full(shape, 0.125));
    return both[which];
  }
  void add(const Tensor& a, const Tensor& b, const Tensor& out) {
    products_.push_back({a, b, out});
    flops_ += 2 * static_cast<double>(out.numel()) * static_cast<double>(a.dim(1));
  }

  std::vector<Product> products_;
  std::map<std::int64_t, std::vector<Tensor>> gradients_;  // by columns
  double flops_ = 0;
};

}  // namespace weft::bench
