#include "weft/core/kernels/copy.h"

#include <cmath>
#include <cstring>

#include "weft/core/cpu/elementwise_loop.h"
#include "weft/core/cpu/simd.h"
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
                  if constexpr (kIsHalf<From> && std::is_same_v<To, float>)
                    simd().of<From>().widen(xr, yr, n);
                  else if constexpr (kIsHalf<To> && std::is_same_v<From, float>)
                    simd().of<To>().narrow(xr, yr, n);
                  else
                    for (std::int64_t i = 0; i < n; ++i) yr[i] = convert<To>(xr[i]);
                } else {
                  for (std::int64_t i = 0; i < n; ++i)
                    yr[i * step[1]] = convert<To>(xr[i * step[0]]);
                }
              });
}

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  if (source.dtype() == out.dtype())
    return with_word(size_of(out.dtype()), [&]<class Word>() { move_values<Word>(source, out); });
  dispatch_all(source.dtype(), [&]<class From>() {
    dispatch_all(out.dtype(), [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>) convert_values<From, To>(source, out);
    });
  });
}

void fill(const Tensor& out, double value) {
  const bool zeros = value == 0 && !std::signbit(value);  // all bits zero in every dtype
  dispatch_all(out.dtype(), [&]<class T>() {
    const T v = convert<T>(value);
    T* p = out.data<T>();
    each_run<1>({&out}, 1, [=](const PerOperand<1>& at, const PerOperand<1>& step, std::int64_t n) {
      T* row = p + at[0];
      if (step[0] == 1 && zeros) {
        std::memset(static_cast<void*>(row), 0, static_cast<std::size_t>(n) * sizeof(T));
      } else if (step[0] == 1) {
        for (std::int64_t i = 0; i < n; ++i) row[i] = v;
      } else {
        for (std::int64_t i = 0; i < n; ++i) row[i * step[0]] = v;
      }
    });
  });
}

}  // namespace weft::cpu
