#pragma once
#include <cstdint>

#include "weft/core/cpu/blocks.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/tensor.h"

namespace weft::cpu {

/// Elements of a bf16 or f16 tensor as blocks of f32. Ops on 16 bits that work in such blocks need
/// one loop for each op, instead of one for each pair of op and dtype.
class HalfBlocks {
 public:
  explicit HalfBlocks(const Tensor& t) : data_(static_cast<std::uint16_t*>(t.raw())) {
    t.dtype() == DType::bf16 ? take<bf16>() : take<f16>();
  }

  /// The n <= kRunBlock elements from `offset` on at distance `step`.
  void read(std::int64_t offset, std::int64_t step, std::int64_t n, float* to) const {
    std::uint16_t block[kRunBlock];
    widen_(gather(data_ + offset, step, n, block), to, n);
  }

  void write(const float* from, std::int64_t offset, std::int64_t step, std::int64_t n) const {
    scatter(data_ + offset, step, n, [&](std::uint16_t* to) { narrow_(from, to, n); });
  }

 private:
  template <class T>
  void take() {
    widen_ = [](const void* x, float* y, std::int64_t n) {
      simd().of<T>().widen(static_cast<const T*>(x), y, n);
    };
    narrow_ = [](const float* x, void* y, std::int64_t n) {
      simd().of<T>().narrow(x, static_cast<T*>(y), n);
    };
  }

  std::uint16_t* data_;
  void (*widen_)(const void* x, float* y, std::int64_t n);
  void (*narrow_)(const float* x, void* y, std::int64_t n);
};

}  // namespace weft::cpu
