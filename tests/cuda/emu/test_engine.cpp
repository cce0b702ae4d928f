// The emulator runs correct kernels like a GPU in every order.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "weft/cuda/emu/control.h"
#include "weft/cuda/ptx.h"
#include "weft/cuda/reduce.h"
#include "weft/tests/cuda/emu/run.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::engine_test {
namespace {

using cuda::kAllLanes;
using emu::Engine;
using emu::Loc;
using emu::Order;
using test::for_each_order;
using test::run_kernel;

enum class Shuffle : std::uint8_t { index, up, down, exchange };

template <class T>
__global__ void shuffle_kernel(Shuffle how, int by, int width, T* out) {
  const T v = static_cast<T>(100 + threadIdx.x);
  T got{};
  switch (how) {
    case Shuffle::index:
      got = __shfl_sync(kAllLanes, v, by, width);
      break;
    case Shuffle::up:
      got = __shfl_up_sync(kAllLanes, v, by, width);
      break;
    case Shuffle::down:
      got = __shfl_down_sync(kAllLanes, v, by, width);
      break;
    case Shuffle::exchange:
      got = __shfl_xor_sync(kAllLanes, v, by, width);
      break;
  }
  out[threadIdx.x] = got;
}

// The lane that `lane` reads, by the rules of the instruction set (shfl.sync).
int source_lane(Shuffle how, int lane, int by, int width) {
  const int segment = 32 - width, low = lane & segment, high = low | (31 & ~segment);
  switch (how) {
    case Shuffle::index:
      return low | (by & ~segment & 31);
    case Shuffle::up:
      return lane - by >= low ? lane - by : lane;
    case Shuffle::down:
      return lane + by <= high ? lane + by : lane;
    case Shuffle::exchange:
      return (lane ^ by) <= high ? lane ^ by : lane;
  }
  return lane;
}

template <class T>
void check_shuffles() {
  for (const Shuffle how : {Shuffle::index, Shuffle::up, Shuffle::down, Shuffle::exchange})
    for (const int width : {1, 2, 8, 16, 32})
      for (const int by : {0, 1, 3, 8, 17, 31}) {
        CAPTURE(static_cast<int>(how));
        CAPTURE(width);
        CAPTURE(by);
        std::vector<T> got(64), want(64);
        for (int i = 0; i < 64; ++i)
          want[static_cast<std::size_t>(i)] =
              static_cast<T>(100 + (i & 32) + source_lane(how, i & 31, by, width));
        run_kernel(shuffle_kernel<T>, 1, 64, 0, how, by, width, got.data());
        CHECK(got == want);
      }
}

// Even and odd lanes separately, then the first eight lanes and the others at two different rates.
__global__ void partial_mask_kernel(int* apart, int* rounds) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned mine = lane % 2 ? 0xaaaaaaaau : 0x55555555u;
  apart[threadIdx.x] = __shfl_xor_sync(mine, lane, 2);
  int sum = 0;
  if (lane < 8) {
    for (int i = 0; i < 3; ++i) sum += __shfl_sync(0xffu, lane + i, i, 8);
  } else {
    for (int i = 0; i < 5; ++i) sum += __popc(__ballot_sync(0xffffff00u, lane % (i + 1) == 0));
  }
  __syncwarp();
  rounds[threadIdx.x] = sum;
}

struct Votes {
  unsigned ballot, any, all, match;
  bool operator==(const Votes&) const = default;
};
__global__ void vote_kernel(unsigned bits, Votes* out) {
  const bool yes = bits >> threadIdx.x % 32 & 1;
  Votes v;
  v.ballot = __ballot_sync(kAllLanes, yes);
  v.any = static_cast<unsigned>(__any_sync(kAllLanes, yes));
  v.all = static_cast<unsigned>(__all_sync(kAllLanes, yes));
  v.match = __match_any_sync(kAllLanes, threadIdx.x % 32 * threadIdx.x % 5);
  out[threadIdx.x] = v;
}

struct Atomics {
  int sum = 0, most = -1000, least = 1000, exchanged = -1, swapped = -1;
  unsigned long long wide = 0;
  float real = 0;
};
__global__ void atomics_kernel(Atomics* a, int* tickets) {
  const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  tickets[atomicAdd(&a->sum, 1)] = me;
  atomicMax(&a->most, me);
  atomicMin(&a->least, -me);
  atomicExch(&a->exchanged, me);
  atomicCAS(&a->swapped, -1, me);
  atomicAdd(&a->wide, 1ull << 33);
  atomicAdd(&a->real, 0.5f);
}

// Each thread reads what another thread of the block wrote, through both kinds of shared memory.
__global__ void exchange_kernel(int* out) {
  int* const dynamic = cuda::dynamic_shared<int>();
  WEFT_SHARED(fixed, int[1024]);
  WEFT_SHARED(pair, double[2]);
  const int n = static_cast<int>(blockDim.x), me = static_cast<int>(threadIdx.x);
  dynamic[me] = me;
  __syncthreads();
  fixed[me] = dynamic[n - 1 - me];
  if (me == n - 1) pair[1] = me;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      fixed[(me + 1) % n] + static_cast<int>(pair[1]) * 10000;
}

__global__ void place_kernel(uint3* threads, uint3* blocks) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
  __syncthreads();
  threads[at] = threadIdx;
  blocks[at] = blockIdx;
}

template <int Threads>
__global__ void block_reduce_kernel(float* out) {
  WEFT_SHARED(shared, float[32]);
  const auto v = static_cast<float>(threadIdx.x);
  const float sum = cuda::block_reduce<Threads>(v, shared, 0.0f, cuda::Sum{});
  const float most = cuda::block_reduce<Threads>(v, shared, -1.0f, cuda::Max{});
  const float eight = cuda::warp_reduce<8>(v, cuda::Min{});
  out[threadIdx.x] = sum + most * 1e6f;
  out[Threads + threadIdx.x] = eight;
}

// Two pairs of warps each meet at their own barrier, then one warp of each pair at a third one,
// which they reach from two places.
__global__ void named_barriers_kernel(int* out) {
  WEFT_SHARED(s, int[128]);
  const int me = static_cast<int>(threadIdx.x), pair = me / 64;
  for (int round = 0; round < 3; ++round) {
    s[me] = me + round;
    Engine::get().barrier(1 + pair, 64, "barrier", Loc::current());
    const int got = s[me ^ 63];
    Engine::get().barrier(1 + pair, 64, "barrier", Loc::current());
    out[me] = got;
  }
  if (me / 32 == 0) {
    s[me] = 1000 + me;
    Engine::get().barrier(5, 64, "barrier", Loc::current());
  }
  if (me / 32 == 2) {
    Engine::get().barrier(5, 64, "barrier", Loc::current());
    out[me] = s[me - 64];
  }
  __syncthreads();
}

// Two groups of copies, waited for one after the other. state[i] is the number of values that have
// arrived.
__global__ void late_copies_kernel(const float* in, int* state) {
  WEFT_SHARED(s, float[3][128]);
  const int me = static_cast<int>(threadIdx.x);
  const auto arrived = [&] {
    int n = 0;
    for (int row = 0; row < 3; ++row) n += std::isnan(s[row][me * 4]) ? 0 : 1;
    return n;
  };
  cuda::cp_async16(&s[0][me * 4], in + me * 4);
  cuda::cp_async_commit();
  cuda::cp_async16(&s[1][me * 4], in + 128 + me * 4);
  cuda::cp_async16(&s[2][me * 4], in, false);
  cuda::cp_async_commit();
  state[me * 4] = arrived();
  cuda::cp_async_wait<1>();
  state[me * 4 + 1] = arrived();
  cuda::cp_async_wait<0>();
  state[me * 4 + 2] = arrived();
  __syncthreads();
  const int other = 31 - me;
  bool right = true;
  for (int i = other * 4; i < other * 4 + 4; ++i)
    right = right && s[0][i] == in[i] && s[1][i] == in[128 + i] && s[2][i] == 0;
  state[me * 4 + 3] = right;
}

__global__ void count_kernel(std::int64_t* ran) { atomicAdd(ran, 1); }

}  // namespace

TEST_CASE("emulator: shuffles of every kind and width") {
  for_each_order([] {
    check_shuffles<int>();
    check_shuffles<double>();
  });
}

TEST_CASE("emulator: lanes that meet in parts of a warp") {
  std::vector<int> want(64);
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32;
    if (lane < 8) {
      want[static_cast<std::size_t>(i)] = 0 + 2 + 4;
    } else {
      for (int k = 0; k < 5; ++k)
        for (int j = 8; j < 32; ++j) want[static_cast<std::size_t>(i)] += j % (k + 1) == 0;
    }
  }
  for_each_order([&] {
    std::vector<int> apart(64), rounds(64);
    run_kernel(partial_mask_kernel, 1, 64, 0, apart.data(), rounds.data());
    for (int i = 0; i < 64; ++i) CHECK(apart[static_cast<std::size_t>(i)] == ((i % 32) ^ 2));
    CHECK(rounds == want);
  });
}

TEST_CASE("emulator: votes and matches") {
  for_each_order([] {
    for (const unsigned bits : {0u, ~0u, 1u, 0x80000000u, 0x12345678u}) {
      std::vector<Votes> got(64);
      run_kernel(vote_kernel, 1, 64, 0, bits, got.data());
      for (unsigned i = 0; i < 64; ++i) {
        unsigned match = 0;
        for (unsigned j = 0; j < 32; ++j)
          if (j * ((i & 32) + j) % 5 == i % 32 * i % 5) match |= 1u << j;
        CHECK(got[i] == Votes{bits, bits != 0, bits == ~0u, match});
      }
    }
  });
}

TEST_CASE("emulator: a full mask in a block whose last warp is partial") {
  std::vector<Votes> got(40);
  run_kernel(vote_kernel, 1, 40, 0, ~0u, got.data());
  CHECK(got[0].ballot == ~0u);
  CHECK(got[39].ballot == 0xffu);
  CHECK(got[39].all == 1);
}

TEST_CASE("emulator: atomics of threads in several blocks") {
  for_each_order([] {
    Atomics a;
    std::vector<int> tickets(96, -1);
    run_kernel(atomics_kernel, 3, 32, 0, &a, tickets.data());
    CHECK(a.sum == 96);
    CHECK(a.most == 95);
    CHECK(a.least == -95);
    CHECK(a.exchanged >= 0);
    CHECK(a.swapped == tickets[0]);
    CHECK(a.wide == 96ull << 33);
    CHECK(a.real == 48);
    std::sort(tickets.begin(), tickets.end());
    std::vector<int> all(96);
    std::iota(all.begin(), all.end(), 0);
    CHECK(tickets == all);
  });
}

TEST_CASE("emulator: shared memory in blocks of 1 to 1024 threads") {
  for_each_order([] {
    for (const int n : {1, 2, 31, 32, 33, 100, 256, 1023, 1024}) {
      CAPTURE(n);
      std::vector<int> got(static_cast<std::size_t>(2 * n)), want(got.size());
      for (int i = 0; i < 2 * n; ++i)
        want[static_cast<std::size_t>(i)] = n - 1 - (i % n + 1) % n + (n - 1) * 10000;
      run_kernel(exchange_kernel, 2, static_cast<unsigned>(n),
                 static_cast<std::size_t>(n) * sizeof(int), got.data());
      CHECK(got == want);
    }
  });
}

TEST_CASE("emulator: blocks and grids with two and three axes") {
  for_each_order([] {
    for (const auto& [grid, block] :
         {std::pair{dim3(3, 2), dim3(5, 7)}, std::pair{dim3(2, 3, 4), dim3(4, 3, 5)},
          std::pair{dim3(1, 1, 3), dim3(1, 33)}}) {
      const unsigned threads = block.x * block.y * block.z;
      std::vector<uint3> thread(grid.x * grid.y * grid.z * threads), at(thread.size());
      run_kernel(place_kernel, grid, block, 0, thread.data(), at.data());
      for (unsigned i = 0; i < thread.size(); ++i) {
        const unsigned t = i % threads, b = i / threads;
        CHECK(thread[i].x + block.x * (thread[i].y + block.y * thread[i].z) == t);
        CHECK(at[i].x + grid.x * (at[i].y + grid.y * at[i].z) == b);
      }
    }
  });
}

TEST_CASE("emulator: reductions of warps and blocks") {
  const auto right = [](auto kernel, int n) {
    std::vector<float> got(static_cast<std::size_t>(2 * n));
    run_kernel(kernel, 1, static_cast<unsigned>(n), 0, got.data());
    for (int i = 0; i < n; ++i) {
      CHECK(got[static_cast<std::size_t>(i)] ==
            static_cast<float>(n * (n - 1) / 2) + static_cast<float>(n - 1) * 1e6f);
      CHECK(got[static_cast<std::size_t>(n + i)] == static_cast<float>(i / 8 * 8));
    }
  };
  for_each_order([&] {
    right(block_reduce_kernel<32>, 32);
    right(block_reduce_kernel<128>, 128);
    right(block_reduce_kernel<1024>, 1024);
  });
}

TEST_CASE("emulator: several barriers in one block") {
  for_each_order([] {
    std::vector<int> got(128);
    run_kernel(named_barriers_kernel, 2, 128, 0, got.data());
    for (int i = 0; i < 128; ++i)
      CHECK(got[static_cast<std::size_t>(i)] == (i / 32 == 2 ? 1000 + i - 64 : (i ^ 63) + 2));
  });
}

TEST_CASE("emulator: asynchronous copies arrive by their wait or in some orders earlier") {
  alignas(16) float in[256];
  for (int i = 0; i < 256; ++i) in[i] = static_cast<float>(i);
  int early = 0, late = 0;  // over random orders, 32 threads with three copies each
  for_each_order([&] {
    std::vector<int> state(128);
    run_kernel(late_copies_kernel, 1, 32, 0, in, state.data());
    const Order order = emu::options.order;
    for (std::size_t i = 0; i < 128; i += 4) {
      if (order == Order::forward) CHECK(state[i] == 0);
      if (order == Order::reverse) CHECK(state[i] == 3);
      if (order == Order::random) early += state[i], late += 3 - state[i];
      CHECK(state[i + 1] >= 1);
      if (order == Order::forward) CHECK(state[i + 1] == 1);
      CHECK(state[i + 2] == 3);
      CHECK(state[i + 3] == 1);
    }
  });
  CHECK(early > 96);
  CHECK(late > 96);
}

TEST_CASE("emulator: a kernel without waits needs no context switch per thread") {
  std::int64_t ran = 0;
  const std::uint64_t before = emu::stats.switches;
  run_kernel(count_kernel, 100, 256, 0, &ran);
  CHECK(ran == 25600);
#if !WEFT_EMU_TSAN
  CHECK(emu::stats.switches - before <= 2 * 100);
#else
  (void)before;
#endif
}

TEST_CASE("emulator: a launch that the hardware cannot do is refused") {
  std::int64_t ran = 0;
  const std::int64_t before = emu::control.shared_bytes;
  const auto error_of_grid = [](std::int64_t x, std::int64_t y) {
    return test::error_of([&] { (void)cuda::grid_of(x, y); });
  };
  const auto refused = [&](dim3 grid, dim3 block, std::size_t shared) {
    return test::error_of([&] { run_kernel(count_kernel, grid, block, shared, &ran); });
  };
  CHECK(refused(1, 1025, 0) == "launch: a block must have 1 to 1024 threads, got 1025 x 1 x 1");
  CHECK(refused(1, dim3(32, 33), 0) ==
        "launch: a block must have 1 to 1024 threads, got 32 x 33 x 1");
  CHECK(refused(1, 0, 0) == "launch: a block must have 1 to 1024 threads, got 0 x 1 x 1");
  CHECK(refused(1, dim3(1, 1, 65), 0) ==
        "launch: a block must have at most 64 threads along z, got 65");
  CHECK(refused(dim3(1, 65536), 1, 0) ==
        "launch: a grid must have at most 2147483647 x 65535 x 65535 blocks, got 1 x 65536 x 1");
  CHECK(error_of_grid(std::int64_t{1} << 32, 1) ==
        "launch: a grid must have at most 2147483647 x 65535 x 65535 blocks, got 4294967296 x 1 x "
        "1");
  CHECK(error_of_grid(1, 65536) ==
        "launch: a grid must have at most 2147483647 x 65535 x 65535 blocks, got 1 x 65536 x 1");
  CHECK(refused(1, 1, 101377) ==
        "launch: a block must ask for at most 101376 bytes of shared memory on emulated GPU 0 "
        "(cuda:0, compute capability 9.0), got 101377");
  emu::control.shared_bytes = Engine::kShared;
  CHECK(refused(1, 1, 101377) == "no error");
  CHECK(refused(1, 1, Engine::kShared + 1) ==
        "launch: a block must ask for at most 232448 bytes of shared memory on emulated GPU 0 "
        "(cuda:0, compute capability 9.0), got 232449");
  emu::control.shared_bytes = before;
  CHECK(ran == 1);
  ran = 0;
  run_kernel(count_kernel, dim3(0, 5), 32, 0, &ran);
  CHECK(ran == 0);
}

}  // namespace weft::engine_test
