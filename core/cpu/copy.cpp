#include "weft/core/kernels/copy.h"

#include <algorithm>
#include <cstring>

#include "weft/core/cpu/blocks.h"
#include "weft/core/cpu/elementwise_loop.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/cpu/transpose.h"
#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/elementwise_ops.h"

namespace weft::cpu {
namespace {

// Without a conversion only the element size matters.
template <class Word>
void move_values(const Tensor& source, const Tensor& out) {
  const Word* x = static_cast<const Word*>(source.raw());
  Word* y = static_cast<Word*>(out.raw());
  each_run<2>({&source, &out}, 1,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t n) {
                if (step[0] == 1 && step[1] == 1) {
                  std::memcpy(y + at[1], x + at[0], static_cast<std::size_t>(n) * sizeof(Word));
                } else {
                  for (std::int64_t i = 0; i < n; ++i)
                    y[at[1] + i * step[1]] = x[at[0] + i * step[0]];
                }
              });
}

template <class From, class To>
void convert_values(const Tensor& source, const Tensor& out) {
  const From* x = source.data<From>();
  To* y = out.data<To>();
  each_run<2>({&source, &out}, 1,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t n) {
                const From* xr = x + at[0];
                To* yr = y + at[1];
                if (step[0] == 1 && step[1] == 1) {
                  for (std::int64_t i = 0; i < n; ++i) yr[i] = convert<To>(xr[i]);
                } else {
                  for (std::int64_t i = 0; i < n; ++i)
                    yr[i * step[1]] = convert<To>(xr[i * step[0]]);
                }
              });
}

// bf16, f16 and FP8 convert through blocks of f32: a loop for each dtype instead of each pair.
template <class T>
inline constexpr bool kNarrow = !std::is_arithmetic_v<T>;

using ReadBlock = void (*)(const void* x, std::int64_t at, std::int64_t step, std::int64_t n,
                           float* block);
using WriteBlock = void (*)(const float* block, void* y, std::int64_t at, std::int64_t step,
                            std::int64_t n);

// To f32; a number that is too exact for it is rounded so that write_block() rounds it correctly.
template <class T>
float widened(T x) {
  if constexpr (std::is_same_v<T, float> || kNarrow<T>)
    return static_cast<float>(x);
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return round_to_odd(x);
  else
    return round_to_odd(static_cast<double>(x));
}

template <class T>
void read_block(const void* from, std::int64_t at, std::int64_t step, std::int64_t n,
                float* block) {
  const T* x = static_cast<const T*>(from) + at;
  if constexpr (kIsHalf<T>) {
    if (step == 1) return simd().of<T>().widen(x, block, n);
  }
  if (step == 1) {
    for (std::int64_t i = 0; i < n; ++i) block[i] = widened(x[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) block[i] = widened(x[i * step]);
  }
}

template <class T>
void write_block(const float* block, void* to, std::int64_t at, std::int64_t step, std::int64_t n) {
  T* y = static_cast<T*>(to) + at;
  if constexpr (kIsHalf<T>) {
    if (step == 1) return simd().of<T>().narrow(block, y, n);
  }
  if (step == 1) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = convert<T>(block[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i * step] = convert<T>(block[i]);
  }
}

void convert_in_blocks(const Tensor& source, const Tensor& out) {
  const ReadBlock read =
      dispatch_all(source.dtype(), []<class T>() -> ReadBlock { return read_block<T>; });
  const WriteBlock write =
      dispatch_all(out.dtype(), []<class T>() -> WriteBlock { return write_block<T>; });
  const bool from_f32 = source.dtype() == DType::f32, to_f32 = out.dtype() == DType::f32;
  const void* x = source.raw();
  void* y = out.raw();
  each_run<2>({&source, &out}, 1,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t n) {
                if (from_f32 && step[0] == 1)
                  return write(static_cast<const float*>(x) + at[0], y, at[1], step[1], n);
                if (to_f32 && step[1] == 1)
                  return read(x, at[0], step[0], n, static_cast<float*>(y) + at[1]);
                each_block(n, [&](std::int64_t i, std::int64_t k) {
                  float block[kRunBlock];
                  read(x, at[0] + i * step[0], step[0], k, block);
                  write(block, y, at[1] + i * step[1], step[1], k);
                });
              });
}

bool is_narrow(DType dtype) {
  return dispatch_all(dtype, []<class T>() { return kNarrow<T>; });
}

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  if (copy_transposed(source, out)) return;
  if (source.dtype() == out.dtype())
    return with_word(size_of(out.dtype()), [&]<class Word>() { move_values<Word>(source, out); });
  if (is_narrow(source.dtype()) || is_narrow(out.dtype())) return convert_in_blocks(source, out);
  dispatch_all(source.dtype(), [&]<class From>() {
    dispatch_all(out.dtype(), [&]<class To>() {
      if constexpr (!std::is_same_v<From, To> && !kNarrow<From> && !kNarrow<To>)
        convert_values<From, To>(source, out);
    });
  });
}

void fill(const Tensor& out, double value) {
  std::uint64_t bits = 0;  // of an element
  dispatch_all(out.dtype(), [&]<class T>() {
    const T v = convert<T>(value);
    std::memcpy(&bits, &v, sizeof(T));
  });
  with_word(size_of(out.dtype()), [&]<class Word>() {
    const Word v = static_cast<Word>(bits);
    Word* p = static_cast<Word*>(out.raw());
    each_run<1>({&out}, 1, [=](const PerOperand<1>& at, const PerOperand<1>& step, std::int64_t n) {
      Word* row = p + at[0];
      if (step[0] == 1 && v == 0) {
        std::memset(row, 0, static_cast<std::size_t>(n) * sizeof(Word));
      } else if (step[0] == 1) {
        for (std::int64_t i = 0; i < n; ++i) row[i] = v;
      } else {
        for (std::int64_t i = 0; i < n; ++i) row[i * step[0]] = v;
      }
    });
  });
}

}  // namespace weft::cpu
