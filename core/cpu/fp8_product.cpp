#include "weft/core/kernels/fp8_product.h"

#include <algorithm>

#include "weft/core/cpu/fp8_values.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// The numbers without their scale, which a product of two codes represents exactly in f32.
void widen(const Tensor& q, float* y) {
  constexpr std::int64_t kChunk = 4096;
  const float* const values = fp8_values(q.dtype());
  const auto* const codes = static_cast<const std::uint8_t*>(q.raw());
  const std::int64_t n = q.numel();
  parallel_for((n + kChunk - 1) / kChunk, kChunk, [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t from = begin * kChunk, to = std::min(end * kChunk, n);
    simd().fp8.lookup(codes + from, values, y + from, to - from);
  });
}

float one_of(const Tensor& inverse, std::int64_t e) {
  return inverse.data<float>()[inverse.numel() == 1 ? 0 : e];
}

// The rows of out and of the bias that belong to group e.
struct Piece {
  std::int64_t first, rows, columns;
  float scale_a, scale_b;
};

template <class T>
void finish(const Piece& p, const float* sums, const T* bias, bool accumulate, T* out) {
  parallel_for(p.rows, p.columns, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = p.first + begin; r < p.first + end; ++r)
      for (std::int64_t c = 0; c < p.columns; ++c) {
        const std::int64_t i = r * p.columns + c;
        float v = sums[i] * p.scale_a * p.scale_b;
        if (bias) v += static_cast<float>(bias[c]);
        if (accumulate) v += static_cast<float>(out[i]);
        out[i] = T(v);
      }
  });
}

}  // namespace

void fp8_product(const Fp8ProductIn& in, const Tensor& scratch, const Tensor& out) {
  if (out.numel() == 0) return;
  const bool to_weight = in.kind == GroupedProduct::weight_grad;
  const auto part = [&](const Tensor& like, std::int64_t first) {
    return scratch.alias(like.shape(), like.strides(), first);
  };
  const Tensor a = part(in.a, 0), b = part(in.b, in.a.numel());
  const Tensor sums = part(out, in.a.numel() + in.b.numel());
  if (in.a.numel() > 0) widen(in.a, a.data<float>());
  if (in.b.numel() > 0) widen(in.b, b.data<float>());
  if (in.rows.defined()) {
    const Tensor matrices = to_weight ? b
                                      : b.alias({in.count(), in.outputs, in.inputs},
                                                {in.outputs * in.inputs, in.inputs, 1}, 0);
    grouped_gemm(a, matrices, in.kind, in.rows, false, Tensor(), sums);
  } else if (in.all_rows > 0) {
    const GroupOperands whole(in.kind, 0, 0, in.all_rows, in.outputs, in.inputs, false);
    gemm(a, b, whole.shape, Tensor(), sums);
  }
  const auto into = [&]<class T>(T* to) {
    std::int64_t first = 0;
    for (std::int64_t e = 0; e < in.count(); first += in.rows_of(e++)) {
      const std::int64_t rows = in.rows_of(e);
      Piece p{.first = first,
              .rows = rows,
              .columns = in.kind == GroupedProduct::forward ? in.outputs : in.inputs,
              .scale_a = one_of(in.a_inverse, e),
              .scale_b = one_of(in.b_inverse, e)};
      if (to_weight) {
        p.first = e * in.outputs;
        p.rows = in.outputs;
        if (rows == 0) {
          if (!in.accumulate) std::fill_n(to + p.first * p.columns, p.rows * p.columns, T(0.0f));
          continue;
        }
      }
      const T* const bias = in.bias.defined() ? in.bias.data<T>() + e * in.outputs : nullptr;
      finish(p, sums.data<float>(), bias, in.accumulate, to);
    }
  };
  out.dtype() == DType::f32 ? into(out.data<float>()) : into(out.data<bf16>());
}

}  // namespace weft::cpu
