#include "weft/core/kernels/quantize.h"

#include <algorithm>
#include <array>
#include <bit>

#include "weft/core/cpu/fp8_values.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/fp8_scale.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

template <class T>
constexpr std::array<float, 256> values_of() {
  std::array<float, 256> all{};
  for (int i = 0; i < 256; ++i) {
    T code;
    code.bits = static_cast<std::uint8_t>(i);
    all[static_cast<std::size_t>(i)] = code;
  }
  return all;
}

const float* fp8_values(DType t) {
  static constexpr std::array<float, 256> kE4m3 = values_of<e4m3>(), kE5m2 = values_of<e5m2>();
  return t == DType::e5m2 ? kE5m2.data() : kE4m3.data();
}

namespace {

constexpr std::int64_t kChunk = 4096;  // elements of one work item

template <class F>
void dispatch_input(const Tensor& x, F f) {
  x.dtype() == DType::f32 ? f.template operator()<float>() : f.template operator()<bf16>();
}

// Calls f(group, first row, rows) for each group.
template <class F>
void each_group(const RowGroups& groups, F f) {
  std::int64_t first = 0;
  for (std::int64_t g = 0; g < groups.count; first += groups.of(g++)) f(g, first, groups.of(g));
}

void raise_to(std::int32_t& most, std::int32_t bits) {
  std::int32_t seen = __atomic_load_n(&most, __ATOMIC_RELAXED);
  while (seen < bits && !__atomic_compare_exchange_n(&most, &seen, bits, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

// Every NaN becomes the same one.
float amax_of(std::int32_t bits) {
  return bits > 0x7f800000 ? std::bit_cast<float>(0x7fc00000) : std::bit_cast<float>(bits);
}
std::int32_t bits_of(float amax) { return std::bit_cast<std::int32_t>(amax) & 0x7fffffff; }

template <class T>
std::int32_t absmax(const T* x, std::int64_t n) {
  std::int32_t most = 0;
  const auto largest = simd().fp8.absmax<T>();
  parallel_for((n + kChunk - 1) / kChunk, kChunk / 4, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t from = begin * kChunk, to = std::min(end * kChunk, n);
    raise_to(most, largest(x + from, to - from));
  });
  return most;
}

std::uint8_t* codes_of(const Tensor& t) {
  return t.defined() ? static_cast<std::uint8_t*>(t.raw()) : nullptr;
}

// y (cols, rows) = the transpose of x (rows, cols), in blocks that stay in the cache.
void transpose_codes(const std::uint8_t* x, std::int64_t rows, std::int64_t cols, std::uint8_t* y) {
  constexpr std::int64_t kBlock = 64;
  parallel_for((cols + kBlock - 1) / kBlock, kBlock * rows,
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = 0; i < rows; i += kBlock)
                   for (std::int64_t c = begin * kBlock; c < std::min(end * kBlock, cols); ++c)
                     for (std::int64_t r = i; r < std::min(i + kBlock, rows); ++r)
                       y[c * rows + r] = x[r * cols + c];
               });
}

}  // namespace

void fp8_amax(const Tensor& x, const RowGroups& groups, bool keep, const Tensor& amax) {
  const std::int64_t cols = x.dim(1);
  float* const out = amax.data<float>();
  if (!keep) std::fill_n(out, amax.numel(), 0.0f);
  dispatch_input(x, [&]<class T>() {
    const T* const px = x.data<T>();
    each_group(groups, [&](std::int64_t g, std::int64_t first, std::int64_t rows) {
      float& most = out[amax.numel() == 1 ? 0 : g];
      most = amax_of(std::max(bits_of(most), absmax(px + first * cols, rows * cols)));
    });
  });
}

void fp8_scale(const Tensor& amax, float largest, const Fp8Scaling& how, const Tensor& scale,
               const Tensor& inverse) {
  for (std::int64_t i = 0; i < amax.numel(); ++i) {
    const float s = fp8_scale_of(amax.data<float>()[i], largest, how);
    scale.data<float>()[i] = s;
    inverse.data<float>()[i] = 1 / s;
  }
}

RowRounder::RowRounder(const RoundedRows& to, std::int64_t columns)
    : columns_(columns),
      amax_(data_or_null<float>(to.amax)),
      inverse_(data_or_null<float>(to.inverse)),
      scale_(data_or_null<float>(to.scale)),
      codes_(codes_of(to.codes)),
      how_(to.how) {}

template <class T>
void RowRounder::write(const T* y, std::int64_t r) const {
  const Fp8Kernels& k = simd().fp8;
  if (amax_) amax_[r] = std::bit_cast<float>(k.absmax<T>()(y, columns_));
  if (!codes_) return;
  const auto round = k.codes<T>(false);
  std::uint8_t* const to = codes_ + r * columns_;
  if (scale_) return round(y, *scale_, to, columns_);
  float* inverse = inverse_ + r * fp8_blocks(columns_);
  for (std::int64_t at = 0; at < columns_; at += kFp8Block) {
    const std::int64_t n = std::min(kFp8Block, columns_ - at);
    const float scale =
        fp8_scale_of(amax_of(k.absmax<T>()(y + at, n)), fp8_largest(DType::e4m3), how_);
    round(y + at, scale, to + at, n);
    *inverse++ = 1 / scale;
  }
}
template void RowRounder::write(const float* y, std::int64_t r) const;
template void RowRounder::write(const bf16* y, std::int64_t r) const;

void quantize(const Tensor& x, const RowGroups& groups, const Tensor& scale, const Tensor& out,
              const Tensor& transposed) {
  const std::int64_t cols = x.dim(1);
  if (!scale.defined())
    return each_group(groups, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      transpose_codes(codes_of(x) + first * cols, rows, cols, codes_of(transposed) + first * cols);
    });
  const Tensor& any = out.defined() ? out : transposed;
  std::uint8_t *const by_row = codes_of(out), *const by_column = codes_of(transposed);
  dispatch_input(x, [&]<class T>() {
    const T* const px = x.data<T>();
    const auto codes = simd().fp8.codes<T>(any.dtype() == DType::e5m2);
    each_group(groups, [&](std::int64_t g, std::int64_t first, std::int64_t rows) {
      const float s = scale.data<float>()[scale.numel() == 1 ? 0 : g];
      const std::int64_t n = rows * cols, at = first * cols;
      if (by_row)
        parallel_for((n + kChunk - 1) / kChunk, kChunk, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t from = begin * kChunk, to = std::min(end * kChunk, n);
          codes(px + at + from, s, by_row + at + from, to - from);
        });
      if (!by_column) return;
      if (by_row) return transpose_codes(by_row + at, rows, cols, by_column + at);
      parallel_for(cols, rows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t c = begin; c < end; ++c)
          for (std::int64_t r = 0; r < rows; ++r)
            codes(px + at + r * cols + c, s, by_column + at + c * rows + r, 1);
      });
    });
  });
}

void quantize_tiles(const Tensor& x, const RowGroups& groups, const Fp8Tile& tile,
                    const Fp8Scaling& how, const Tensor& out, const Tensor& inverse) {
  const std::int64_t cols = x.dim(1), across = (cols + tile.columns - 1) / tile.columns;
  const float largest = fp8_largest(out.dtype());
  std::uint8_t* const codes = codes_of(out);
  float* inv = inverse.data<float>();
  dispatch_input(x, [&]<class T>() {
    const T* const px = x.data<T>();
    const Fp8Kernels& k = simd().fp8;
    const auto round = k.codes<T>(out.dtype() == DType::e5m2);
    each_group(groups, [&](std::int64_t, std::int64_t first, std::int64_t rows) {
      const std::int64_t down = (rows + tile.rows - 1) / tile.rows;
      parallel_for(
          down * across, tile.rows * tile.columns, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
              const std::int64_t top = i / across * tile.rows, left = i % across * tile.columns;
              const std::int64_t high = std::min(tile.rows, rows - top),
                                 wide = std::min(tile.columns, cols - left);
              const std::int64_t at = (first + top) * cols + left;
              std::int32_t most = 0;
              for (std::int64_t r = 0; r < high; ++r)
                most = std::max(most, k.absmax<T>()(px + at + r * cols, wide));
              const float scale = fp8_scale_of(amax_of(most), largest, how);
              for (std::int64_t r = 0; r < high; ++r)
                round(px + at + r * cols, scale, codes + at + r * cols, wide);
              inv[i] = 1 / scale;
            }
          });
      inv += down * across;
    });
  });
}

void dequantize(const Tensor& q, const RowGroups& groups, const Fp8Tile& tile,
                const Tensor& inverse, const Tensor& out) {
  const std::int64_t cols = q.dim(1);
  const bool tiled = tile.rows > 0;
  const std::int64_t wide = tiled ? tile.columns : cols, across = (cols + wide - 1) / wide;
  const float* const values = fp8_values(q.dtype());
  const std::uint8_t* const codes = codes_of(q);
  const float* inv = inverse.data<float>();
  dispatch_input(out, [&]<class T>() {
    T* const y = out.data<T>();
    each_group(groups, [&](std::int64_t g, std::int64_t first, std::int64_t rows) {
      const float* const own = tiled || inverse.numel() == 1 ? inv : inv + g;
      parallel_for(rows, cols, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          for (std::int64_t left = 0; left < cols; left += wide) {
            const float scale = tiled ? own[r / tile.rows * across + left / wide] : *own;
            const std::int64_t row = (first + r) * cols;
            for (std::int64_t i = row + left; i < row + std::min(left + wide, cols); ++i)
              y[i] = T(values[codes[i]] * scale);
          }
      });
      if (tiled) inv += (rows + tile.rows - 1) / tile.rows * across;
    });
  });
}

void fp8_roll(const Fp8Delayed& state, const Fp8Limits& limits, const Fp8Scaling& how) {
  const std::int64_t rows = state.history.dim(0);
  float* const history = state.history.data<float>();
  for (std::int64_t slot = 0; slot < 3; ++slot) {
    std::int32_t most = 0;
    for (std::int64_t r = 0; r < rows; ++r) most = std::max(most, bits_of(history[3 * r + slot]));
    const float amax = amax_of(most);
    if (amax > 0 && amax - amax == 0)
      state.scale.data<float>()[slot] =
          fp8_scale_of(amax, slot == 2 ? limits.gradient : limits.forward, how);
  }
  std::copy_backward(history, history + 3 * (rows - 1), history + 3 * rows);
  std::fill_n(history, 3, 0.0f);
}

void fp8_take(const Fp8Delayed& state, std::int64_t slot, const Tensor& scale,
              const Tensor& inverse) {
  const float stored = state.scale.data<float>()[slot];
  *scale.data<float>() = stored == 0 ? 1 : stored;
  *inverse.data<float>() = 1 / *scale.data<float>();
}

}  // namespace weft::cpu
