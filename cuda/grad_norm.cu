// The norm of all gradients together, and the factor that limits it.
#include "weft/core/kernels/optimizer.h"
#include "weft/cuda/reduce.h"
#include "weft/cuda/slots.h"

namespace weft::cuda {
namespace {

constexpr int kSquareLoads = 4;  // packs on the way at a time

// Elements four apart are added up by themselves, then the threads' sums: fixed by the shape.
__global__ void __launch_bounds__(kSlotThreads)
    grad_norm_squares_kernel(const PlacedSlot<GradSlot>* slots, std::int64_t count,
                             double* partials) {
  WEFT_SHARED(shared, double[kSlotThreads / kWarp]);
  const PlacedSlot<GradSlot> placed = slot_of(slots, count, blockIdx.x);
  double sum[4] = {};
  const auto add = [&]<class T>(const Pack<T, 4>& g) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto x = static_cast<double>(widen(g[j]));
      sum[j] += x * x;
    }
  };
  // The dtype is chosen outside of the loop, so that several loads are on the way at a time.
  const auto add_chunk = [&]<class T>() {
    const T* const grad = static_cast<const T*>(placed.slot.grad);
    const Span span(placed, blockIdx.x);
    constexpr int kStep = 4 * kSlotThreads;
    std::int64_t i = span.begin + 4 * threadIdx.x;
    for (; placed.packs && i + (kSquareLoads - 1) * kStep + 4 <= span.end;
         i += kSquareLoads * kStep) {
      Pack<T, 4> g[kSquareLoads];
#pragma unroll
      for (int k = 0; k < kSquareLoads; ++k) g[k] = load_pack<T, 4>(grad + i + k * kStep);
#pragma unroll
      for (int k = 0; k < kSquareLoads; ++k) add(g[k]);
    }
    for (; i < span.end; i += kStep) add(read_as<T, T>(grad, Four::of(i, span.end, placed.packs)));
  };
  if (placed.slot.grad_dtype == DType::f64)
    add_chunk.template operator()<double>();
  else if (placed.slot.grad_dtype == DType::f32)
    add_chunk.template operator()<float>();
  else if (placed.slot.grad_dtype == DType::bf16)
    add_chunk.template operator()<bf16>();
  else
    add_chunk.template operator()<f16>();
  const double total =
      block_reduce<kSlotThreads>((sum[0] + sum[1]) + (sum[2] + sum[3]), shared, 0.0, Sum{});
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

constexpr int kSumThreads = 1024, kSumWarps = kSumThreads / kWarp;
constexpr int kLoads = 8;  // partial sums on the way at a time

// One block: a warp adds up the chunks of a slot, then the block the slots.
__global__ void __launch_bounds__(kSumThreads)
    grad_norm_sums_kernel(const PlacedSlot<GradSlot>* slots, std::int64_t count,
                          const double* partials, double* sums) {
  WEFT_SHARED(shared, double[kSumWarps]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t i = threadIdx.x / kWarp; i < count; i += kSumWarps) {
    const double* first = partials + slots[i].first_chunk;
    const std::int64_t chunks = (slots[i].slot.n + kOptimizerGpuChunk - 1) / kOptimizerGpuChunk;
    double sum = 0;
    for (std::int64_t c = lane; c < chunks; c += kWarp * kLoads) {
      double x[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) x[k] = c + k * kWarp < chunks ? first[c + k * kWarp] : 0.0;
#pragma unroll
      for (int k = 0; k < kLoads; ++k) sum += x[k];
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[i] = sum;
  }
  __syncthreads();
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kSumThreads) total += sums[i];
  total = block_reduce<kSumThreads>(total, shared, 0.0, Sum{});
  if (threadIdx.x == 0) sums[count] = total;
}

// NaN for a norm that is not finite.
__global__ void grad_norm_clip_kernel(const double* squares, double max_norm, double* scale) {
  const double norm = sqrt_of(*squares), factor = max_norm / (norm + 1e-6);
  *scale = norm - norm != 0 ? norm - norm : factor < 1 ? factor : 1;
}

}  // namespace

void grad_squares(const Tensor& partials, const GradSlot* slots, std::int64_t count,
                  const Tensor& sums) {
  const auto table = upload(partials, slots, count,
                            [](const GradSlot& s) { return four_at_once(s.grad, s.grad_dtype); });
  auto* const parts = static_cast<double*>(table.rest);
  launch(grad_norm_squares_kernel, grid_of(table.chunks), kSlotThreads, 0, table.slots, count,
         parts);
  launch(grad_norm_sums_kernel, 1, kSumThreads, 0, table.slots, count, parts, sums.data<double>());
}

void clip_scale(const Tensor& sums, double max_norm, const Tensor& scale) {
  launch(grad_norm_clip_kernel, 1, 1, 0, sums.data<double>() + sums.numel() - 1, max_norm,
         scale.data<double>());
}

}  // namespace weft::cuda
