#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

Tensor view(const Tensor& x, const Shape& shape);  // one axis may be -1
Tensor reshape(const Tensor& x, const Shape& shape);
Tensor permute(const Tensor& x, std::initializer_list<int> axes);
Tensor transpose(const Tensor& x, int a, int b);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end = kEnd,
             std::int64_t step = 1);
Tensor narrow(const Tensor& x, int dim, std::int64_t begin, std::int64_t length);
Tensor select(const Tensor& x, int dim, std::int64_t index);
Tensor squeeze(const Tensor& x, int dim);
Tensor unsqueeze(const Tensor& x, int dim);
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
TensorList split(const Tensor& x, std::int64_t size, int dim = 0);
TensorList split(const Tensor& x, std::initializer_list<std::int64_t> sizes, int dim = 0);
Tensor cat(const TensorList& xs, int dim = 0);
Tensor stack(const TensorList& xs, int dim = 0);
Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value = 0);
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
/// x itself when it is contiguous, else a copy.
Tensor contiguous(const Tensor& x);
Tensor clone(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);
Tensor to_device(const Tensor& x, Device device);

}  // namespace weft
