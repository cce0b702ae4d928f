// layer_norm (centred) and rms_norm. A row stays in the registers of the threads that share it: it
// is read once, although the variance takes two passes, since E[x^2] - E[x]^2 cancels when the mean
// is large.
#include "weft/core/kernels/norm.h"
#include "weft/cuda/fp8.h"
#include "weft/cuda/norm_sums.h"
#include "weft/cuda/row_plan.h"

namespace weft::cuda {
namespace {

/// A null pointer means that the operand is absent.
template <class T>
struct ForwardArgs {
  std::int64_t rows, C;
  const T *x, *residual, *weight, *bias;
  Real<T> eps, offset;  // offset: weight_offset()
  T *sum, *y;
  Real<T>*mean, *rstd;
  float* amax;
};

/// The same, and where FP8 codes go: in one struct, since with a second parameter the kernel
/// spills.
template <class T>
struct CodesArgs : ForwardArgs<T> {
  RowsOut rounded;
};

/// What the normalised values are multiplied by.
template <bool kCentred, class T>
__device__ __forceinline__ Real<T> gain(T weight, Real<T> offset) {
  return kCentred ? widen(weight) : widen(weight) + offset;
}

template <bool kCentred, class T, int Group, int V, int Held, class Args>
__device__ __forceinline__ void norm_rows(const Args& a) {
  using R = Real<T>;
  using Plan = RowPlan<Group, V, Held>;
  WEFT_SHARED(shared, R[Plan::kThreads / kWarp]);
  const std::int64_t r = std::int64_t{blockIdx.x} * Plan::kGroups + threadIdx.x / Group;
  const bool live = r < a.rows;
  const std::int64_t row = r * a.C;
  const auto each = [&](auto f) { Plan::each(a.C, live, f); };
  const auto read = [](Pack<T, V>& v, const T* p) { v = load_pack<T, V>(p); };

  Pack<T, V> x[Plan::kKept];
  const T* from = a.x + row;
  if constexpr (Held > 0) each([&](int k, std::int64_t i) { read(x[k], from + i); });
  if (a.residual) {
    Pack<T, V> more[Plan::kKept];
    if constexpr (Held > 0)
      each([&](int k, std::int64_t i) { read(more[k], a.residual + row + i); });
    each([&](int k, std::int64_t i) {
      if constexpr (Held == 0) {
        read(x[k], from + i);
        read(more[k], a.residual + row + i);
      }
#pragma unroll
      for (int j = 0; j < V; ++j) x[k][j] = narrow<T>(widen(x[k][j]) + widen(more[k][j]));
      store_pack(a.sum + row + i, x[k]);
    });
    from = a.sum + row;
  }

  R mean = 0, squares = 0;
  if constexpr (kCentred) {
    each([&](int k, std::int64_t i) {
      if constexpr (Held == 0) read(x[k], from + i);
#pragma unroll
      for (int j = 0; j < V; ++j) mean += widen(x[k][j]);
    });
    mean = group_sum<Group>(mean, shared) / static_cast<R>(a.C);
  }
  each([&](int k, std::int64_t i) {
    if constexpr (Held == 0) read(x[k], from + i);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const R d = widen(x[k][j]) - mean;
      squares += d * d;
    }
  });
  squares = group_sum<Group>(squares, shared);
  const R rstd = rsqrt_of(squares / static_cast<R>(a.C) + a.eps);
  if (live && threadIdx.x % Group == 0) {
    if constexpr (kCentred) a.mean[r] = mean;
    a.rstd[r] = rstd;
  }

  R most = 0;
  each([&](int k, std::int64_t i) {
    const auto weight = pack_or<T, V>(a.weight, i, 1), bias = pack_or<T, V>(a.bias, i, 0);
    Pack<T, V> y;
    if constexpr (Held == 0) read(x[k], from + i);
#pragma unroll
    for (int j = 0; j < V; ++j)
      y[j] = narrow<T>((widen(x[k][j]) - mean) * rstd * gain<kCentred>(weight[j], a.offset) +
                       widen(bias[j]));
    store_pack(a.y + row + i, y);
    if (!a.amax) return;
#pragma unroll
    for (int j = 0; j < V; ++j) most = Max{}(most, absolute(widen(y[j])));
  });
  if constexpr (std::is_same_v<Args, CodesArgs<T>>)
    store_codes<Group, V>(a.rounded, a.y + row, r, a.C, live);
  if (!a.amax) return;
  most = group_max<Group>(most, shared);
  if (live && threadIdx.x % Group == 0) a.amax[r] = static_cast<float>(most);
}

template <bool kCentred, class T, int Group, int V, int Held>
__global__ void __launch_bounds__(RowPlan<Group, V, Held>::kThreads)
    norm_fwd_kernel(ForwardArgs<T> a) {
  norm_rows<kCentred, T, Group, V, Held>(a);
}

/// Writes FP8 codes too, a kernel of its own so that models without them do not pay for it.
template <bool kCentred, class T, int Group, int V, int Held>
__global__ void __launch_bounds__(RowPlan<Group, V, Held>::kThreads)
    norm_fwd_codes_kernel(CodesArgs<T> a) {
  norm_rows<kCentred, T, Group, V, Held>(a);
}

/// partial_weight and partial_bias are (chunks, C).
template <class T>
struct BackwardArgs {
  std::int64_t rows, C, chunks = norm_chunks(rows, true);
  const T *x, *dy, *weight, *dsum;
  Real<T> offset;  // weight_offset()
  const Real<T>*mean, *rstd;
  T* dx;
  Real<T>*partial_weight = nullptr, *partial_bias = nullptr;
};

// A block has the rows of one chunk, and each group of threads every kGroups-th of these.
template <bool kCentred, class T, int Group, int V, int Held>
__global__ void __launch_bounds__(RowPlan<Group, V, Held>::kThreads,
                                  RowPlan<Group, V, Held>::kThreads == 128 ? 3 : 1)
    norm_bwd_kernel(BackwardArgs<T> a) {
  using R = Real<T>;
  using Plan = RowPlan<Group, V, Held>;
  WEFT_SHARED(shared, R[Plan::kThreads / kWarp][2]);
  const std::int64_t chunk = blockIdx.x;
  const std::int64_t begin = a.rows * chunk / a.chunks, end = a.rows * (chunk + 1) / a.chunks;
  const int group = static_cast<int>(threadIdx.x) / Group;
  const auto read = [](Pack<T, V>& v, const T* p) { v = load_pack<T, V>(p); };
  R* const to_weight = a.partial_weight ? a.partial_weight + chunk * a.C : nullptr;
  R* const to_bias = a.partial_bias ? a.partial_bias + chunk * a.C : nullptr;

  // Sums over this thread's rows: in registers, or where each column has one thread, in memory.
  R dweight[Plan::kKept][V] = {}, dbias[Plan::kKept][V] = {};
  if constexpr (Held == 0)
    Plan::each(a.C, true, [&](int, std::int64_t i) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (to_weight) to_weight[i + j] = 0;
        if (to_bias) to_bias[i + j] = 0;
      }
    });

  for (std::int64_t first = begin; first < end; first += Plan::kGroups) {
    const std::int64_t r = first + group, row = r * a.C;
    const bool live = r < end;
    const auto each = [&](auto f) { Plan::each(a.C, live, f); };
    const R mean = kCentred && live ? a.mean[r] : R(0), rstd = live ? a.rstd[r] : R(0);
    Pack<T, V> x[Plan::kKept], dy[Plan::kKept], dsum[Plan::kKept];
    const auto fetch = [&](int k, std::int64_t i) {
      read(x[k], a.x + row + i);
      read(dy[k], a.dy + row + i);
      dsum[k] = pack_or<T, V>(a.dsum, row + i, 0);
    };
    if constexpr (Held > 0) each(fetch);

    R sum_g = 0, sum_gx = 0;  // of g = dy gain, and of g xhat
    each([&](int k, std::int64_t i) {
      const auto weight = pack_or<T, V>(a.weight, i, 1);
      if constexpr (Held == 0) fetch(k, i);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const R g = widen(dy[k][j]) * gain<kCentred>(weight[j], a.offset);
        sum_g += g;
        sum_gx += g * ((widen(x[k][j]) - mean) * rstd);
      }
    });
    group_sums<Group>(sum_g, sum_gx, shared);
    const R mean_g = kCentred ? sum_g / static_cast<R>(a.C) : R(0);
    const R mean_gx = sum_gx / static_cast<R>(a.C);

    each([&](int k, std::int64_t i) {
      const auto weight = pack_or<T, V>(a.weight, i, 1);
      Pack<T, V> dx;
      if constexpr (Held == 0) fetch(k, i);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const R d = widen(dy[k][j]), xhat = (widen(x[k][j]) - mean) * rstd;
        const R g = d * gain<kCentred>(weight[j], a.offset);
        dx[j] = narrow<T>((g - mean_g - xhat * mean_gx) * rstd + widen(dsum[k][j]));
        if constexpr (Held > 0) {
          dweight[k][j] += d * xhat;
          dbias[k][j] += d;
        } else {
          if (to_weight) to_weight[i + j] += d * xhat;
          if (to_bias) to_bias[i + j] += d;
        }
      }
      store_pack(a.dx + row + i, dx);
    });
  }

  if constexpr (Held > 0) {
    // The groups add their sums one after the other.
    const auto put = [&](const R(&mine)[Plan::kKept][V], R* out) {
      for (int turn = 0; turn < Plan::kGroups; ++turn) {
        if (turn == group)
          Plan::each(a.C, true, [&](int k, std::int64_t i) {
#pragma unroll
            for (int j = 0; j < V; ++j)
              out[i + j] = turn == 0 ? mine[k][j] : out[i + j] + mine[k][j];
          });
        if constexpr (Plan::kGroups > 1) __syncthreads();
      }
    };
    if (to_weight) put(dweight, to_weight);
    if (to_bias) put(dbias, to_bias);
  }
}

template <bool kCentred>
void forward(const NormFwdIn& in, const NormFwdOut& out) {
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    const ForwardArgs<T> a{.rows = out.rstd.numel(),
                           .C = in.x.dim(-1),
                           .x = in.x.data<T>(),
                           .residual = data_or_null<T>(in.residual),
                           .weight = data_or_null<T>(in.weight),
                           .bias = data_or_null<T>(in.bias),
                           .eps = static_cast<R>(in.eps),
                           .offset = weight_offset<R>(in.weight, in.zero_centered),
                           .sum = data_or_null<T>(out.sum),
                           .y = out.y.data<T>(),
                           .mean = data_or_null<R>(out.mean),
                           .rstd = out.rstd.data<R>(),
                           .amax = data_or_null<float>(out.rounded.amax)};
    const bool packs = packable(a.x, a.C) && packable(a.residual, a.C) && packable(a.weight, a.C) &&
                       packable(a.bias, a.C) && packable(a.sum, a.C) && packable(a.y, a.C);
    with_row_plan<T, 4>(a.C, packs, [&]<int Group, int V, int Held>(RowPlan<Group, V, Held> plan) {
      const dim3 grid = grid_of(blocks_for(a.rows, plan.kGroups));
      if constexpr (Held > 0 && (std::is_same_v<T, float> || std::is_same_v<T, bf16>))
        if (out.rounded.codes.defined())
          return launch(norm_fwd_codes_kernel<kCentred, T, Group, V, Held>, grid, plan.kThreads, 0,
                        CodesArgs<T>{a, RowsOut(out.rounded)});
      launch(norm_fwd_kernel<kCentred, T, Group, V, Held>, grid, plan.kThreads, 0, a);
      if constexpr (Held == 0) store_codes_after(out.rounded, out.y);
    });
  });
}

template <bool kCentred>
void backward(const NormBwdIn& in, const NormBwdOut& out) {
  dispatch_floating(in.x.dtype(), [&]<class T>() {
    using R = Real<T>;
    BackwardArgs<T> a{.rows = in.rstd.numel(),
                      .C = in.x.dim(-1),
                      .x = in.x.data<T>(),
                      .dy = in.dy.data<T>(),
                      .weight = data_or_null<T>(in.weight),
                      .dsum = data_or_null<T>(in.dsum),
                      .offset = weight_offset<R>(in.weight, in.zero_centered),
                      .mean = data_or_null<R>(in.mean),
                      .rstd = in.rstd.data<R>(),
                      .dx = out.dx.data<T>()};
    R* partial = data_or_null<R>(out.partials);
    if (out.dweight.defined()) a.partial_weight = std::exchange(partial, partial + a.chunks * a.C);
    if (out.dbias.defined()) a.partial_bias = partial;
    const bool packs = packable(a.x, a.C) && packable(a.dy, a.C) && packable(a.weight, a.C) &&
                       packable(a.dsum, a.C) && packable(a.dx, a.C);
    with_row_plan<T, 3>(a.C, packs, [&]<int Group, int V, int Held>(RowPlan<Group, V, Held> plan) {
      launch(norm_bwd_kernel<kCentred, T, Group, V, Held>, grid_of(a.chunks), plan.kThreads, 0, a);
    });
    norm_sums<T>(a.chunks, a.C, {a.partial_weight, out.dweight, out.adds_weight},
                 {a.partial_bias, out.dbias, out.adds_bias});
  });
}

}  // namespace

void layer_norm_fwd(const NormFwdIn& in, const NormFwdOut& out) { forward<true>(in, out); }
void layer_norm_bwd(const NormBwdIn& in, const NormBwdOut& out) { backward<true>(in, out); }
void rms_norm_fwd(const NormFwdIn& in, const NormFwdOut& out) { forward<false>(in, out); }
void rms_norm_bwd(const NormBwdIn& in, const NormBwdOut& out) { backward<false>(in, out); }

}  // namespace weft::cuda
