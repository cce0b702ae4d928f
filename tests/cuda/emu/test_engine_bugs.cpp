// The emulator's errors on typical kernel bugs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/cuda/emu/control.h"
#include "weft/cuda/ptx.h"
#include "weft/cuda/reduce.h"
#include "weft/tests/cuda/emu/run.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::engine_bugs_test {
namespace {

using cuda::kAllLanes;
using emu::Engine;
using emu::Loc;
using test::run_kernel;

constexpr int kDivergent = __LINE__ + 2;
__global__ void divergent_barrier_kernel() {
  if (threadIdx.x < 32) __syncthreads();
}

constexpr int kEarly = __LINE__ + 3;
__global__ void early_return_kernel(unsigned n) {
  if (threadIdx.x >= n) return;
  __syncthreads();
}

constexpr int kBranches = __LINE__ + 3;
__global__ void barriers_in_both_branches_kernel() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}

constexpr int kHalf = __LINE__ + 2;
__global__ void full_mask_in_half_a_warp_kernel() {
  if (threadIdx.x < 16) __shfl_xor_sync(kAllLanes, 1, 1);
}

constexpr int kCollectives = __LINE__ + 3;
__global__ void different_collectives_kernel() {
  if (threadIdx.x < 16)
    __shfl_xor_sync(kAllLanes, 1, 1);
  else
    __ballot_sync(kAllLanes, 1);
}

constexpr int kPlaces = __LINE__ + 3;
__global__ void different_places_kernel() {
  if (threadIdx.x % 2)
    __shfl_xor_sync(kAllLanes, 1, 1);
  else
    __shfl_xor_sync(kAllLanes, 1, 1);
}

constexpr int kMask = __LINE__ + 1;
__global__ void lane_not_in_mask_kernel() { __ballot_sync(0xfffffff7u, 1); }

__global__ void part_of_a_warp_reduces_kernel() { cuda::warp_sum(1.0f); }

constexpr int kUnequal = __LINE__ + 2;
__global__ void unequal_counts_kernel() {
  Engine::get().barrier(1, threadIdx.x < 32 ? 64 : 96, "barrier", Loc::current());
}

constexpr int kDeadlock = __LINE__ + 3;
__global__ void deadlock_kernel() {
  if (threadIdx.x < 32)
    Engine::get().barrier(1, 64, "barrier", Loc::current());
  else
    Engine::get().barrier(2, 64, "barrier", Loc::current());
}

constexpr int kMisaligned = __LINE__ + 3;
__global__ void misaligned_copy_kernel(const float* in) {
  WEFT_SHARED(s, float[8]);
  cuda::cp_async16(s, in + 1);
}

__global__ void unwritten_shared_kernel(float* out) {
  WEFT_SHARED(s, float[64]);
  float* const d = cuda::dynamic_shared<float>();
  if (threadIdx.x < 63) s[threadIdx.x] = d[threadIdx.x] = 1;
  __syncthreads();
  float sum = 0, dynamic = 0;
  for (int i = 0; i < 64; ++i) sum += s[i], dynamic += d[i];
  out[threadIdx.x] = sum;
  out[64 + threadIdx.x] = dynamic;
}

__global__ void missing_barrier_kernel(float* out) {
  WEFT_SHARED(s, float[64]);
  s[threadIdx.x] = 1;
  out[threadIdx.x] = s[threadIdx.x ^ 33];
}

__global__ void missing_copy_wait_kernel(const float* in, float* out) {
  WEFT_SHARED(s, float[64]);
  if (threadIdx.x < 16) cuda::cp_async16(s + threadIdx.x * 4, in + threadIdx.x * 4);
  cuda::cp_async_commit();
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
  __syncthreads();
  cuda::cp_async_wait<0>();  // too late
}

// Two alternating stages. Unless it waits for the barrier, the next copy overwrites a stage that
// other threads still read.
__global__ void copy_before_barrier_kernel(const float* in, float* out, int tiles, int early) {
  WEFT_SHARED(s, float[2][64]);
  const int me = static_cast<int>(threadIdx.x);
  const auto start_copy = [&](int tile) {
    if (me < 16) cuda::cp_async16(&s[tile % 2][4 * me], in + 64 * tile + 4 * me);
    cuda::cp_async_commit();
  };
  start_copy(0);
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    if (early && tile + 1 < tiles) start_copy(tile + 1);
    if (early && tile + 1 < tiles)
      cuda::cp_async_wait<1>();
    else
      cuda::cp_async_wait<0>();
    __syncthreads();
    if (!early && tile + 1 < tiles) start_copy(tile + 1);
    for (int i = 0; i < 64; ++i) sum += s[tile % 2][i];
  }
  out[me] = sum;
}

// The wait covers committed copies, and this copy is never committed.
__global__ void missing_commit_kernel(const float* in, float* out) {
  WEFT_SHARED(s, float[4]);
  cuda::cp_async16(s, in);
  cuda::cp_async_wait<0>();
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void inactive_source_kernel(float* out) {
  const unsigned half = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
  out[threadIdx.x] = __shfl_xor_sync(half, 1.0f, 16);
}

__global__ void much_shared_kernel() {
  WEFT_SHARED(a, char[100000]);
  WEFT_SHARED(b, char[100000]);
  a[0] = b[0] = 0;
}

__global__ void little_shared_kernel() {
  WEFT_SHARED(a, char[8]);
  a[0] = 0;
}

__global__ void throwing_kernel() {
  if (threadIdx.x == 70) Engine::fail("thread 70");
  __syncthreads();
}

__global__ void sound_kernel(int* out) {
  WEFT_SHARED(s, int[128]);
  s[threadIdx.x] = __shfl_xor_sync(kAllLanes, static_cast<int>(threadIdx.x), 1);
  __syncthreads();
  out[threadIdx.x] = s[127 - threadIdx.x];
}

std::string at(int line) { return message("test_engine_bugs.cpp:{}", line); }

// The kernel's error in the current order. A correct kernel must still run afterwards.
template <class... P, class... A>
std::string complaint(void (*kernel)(P...), unsigned threads, A... args) {
  const std::string text = test::error_of([&] { run_kernel(kernel, 1, threads, 0, args...); });
  std::vector<int> got(128);
  run_kernel(sound_kernel, 1, 128, 0, got.data());
  for (int i = 0; i < 128; ++i) CHECK(got[static_cast<std::size_t>(i)] == ((127 - i) ^ 1));
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The largest number of NaNs among the 64 results over all orders.
template <class F>
long nans_in_worst_order(F&& run) {
  long most = 0;
  test::for_each_order([&] {
    std::vector<float> out(128, 0.0f);
    run(out.data());
    most = std::max(most, static_cast<long>(std::count_if(out.begin(), out.end(),
                                                          [](float v) { return std::isnan(v); })));
  });
  return most;
}

}  // namespace

TEST_CASE("emulator: a barrier that not all threads reach is an error") {
  test::for_each_order([] {
    CHECK(contains(complaint(divergent_barrier_kernel, 64), "32 of 64 threads exited"));
    CHECK(contains(complaint(divergent_barrier_kernel, 64), at(kDivergent)));
    CHECK(contains(complaint(early_return_kernel, 64, 40u), "24 of 64 threads exited"));
    CHECK(contains(complaint(early_return_kernel, 64, 40u), at(kEarly)));
  });
  CHECK(complaint(divergent_barrier_kernel, 64) ==
        "emulator: 32 of 64 threads exited without reaching the barrier at " + at(kDivergent));
}

TEST_CASE("emulator: different barriers in both branches are an error") {
  test::for_each_order([] {
    const std::string text = complaint(barriers_in_both_branches_kernel, 64);
    CHECK(contains(text, "threads of one block wait at different barriers: "));
    CHECK(contains(text, at(kBranches)));
    CHECK(contains(text, at(kBranches + 2)));
  });
}

TEST_CASE("emulator: waiting for lanes that have exited is an error") {
  CHECK(
      complaint(full_mask_in_half_a_warp_kernel, 32) ==
      "emulator: threads of block (0, 0, 0) wait for ever: threads 0 to 15 in __shfl_xor_sync at " +
          at(kHalf) + "; 16 of 32 have exited");
  test::for_each_order(
      [] { CHECK(contains(complaint(full_mask_in_half_a_warp_kernel, 32), at(kHalf))); });
}

TEST_CASE("emulator: lanes at different collectives or places are an error") {
  test::for_each_order([] {
    const std::string text = complaint(different_collectives_kernel, 32);
    CHECK(contains(text, "lanes of one warp wait at different places: "));
    CHECK(contains(text, "in __shfl_xor_sync at " + at(kCollectives)));
    CHECK(contains(text, "in __ballot_sync at " + at(kCollectives + 2)));
    const std::string places = complaint(different_places_kernel, 32);
    CHECK(contains(places, at(kPlaces)));
    CHECK(contains(places, at(kPlaces + 2)));
  });
}

TEST_CASE("emulator: a mask without the calling lane and a partial warp are errors") {
  test::for_each_order([] {
    CHECK(complaint(lane_not_in_mask_kernel, 32) ==
          "emulator: __ballot_sync: the mask must name the calling lane 3, at " + at(kMask));
    CHECK(contains(complaint(part_of_a_warp_reduces_kernel, 40),
                   "emulator: warp_reduce: all 32 lanes of a warp must call it, at reduce.h:"));
  });
}

TEST_CASE("emulator: a deadlock at different barriers is an error") {
  const std::string text = complaint(deadlock_kernel, 64);
  CHECK(contains(text, "wait for ever"));
  CHECK(contains(text, "threads 0 to 31 in barrier at " + at(kDeadlock)));
  CHECK(contains(text, "threads 32 to 63 in barrier at " + at(kDeadlock + 2)));
  CHECK(contains(text, "0 of 64 have exited"));
  CHECK(contains(complaint(unequal_counts_kernel, 96), "all must expect as many threads"));
  CHECK(contains(complaint(unequal_counts_kernel, 96), at(kUnequal)));
}

TEST_CASE("emulator: a misaligned asynchronous copy is an error") {
  alignas(16) float in[8] = {};
  CHECK(complaint(misaligned_copy_kernel, 1, static_cast<const float*>(in)) ==
        "emulator: cp.async: the global address must be a multiple of 16, is 4 past one, at " +
            at(kMisaligned));
}

TEST_CASE("emulator: unwritten shared memory is NaN in every block") {
  test::for_each_order([] {
    std::vector<float> out(128);
    run_kernel(unwritten_shared_kernel, 2, 64, 64 * sizeof(float), out.data());
    CHECK(std::all_of(out.begin(), out.end(), [](float v) { return std::isnan(v); }));
  });
}

TEST_CASE("emulator: a missing barrier, wait or lane gives NaN") {
  CHECK(nans_in_worst_order([](float* out) { run_kernel(missing_barrier_kernel, 1, 64, 0, out); }) >
        0);
  alignas(16) float in[64] = {};
  CHECK(nans_in_worst_order(
            [&](float* out) { run_kernel(missing_copy_wait_kernel, 1, 64, 0, in, out); }) == 64);
  CHECK(nans_in_worst_order(
            [](float* out) { run_kernel(inactive_source_kernel, 1, 32, 0, out); }) == 32);
}

TEST_CASE("emulator: a copy issued before the barrier that frees its stage gives wrong sums") {
  constexpr int kTiles = 5;
  alignas(16) float in[64 * kTiles];
  for (int i = 0; i < 64 * kTiles; ++i) in[i] = static_cast<float>(1 + i / 64);
  const auto wrong = [&](int tiles, int early) {
    std::vector<float> out(64);
    run_kernel(copy_before_barrier_kernel, 1, 64, 0, in, out.data(), tiles, early);
    const auto want = static_cast<float>(64 * tiles * (tiles + 1) / 2);
    return std::count_if(out.begin(), out.end(), [=](float v) { return v != want; });
  };
  int seen = 0;
  test::for_each_order([&] {
    CHECK(wrong(kTiles, 0) == 0);
    CHECK(wrong(2, 1) == 0);  // no stage is reused
    if (wrong(kTiles, 1) > 0) ++seen;
  });
  CHECK(seen >= 3);  // where copies arrive early and warps drift apart
}

TEST_CASE("emulator: copies without a wait are an error") {
  alignas(16) float in[4] = {}, out[1];
  test::for_each_order([&] {
    CHECK(test::error_of([&] { run_kernel(missing_commit_kernel, 1, 1, 0, in, out); }) ==
          "emulator: thread 0 ends with asynchronous copies that nobody waited for");
  });
}

TEST_CASE("emulator: too much shared memory per block is an error") {
  const std::int64_t before = emu::control.shared_bytes;
  emu::control.shared_bytes = Engine::kShared;
  CHECK(test::error_of([] { run_kernel(much_shared_kernel, 1, 1, 40000); }) ==
        "emulator: a block must use at most 232448 bytes of shared memory, got 240192");
  run_kernel(much_shared_kernel, 1, 1, 32000);
  // Dynamic memory begins at a multiple of 128.
  const std::size_t rest = Engine::kShared - 128;
  run_kernel(little_shared_kernel, 1, 1, rest);
  CHECK(test::error_of([&] { run_kernel(little_shared_kernel, 1, 1, rest + 1); }) ==
        "emulator: a block must use at most 232448 bytes of shared memory, got 232449");
  emu::control.shared_bytes = before;
}

TEST_CASE("emulator: an error in one thread stops the block and is rethrown") {
  test::for_each_order([] { CHECK(complaint(throwing_kernel, 128) == "emulator: thread 70"); });
}

}  // namespace weft::engine_bugs_test
