#include "weft/core/kernels/swiglu.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

/// Row starts of gate, up and y, in elements: packed rows are twice as far apart. Without packing,
/// everything is one row.
struct Layout {
  std::int64_t total, width, stride;

  Layout(const Tensor& y, bool packed)
      : total(y.numel()), width(packed ? y.dim(-1) : total), stride(packed ? 2 * width : width) {}
  /// Offset of the gate and up values of element i of y.
  __device__ std::int64_t input(std::int64_t i) const {
    if (width == total) return i;
    const std::int64_t row = total <= 0xffffffff
                                 ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(width)
                                 : i / width;
    return i + row * (stride - width);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_fwd_kernel(Layout l, const T* gate, const T* up, T* y) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= l.total) return;
  const std::int64_t at = l.input(i);
  const auto g = load_pack<T, V>(gate + at), u = load_pack<T, V>(up + at);
  Pack<T, V> out;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const auto x = widen(g[j]);
    out[j] = narrow<T>(x * fast_sigmoid(x) * widen(u[j]));
  }
  store_pack(y + i, out);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_bwd_kernel(Layout l, const T* gate, const T* up, const T* dy, T* dgate, T* dup) {
  using C = Compute<T>;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= l.total) return;
  const std::int64_t at = l.input(i);
  const auto g = load_pack<T, V>(gate + at), u = load_pack<T, V>(up + at);
  const auto d = load_pack<T, V>(dy + i);
  Pack<T, V> dg, du;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const C x = widen(g[j]), dx = widen(d[j]), s = fast_sigmoid(x);
    dg[j] = narrow<T>(dx * widen(u[j]) * s * (C(1) + x * (C(1) - s)));
    du[j] = narrow<T>(dx * x * s);
  }
  store_pack(dgate + at, dg);
  store_pack(dup + at, du);
}

}  // namespace

void swiglu_fwd(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const Layout l(y, !up.defined());
  dispatch_floating(y.dtype(), [&]<class T>() {
    constexpr int V = 16 / static_cast<int>(sizeof(T));
    const T* g = gate.data<T>();
    const T* u = up.defined() ? up.data<T>() : g + l.width;
    T* out = y.data<T>();
    const auto grid = [&](int v) { return grid_of(blocks_for(l.total, kThreads * v)); };
    if (packable(g, l.width) && packable(u, l.width) && packable(out, l.width))
      launch(swiglu_fwd_kernel<T, V>, grid(V), kThreads, 0, l, g, u, out);
    else
      launch(swiglu_fwd_kernel<T, 1>, grid(1), kThreads, 0, l, g, u, out);
  });
}

void swiglu_bwd(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate,
                const Tensor& dup) {
  const Layout l(dy, !up.defined());
  dispatch_floating(dy.dtype(), [&]<class T>() {
    constexpr int V = 16 / static_cast<int>(sizeof(T));
    const T *g = gate.data<T>(), *d = dy.data<T>();
    const T* u = up.defined() ? up.data<T>() : g + l.width;
    T* dg = dgate.data<T>();
    T* du = up.defined() ? dup.data<T>() : dg + l.width;
    const auto grid = [&](int v) { return grid_of(blocks_for(l.total, kThreads * v)); };
    if (packable(g, l.width) && packable(u, l.width) && packable(d, l.width) &&
        packable(dg, l.width) && packable(du, l.width))
      launch(swiglu_bwd_kernel<T, V>, grid(V), kThreads, 0, l, g, u, d, dg, du);
    else
      launch(swiglu_bwd_kernel<T, 1>, grid(1), kThreads, 0, l, g, u, d, dg, du);
  });
}

}  // namespace weft::cuda
