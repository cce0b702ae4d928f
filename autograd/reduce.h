#pragma once
#include "weft/core/tensor.h"

namespace weft {

// `dims` empty: over all axes.
Tensor sum(const Tensor& x, std::initializer_list<int> dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, std::initializer_list<int> dims = {}, bool keepdim = false);
Tensor max(const Tensor& x);
Tensor max(const Tensor& x, int dim, bool keepdim = false);
Tensor min(const Tensor& x);
Tensor min(const Tensor& x, int dim, bool keepdim = false);
Tensor argmax(const Tensor& x, int dim = -1, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim = -1, bool keepdim = false);
/// correction 1: the unbiased estimate.
Tensor var(const Tensor& x, std::initializer_list<int> dims = {}, int correction = 1,
           bool keepdim = false);
Tensor norm(const Tensor& x, double p = 2);
Tensor logsumexp(const Tensor& x, int dim = -1, bool keepdim = false);
Tensor cumsum(const Tensor& x, int dim = -1);
/// Sums x down to a shape that broadcasts to x's shape: the backward of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace weft
