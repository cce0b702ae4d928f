#include "weft/core/kernels/rope.h"
#include "weft/cuda/math.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

/// All sizes in elements; half is D / 2. Of a token's `all` heads, the first `heads` are processed,
/// and the first `turned` of these are rotated.
struct Layout {
  std::int64_t pairs, tokens, heads, turned, all, half, table;
  std::int64_t offset, given;  // given: number of positions
  bool inverse;
};

// Each thread rotates V adjacent elements of a head's first half with those of its second.
template <class T, class A, int V>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(Layout l, const T* x, const A* cos, const A* sin, const std::int32_t* positions,
                T* y) {
  using C = Compute<T>;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= l.pairs) return;
  std::int64_t head, token;
  if (l.pairs <= 0xffffffff) {  // 32-bit division is several times faster
    const auto h = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(l.half);
    head = h;
    token = h / static_cast<std::uint32_t>(l.heads);
  } else {
    head = i / l.half;
    token = head / l.heads;
  }
  const std::int64_t in_half = i - head * l.half;
  const std::int64_t position =
      positions ? positions[token % l.given] : l.offset + token % l.tokens;
  if (position < 0 || position >= l.table) return;
  const std::int64_t of_token = head - token * l.heads;
  const std::int64_t at = (token * l.all + of_token) * 2 * l.half + in_half;
  const std::int64_t turn = position * l.half + in_half;
  const auto a = load_pack<T, V>(x + at), b = load_pack<T, V>(x + at + l.half);
  if (of_token >= l.turned) {
    store_pack(y + at, a);
    store_pack(y + at + l.half, b);
    return;
  }
  const auto c = load_pack<A, V>(cos + turn), s = load_pack<A, V>(sin + turn);
  Pack<T, V> first, second;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const C ca = static_cast<C>(c[j]), sa = static_cast<C>(l.inverse ? -s[j] : s[j]);
    const C p = widen(a[j]), q = widen(b[j]);
    first[j] = narrow<T>(p * ca - q * sa);
    second[j] = narrow<T>(q * ca + p * sa);
  }
  store_pack(y + at, first);
  store_pack(y + at + l.half, second);
}

template <int V, class A>
bool aligned(const A* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (V * sizeof(A)) == 0;
}

template <class T, class A>
void run(const Layout& l, const T* x, const A* cos, const A* sin, const std::int32_t* positions,
         T* y) {
  constexpr int V = 16 / static_cast<int>(sizeof(T));
  const auto grid = [&](int v) { return grid_of(blocks_for(l.pairs, kThreads * v)); };
  if (packable(x, l.half) && packable(y, l.half) && aligned<V>(cos) && aligned<V>(sin))
    launch(rope_kernel<T, A, V>, grid(V), kThreads, 0, l, x, cos, sin, positions, y);
  else
    launch(rope_kernel<T, A, 1>, grid(1), kThreads, 0, l, x, cos, sin, positions, y);
}

}  // namespace

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions,
          std::int64_t offset, bool inverse, std::int64_t turned, const Tensor& y) {
  const std::int64_t all = x.dim(2), heads = x.raw() == y.raw() ? turned : all;
  const Layout l{.pairs = x.dim(0) * x.dim(1) * heads * (x.dim(3) / 2),
                 .tokens = x.dim(1),
                 .heads = heads,
                 .turned = turned,
                 .all = all,
                 .half = x.dim(3) / 2,
                 .table = cos.dim(0),
                 .offset = offset,
                 .given = positions.defined() ? positions.numel() : 1,
                 .inverse = inverse};
  const auto* given = data_or_null<std::int32_t>(positions);
  dispatch_floating(x.dtype(), [&]<class T>() {
    if (cos.dtype() == DType::f64)
      run(l, x.data<T>(), cos.data<double>(), sin.data<double>(), given, y.data<T>());
    else
      run(l, x.data<T>(), cos.data<float>(), sin.data<float>(), given, y.data<T>());
  });
}

}  // namespace weft::cuda
