#include "weft/cuda/ptx.h"
#include "weft/tests/cuda/ptx_kernels.h"

namespace weft::test {
namespace {

using namespace cuda;

constexpr int kTileBytes = 2048;
constexpr int kCopies = 64;

template <class T>
__global__ void mma_kernel(const std::uint32_t* a, const std::uint32_t* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  std::uint32_t fragment[4];
  float sums[4];
  for (int i = 0; i < 4; ++i) fragment[i] = a[4 * lane + i];
  for (int i = 0; i < 4; ++i) sums[i] = c[4 * lane + i];
  mma_16816<T>(sums, fragment, b[2 * lane], b[2 * lane + 1]);
  for (int i = 0; i < 4; ++i) c[4 * lane + i] = sums[i];
}

template <bool Transposed>
__global__ void ldmatrix_kernel(const std::uint8_t* tile, const std::int32_t* offset,
                                std::uint32_t* out) {
  WEFT_SHARED(bytes, std::uint8_t[kTileBytes]);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < kTileBytes; i += kWarp) bytes[i] = tile[i];
  __syncthreads();
  std::uint32_t r[4];
  ldmatrix_x4<Transposed>(r, bytes + offset[lane]);
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i];
}

__global__ void cp_async_kernel(const uint4* from, const std::int32_t* present, uint4* out) {
  WEFT_SHARED(arrived, uint4[2][kCopies]);
  const int i = static_cast<int>(threadIdx.x), other = kCopies - 1 - i;
  cp_async16(&arrived[0][i], from + i, present[i] != 0);
  cp_async_commit();
  cp_async16(&arrived[1][i], from + i, present[i] != 0);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  out[other] = arrived[0][other];
  cp_async_wait<0>();
  __syncthreads();
  out[kCopies + other] = arrived[1][other];
}

__global__ void misaligned_cp_async_kernel(const std::uint8_t* from, int shared_skew,
                                           int global_skew) {
  WEFT_SHARED(arrived, std::uint8_t[64]);
  cp_async16(arrived + shared_skew, from + global_skew);
  cp_async_commit();
  cp_async_wait<0>();
}

__global__ void cp_async_to_global_kernel(std::uint8_t* p) { cp_async16(p, p); }

template <class T>
__global__ void pack_kernel(const float* x, std::uint32_t* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) out[i] = pack_halves<T>(x[2 * i], x[2 * i + 1]);
}

template <class T>
__global__ void round_kernel(const float* x, T* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = round_half<T>(x[i]);
}

__global__ void widen_kernel(const f16* x, float* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = widen_f16(x[i]);
}

__global__ void exp2_kernel(const float* x, float* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = exp2_approx(x[i]);
}

std::uint32_t* words(const Tensor& t) {
  return reinterpret_cast<std::uint32_t*>(t.data<std::int32_t>());
}
uint4* quads(const Tensor& t) { return reinterpret_cast<uint4*>(t.data<std::int32_t>()); }

}  // namespace

void run_mma(DType dtype, const Tensor& a, const Tensor& b, const Tensor& c) {
  launch(dtype == DType::bf16 ? mma_kernel<bf16> : mma_kernel<f16>, dim3(1), dim3(kWarp), 0,
         words(a), words(b), c.data<float>());
}
void run_ldmatrix(bool transposed, const Tensor& tile, const Tensor& offset, const Tensor& out) {
  launch(transposed ? ldmatrix_kernel<true> : ldmatrix_kernel<false>, dim3(1), dim3(kWarp), 0,
         tile.data<std::uint8_t>(), offset.data<std::int32_t>(), words(out));
}
void run_cp_async(const Tensor& from, const Tensor& present, const Tensor& out) {
  launch(cp_async_kernel, dim3(1), dim3(kCopies), 0, quads(from), present.data<std::int32_t>(),
         quads(out));
}
void run_misaligned_cp_async(const Tensor& from, int shared_skew, int global_skew) {
  launch(misaligned_cp_async_kernel, dim3(1), dim3(1), 0, from.data<std::uint8_t>(), shared_skew,
         global_skew);
}
void run_cp_async_to_global(const Tensor& from) {
  launch(cp_async_to_global_kernel, dim3(1), dim3(1), 0, from.data<std::uint8_t>());
}
void run_pack(DType dtype, const Tensor& x, const Tensor& out) {
  const auto n = static_cast<int>(out.numel());
  launch(dtype == DType::bf16 ? pack_kernel<bf16> : pack_kernel<f16>, dim3(1),
         dim3(static_cast<unsigned>(n)), 0, x.data<float>(), words(out), n);
}
void run_round(const Tensor& x, const Tensor& y) {
  const auto n = static_cast<int>(x.numel());
  const auto run = [&]<class T>() {
    launch(round_kernel<T>, dim3(1), dim3(static_cast<unsigned>(n)), 0, x.data<float>(),
           y.data<T>(), n);
  };
  y.dtype() == DType::bf16 ? run.template operator()<bf16>() : run.template operator()<f16>();
}
void run_widen(const Tensor& x, const Tensor& y) {
  const auto n = static_cast<int>(x.numel());
  launch(widen_kernel, dim3(1), dim3(static_cast<unsigned>(n)), 0, x.data<f16>(), y.data<float>(),
         n);
}
void run_exp2(const Tensor& x, const Tensor& y) {
  const auto n = static_cast<int>(x.numel());
  launch(exp2_kernel, dim3(1), dim3(static_cast<unsigned>(n)), 0, x.data<float>(), y.data<float>(),
         n);
}

}  // namespace weft::test
