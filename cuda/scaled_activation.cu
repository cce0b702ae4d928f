#include "weft/core/kernels/operand.h"
#include "weft/core/kernels/scaled_activation.h"
#include "weft/cuda/fp8.h"
#include "weft/cuda/gelu.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / kWarp;  // rows per block

template <bool Packed, class C>
__device__ inline C activation(C x, ScaledKind kind) {
  if constexpr (Packed) return x * fast_sigmoid(x);
  return kind == ScaledKind::gelu_tanh ? gelu_tanh(x) : apply<UnaryOp::gelu_erf>(x);
}

template <bool Packed, class C>
__device__ inline C derivative(C x, C dy, ScaledKind kind) {
  if constexpr (Packed) {
    const C s = fast_sigmoid(x);
    return dy * s * (C(1) + x * (C(1) - s));
  }
  return kind == ScaledKind::gelu_tanh ? gelu_tanh_bwd(x, dy)
                                       : apply<BinaryOp::gelu_erf_bwd>(x, dy);
}

// One warp per row.
template <class T, int V, bool Packed>
__global__ void __launch_bounds__(kThreads)
    scaled_activation_fwd_kernel(const T* h, const Compute<T>* scale, ScaledKind kind,
                                 std::int64_t rows, std::int64_t width, T* y, RowsOut to) {
  using C = Compute<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  if (row >= rows) return;
  const T* const gate = h + row * (Packed ? 2 * width : width);
  const C p = scale ? scale[row] : C(1);
  C most = 0;
  for (std::int64_t c = threadIdx.x % kWarp * V; c < width; c += kWarp * V) {
    const auto g = load_pack<T, V>(gate + c);
    Pack<T, V> u{}, out;
    if constexpr (Packed) u = load_pack<T, V>(gate + width + c);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      C v = activation<Packed>(widen(g[j]), kind) * p;
      if constexpr (Packed) v *= widen(u[j]);
      out[j] = narrow<T>(v);
      most = Max{}(most, absolute(widen(out[j])));
    }
    store_pack(y + row * width + c, out);
  }
  store_codes<kWarp, V>(to, y + row * width, row, width, true);
  if (!to.amax) return;
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) to.amax[row] = static_cast<float>(most);
}

template <class T, int V, bool Packed>
__global__ void __launch_bounds__(kThreads)
    scaled_activation_bwd_kernel(const T* h, const Compute<T>* scale, const T* dy, ScaledKind kind,
                                 std::int64_t rows, std::int64_t width, T* dh, Compute<T>* dscale) {
  using C = Compute<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp;
  const bool inside = row < rows;
  const std::int64_t at = (inside ? row : 0) * (Packed ? 2 * width : width);
  const T* const gate = h + at;
  T* const dgate = dh + at;
  const C p = inside ? scale[row] : C(0);
  const std::int64_t end = inside ? width : 0;
  C sum = 0;
  for (std::int64_t c = threadIdx.x % kWarp * V; c < end; c += kWarp * V) {
    const auto g = load_pack<T, V>(gate + c), d = load_pack<T, V>(dy + row * width + c);
    Pack<T, V> u{}, dg, du;
    if constexpr (Packed) u = load_pack<T, V>(gate + width + c);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const C x = widen(g[j]), dx = widen(d[j]), act = activation<Packed>(x, kind);
      C up(1);
      if constexpr (Packed) {
        up = widen(u[j]);
        du[j] = narrow<T>(dx * act * p);
      }
      sum += dx * act * up;
      dg[j] = narrow<T>(derivative<Packed>(x, dx * up * p, kind));
    }
    store_pack(dgate + c, dg);
    if constexpr (Packed) store_pack(dgate + width + c, du);
  }
  sum = warp_sum(sum);
  if (inside && threadIdx.x % kWarp == 0) dscale[row] = sum;
}

/// f<V, Packed>() for the widest access that rows of `width` elements allow.
template <class T, class F>
void with_layout(ScaledKind kind, bool wide, F f) {
  constexpr int V = 16 / static_cast<int>(sizeof(T));
  const bool packed = kind == ScaledKind::swiglu;
  if (wide)
    packed ? f.template operator()<V, true>() : f.template operator()<V, false>();
  else
    packed ? f.template operator()<1, true>() : f.template operator()<1, false>();
}

}  // namespace

void scaled_activation_fwd(const Tensor& h, const Tensor& scale, ScaledKind kind, const Tensor& y,
                           const RoundedRows& rounded) {
  if (y.numel() == 0) return;
  const std::int64_t rows = y.dim(0), width = y.dim(1);
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T* in = h.data<T>();
    T* out = y.data<T>();
    with_layout<T>(kind, packable(in, width) && packable(out, width), [&]<int V, bool Packed>() {
      launch(scaled_activation_fwd_kernel<T, V, Packed>, grid_of(blocks_for(rows, kRows)), kThreads,
             0, in, data_or_null<Compute<T>>(scale), kind, rows, width, out, RowsOut(rounded));
    });
  });
}

void scaled_activation_bwd(const Tensor& h, const Tensor& scale, const Tensor& dy, ScaledKind kind,
                           const Tensor& dh, const Tensor& dscale) {
  const std::int64_t rows = dy.dim(0), width = dy.dim(1);
  dispatch_floating(dy.dtype(), [&]<class T>() {
    const T *in = h.data<T>(), *d = dy.data<T>();
    T* out = dh.data<T>();
    const bool wide = packable(in, width) && packable(d, width) && packable(out, width);
    with_layout<T>(kind, wide, [&]<int V, bool Packed>() {
      launch(scaled_activation_bwd_kernel<T, V, Packed>, grid_of(blocks_for(rows, kRows)), kThreads,
             0, in, scale.data<Compute<T>>(), d, kind, rows, width, out, dscale.data<Compute<T>>());
    });
  });
}

}  // namespace weft::cuda
