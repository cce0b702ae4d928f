// Errors that only a sanitizer detects, one per run: emulator_bugs NAME must end with its report.
#include <cstdio>
#include <cstring>

#include "weft/cuda/ptx.h"
#include "weft/cuda/reduce.h"
#include "weft/tests/cuda/emu/run.h"

namespace weft {
namespace {

using test::run_kernel;

__global__ void static_shared_kernel(float* out, int past) {
  WEFT_SHARED(a, float[64]);
  WEFT_SHARED(b, float[64]);
  b[threadIdx.x] = 0;
  float* const p = a;  // UBSan would check an array's own index
  p[threadIdx.x + past] = 1;
  __syncthreads();
  out[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}

__global__ void dynamic_shared_kernel(float* out, int past) {
  float* const s = cuda::dynamic_shared<float>();
  s[threadIdx.x + past] = 1;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void global_kernel(float* out, int n, int past) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n + past) out[i] = 1;
}

__global__ void local_array_kernel(float* out, int past) {
  float a[4] = {1, 2, 3, 4};
  __syncthreads();
  out[threadIdx.x] = a[threadIdx.x % 4 + past];
}

__global__ void misaligned_kernel(float* out, int past) {
  *reinterpret_cast<float4*>(out + 4 * threadIdx.x + past) = float4{1, 2, 3, 4};
}

__global__ void race_in_block_kernel(float* out) { out[0] += 1; }

__global__ void race_between_blocks_kernel(float* out) { out[0] += 1; }

// A barrier orders only the threads of its own block.
__global__ void race_past_barriers_kernel(float* out, int missing) {
  for (int round = 0; round < 3; ++round) {
    __syncthreads();
    __shfl_xor_sync(~0u, 0, 1);
    if (round == 1 && threadIdx.x == 0) out[missing ? 0 : blockIdx.x] += 1;
  }
}

// More threads than there are fibers: the last thread of the second block runs on the fiber of the
// first thread of the first block.
__global__ void race_on_fiber_kernel(float* out) {
  if (threadIdx.x == (blockIdx.x == 0 ? 0 : blockDim.x - 1)) out[0] += 1;
}

__global__ void missing_barrier_kernel(float* out, int missing) {
  WEFT_SHARED(s, float[64]);
  s[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (!missing) __syncthreads();
  out[threadIdx.x] = s[threadIdx.x ^ 33];
}

// The second round overwrites values that other threads may still read.
__global__ void missing_second_barrier_kernel(float* out, int missing) {
  WEFT_SHARED(s, float[64]);
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    s[threadIdx.x] = static_cast<float>(round);
    __syncthreads();
    sum += s[threadIdx.x ^ 33];
    if (!missing) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

// Two alternating stages: unless it waits for the barrier, the next copy overwrites a stage that
// other threads may still read.
__global__ void early_copy_kernel(const float* in, float* out, int early) {
  WEFT_SHARED(s, float[2][64]);
  const int me = static_cast<int>(threadIdx.x);
  const auto start_copy = [&](int tile) {
    if (tile < 4 && me < 16) cuda::cp_async16(&s[tile % 2][4 * me], in + 4 * me);
    cuda::cp_async_commit();
  };
  start_copy(0);
  float sum = 0;
  for (int tile = 0; tile < 4; ++tile) {
    if (early) start_copy(tile + 1);
    if (early)
      cuda::cp_async_wait<1>();
    else
      cuda::cp_async_wait<0>();
    __syncthreads();
    if (!early) start_copy(tile + 1);
    sum += s[tile % 2][me ^ 33];
  }
  cuda::cp_async_wait<0>();
  out[me] = sum;
}

__global__ void atomics_kernel(int* out) {
  WEFT_SHARED(s, int);
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  atomicAdd(&s, 1);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out, s);
}

__global__ void clear_kernel(int* out) { *out = 0; }

// Lanes and threads that pass values on through every kind of synchronisation.
__global__ void meetings_kernel(int* out) {
  WEFT_SHARED(sums, int[32]);
  WEFT_SHARED(s, int[64]);
  const int me = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    int v = cuda::block_reduce<64>(me, sums, 0, cuda::Sum{});
    v += __shfl_xor_sync(me % 2 ? 0xaaaaaaaau : 0x55555555u, v, 2);
    s[me] = v;
    __syncwarp();
    v = s[me ^ 1];
    __syncwarp();
    s[me] = 2 * v;
    emu::Engine::get().barrier(1 + me / 32, 32, "barrier", emu::Loc::current());
    v = s[me ^ 7];
    __syncthreads();
    if (v < 0) atomicAdd(out, v);
  }
}

void run(const char* name) {
  constexpr Device kGpu{Device::Kind::cuda, 0};
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  const Tensor t = Tensor::empty({64}, DType::f32, kGpu);
  const Tensor neighbour = Tensor::empty({64}, DType::f32, kGpu);
  auto* const out = t.data<float>();
  // The next grid reuses the fibers of this one; its threads must still be unordered.
  run_kernel(global_kernel, 2, 64, 0, out, 64, 0);
  if (is("static_shared")) run_kernel(static_shared_kernel, 1, 64, 0, out, 1);
  if (is("dynamic_shared")) run_kernel(dynamic_shared_kernel, 1, 64, 256, out, 1);
  if (is("global")) run_kernel(global_kernel, 2, 64, 0, out, 64, 1);
  if (is("local_array")) run_kernel(local_array_kernel, 1, 64, 0, out, 1);
  if (is("misaligned")) run_kernel(misaligned_kernel, 1, 8, 0, out, 1);
  if (is("freed")) {
    float* gone = nullptr;
    {
      const Tensor dropped = Tensor::empty({64}, DType::f32, kGpu);
      gone = dropped.data<float>();
    }
    run_kernel(global_kernel, 1, 64, 0, gone, 64, 0);
  }
  if (is("race_in_block")) run_kernel(race_in_block_kernel, 1, 2, 0, out);
  // One thread a block: a fiber that the next block takes over would hide the race.
  if (is("race_between_blocks")) run_kernel(race_between_blocks_kernel, 2, 1, 0, out);
  if (is("race_past_barriers")) run_kernel(race_past_barriers_kernel, 2, 64, 0, out, 1);
  if (is("race_on_fiber")) run_kernel(race_on_fiber_kernel, 2, 1024, 0, out);
  if (is("missing_barrier")) run_kernel(missing_barrier_kernel, 1, 64, 0, out, 1);
  if (is("missing_second_barrier")) run_kernel(missing_second_barrier_kernel, 1, 64, 0, out, 1);
  if (is("early_copy")) run_kernel(early_copy_kernel, 1, 64, 0, neighbour.data<float>(), out, 1);
  if (is("sound")) {
    const Tensor count = Tensor::empty({1}, DType::i32, kGpu);
    auto* const n = count.data<std::int32_t>();
    run_kernel(static_shared_kernel, 1, 64, 0, out, 0);
    run_kernel(dynamic_shared_kernel, 1, 64, 256, out, 0);
    run_kernel(global_kernel, 2, 64, 0, out, 64, 0);
    run_kernel(local_array_kernel, 1, 64, 0, out, 0);
    run_kernel(misaligned_kernel, 1, 16, 0, out, 0);
    run_kernel(race_past_barriers_kernel, 2, 64, 0, out, 0);
    run_kernel(missing_barrier_kernel, 1, 64, 0, out, 0);
    run_kernel(missing_second_barrier_kernel, 1, 64, 0, out, 0);
    run_kernel(early_copy_kernel, 1, 64, 0, neighbour.data<float>(), out, 0);
    run_kernel(clear_kernel, 1, 1, 0, n);
    run_kernel(atomics_kernel, 3, 64, 0, n);
    run_kernel(meetings_kernel, 3, 64, 0, n);
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  weft::run(argv[1]);
  std::puts("no report");
  return 0;
}
