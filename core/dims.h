#pragma once
#include <array>
#include <concepts>
#include <initializer_list>
#include <span>

#include "weft/core/shape.h"

namespace weft {

/// A short list of axes, stored inline without heap allocation: numbers in braces, one number, or a
/// std::vector, std::array or std::span of int. Negative ones count from the end.
class Dims {
 public:
  Dims() = default;
  Dims(int dim) : size_(1) { dims_[0] = dim; }
  /// Do not compile: sum(x, true) would be the sum over axis 1.
  template <std::same_as<bool> T>
  Dims(T) = delete;
  template <std::floating_point T>
  Dims(T) = delete;
  Dims(std::initializer_list<int> dims) : Dims(std::span(dims.begin(), dims.size())) {}
  template <std::convertible_to<std::span<const int>> Values>
  Dims(const Values& values) : Dims(std::span<const int>(values)) {}
  /// Throws Error for more axes than kMaxDims.
  Dims(std::span<const int> dims) {
    if (dims.size() > kMaxDims) [[unlikely]]
      throw_too_many_dims(static_cast<std::int64_t>(dims.size()));
    for (const int d : dims) dims_[static_cast<std::size_t>(size_++)] = d;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int* begin() const { return dims_.data(); }
  const int* end() const { return dims_.data() + size_; }

 private:
  std::array<int, kMaxDims> dims_;
  int size_ = 0;
};

}  // namespace weft
