// The allocator's blocks on a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/storage.h"
#include "weft/cuda/emu/control.h"
#include "weft/tests/cuda/emu/run.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::gpu_memory_test {
namespace {

using cuda::Stream;
using cuda::StreamScope;
using test::error_of;
using test::kGpu;

constexpr Device kSecond{Device::Kind::cuda, 1};
constexpr std::int64_t kMiB = 1 << 20;

Tensor bytes_of(std::int64_t n, Device device = kGpu) {
  return Tensor::empty({n}, DType::u8, device);
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.to(kCpu).copy_to(v);
  return v;
}

__global__ void read_kernel(const float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }

// Limits the device to `bytes` of free memory until the end of the test.
struct Limit {
  explicit Limit(std::int64_t bytes) : before(emu::control.memory_bytes) {
    release_cached_memory(kGpu);
    std::int64_t free = 0, total = 0;
    cuda::detail::use_device(0);
    cuda::rt::memory_info(free, total);
    emu::control.memory_bytes = total - free + bytes;
  }
  ~Limit() { emu::control.memory_bytes = before; }
  const std::int64_t before;
};

}  // namespace

TEST_CASE("gpu memory: total memory of a device and invalid devices") {
  CHECK(cuda::total_memory(kGpu) == emu::control.memory_bytes);
  CHECK(error_of([] {
          cuda::total_memory({Device::Kind::cuda, 2});
        }) == "device: the index of cuda:2 must be below the number of GPUs 2, got 2");
  CHECK(error_of([] { cuda::total_memory(kCpu); }) == "device: must be a GPU, got cpu");
}

TEST_CASE("gpu memory: a freed block serves its stream's next request") {
  const void* where = nullptr;
  {
    const Tensor a = bytes_of(5000);
    where = a.raw();
  }
  const MemoryStats before = memory_stats(kGpu);
  const Tensor b = bytes_of(4990);
  CHECK(b.raw() == where);
  CHECK(memory_stats(kGpu).hits == before.hits + 1);
  CHECK(memory_stats(kGpu).system_allocs == before.system_allocs);
}

TEST_CASE("gpu memory: every block begins at a multiple of 256 bytes") {
  std::vector<Tensor> all;
  for (const std::int64_t bytes : {1, 64, 65, 200, 1000, 1100, 1900, 3000, 70'000})
    for (int i = 0; i < 3; ++i) {
      all.push_back(bytes_of(bytes));
      CHECK(reinterpret_cast<std::uintptr_t>(all.back().raw()) % 256 == 0);
    }
}

TEST_CASE("gpu memory: no other stream gets the block") {
  const void* where = nullptr;
  {
    const Tensor a = bytes_of(5000);
    where = a.raw();
  }
  Stream side = Stream::take();
  {
    const StreamScope scope(side);
    const Tensor b = bytes_of(5000);
    CHECK(b.raw() != where);
    CHECK(b.storage()->stream == side.id());
  }
  CHECK(bytes_of(5000).raw() == where);
  side.give_back();
}

TEST_CASE("gpu memory: size classes and counters per device") {
  const MemoryStats first = memory_stats(kGpu), second = memory_stats(kSecond);
  reset_peak(kSecond);
  {
    const CategoryScope scope(Category::gradient);
    const Tensor a = bytes_of(1025, kSecond), b = bytes_of(3 * kMiB + 1, kSecond);
    const std::int64_t live = size_class_bytes(1025) + size_class_bytes(3 * kMiB + 1);
    const MemoryStats now = memory_stats(kSecond);
    CHECK(now.live_bytes == second.live_bytes + live);
    CHECK(now.peak_bytes == second.live_bytes + live);
    const auto gradient = static_cast<int>(Category::gradient);
    CHECK(now.live_by_category[gradient] == second.live_by_category[gradient] + live);
  }
  const MemoryStats after = memory_stats(kSecond);
  CHECK(after.live_bytes == second.live_bytes);
  CHECK(after.cached_bytes >= size_class_bytes(1025) + size_class_bytes(3 * kMiB + 1));
  release_cached_memory(kSecond);
  CHECK(memory_stats(kSecond).cached_bytes == 0);
  CHECK(memory_stats(kSecond).evictions >= after.evictions + 2);
  const MemoryStats untouched = memory_stats(kGpu);
  CHECK(untouched.live_bytes == first.live_bytes);
  CHECK(untouched.hits + untouched.misses == first.hits + first.misses);
}

TEST_CASE("gpu memory: a block used by another stream stays until that stream is done") {
  Stream side = Stream::take();
  const Tensor out = Tensor::zeros({32}, DType::f32, kGpu);
  cuda::synchronize();
  const void* where = nullptr;
  {
    const Tensor a = Tensor::full({32}, 5, DType::f32, kGpu);
    cuda::synchronize();
    where = a.raw();
    const StreamScope scope(side);
    cuda::launch(read_kernel, 1, 32, 0, a.data<float>(), out.data<float>());
    record_stream(a, side);
  }
  {
    const Tensor b = Tensor::full({32}, 6, DType::f32, kGpu);
    CHECK(b.raw() != where);
    cuda::synchronize();
  }
  CHECK(values(out)[0] == 5);
  const Tensor b = Tensor::empty({32}, DType::f32, kGpu), c = Tensor::empty({32}, DType::f32, kGpu);
  CHECK((b.raw() == where || c.raw() == where));
  side.give_back();
}

TEST_CASE("gpu memory: evicting the cache waits for streams that still use its blocks") {
  Stream side = Stream::take();
  const Tensor out = Tensor::zeros({32}, DType::f32, kGpu);
  {
    const Tensor a = Tensor::full({32}, 5, DType::f32, kGpu);
    cuda::synchronize();
    const StreamScope scope(side);
    cuda::launch(read_kernel, 1, 32, 0, a.data<float>(), out.data<float>());
    record_stream(a, side);
  }
  release_cached_memory(kGpu);
  CHECK(memory_stats(kGpu).cached_bytes == 0);
  CHECK(values(out)[31] == 5);
  side.give_back();
}

#if !WEFT_EMU_ASAN  // it stops the program there
TEST_CASE("gpu memory: fresh and freed memory is NaN") {
  for (const double v : values(Tensor::empty({50}, DType::bf16, kGpu))) CHECK(std::isnan(v));
  Stream side = Stream::take();
  const Tensor out = Tensor::zeros({32}, DType::f32, kGpu);
  {
    const Tensor a = Tensor::full({32}, 5, DType::f32, kGpu);
    cuda::synchronize();
    const StreamScope scope(side);
    cuda::launch(read_kernel, 1, 32, 0, a.data<float>(), out.data<float>());  // no record_stream
  }
  Stream().synchronize();
  side.synchronize();
  CHECK(std::isnan(values(out)[0]));
  side.give_back();
}
#endif

TEST_CASE("gpu memory: release_storage returns the block and keeps the tensor") {
  const Tensor t = bytes_of(9000);
  const void* const where = t.raw();
  const std::int64_t live = memory_stats(kGpu).live_bytes;
  release_storage(t);
  CHECK(memory_stats(kGpu).live_bytes == live - size_class_bytes(9000));
  CHECK(error_of([&] { (void)t.data<std::uint8_t>(); }) != "no error");
  CHECK(bytes_of(9000).raw() == where);
}

TEST_CASE("gpu memory: exhausted memory empties the cache and then throws") {
  const CategoryScope scope(Category::activation);
  const Limit limit(16 * kMiB);
  const MemoryStats before = memory_stats(kGpu);
  const Tensor kept = bytes_of(4 * kMiB);
  {
    const CategoryScope inner(Category::optimizer);
    const Tensor a = bytes_of(4 * kMiB), b = bytes_of(5 * kMiB);
  }
  // 9 MiB are cached in blocks that are too small: after their release the request fits.
  const MemoryStats full = memory_stats(kGpu);
  CHECK(full.cached_bytes == before.cached_bytes + 9 * kMiB);
  { CHECK(bytes_of(12 * kMiB).defined()); }
  CHECK(memory_stats(kGpu).evictions == full.evictions + 2);
  const MemoryStats m = memory_stats(kGpu);
  std::string held;
  for (int i = 0; i < kCategories; ++i)
    if (m.live_by_category[i] > 0)
      held += message("{}{} {}", held.empty() ? "" : ", ", m.live_by_category[i],
                      name(static_cast<Category>(i)));
  CHECK(error_of([] { (void)bytes_of(13 * kMiB); }) ==
        message("allocate: cuda:0 has no memory for {} bytes: {} are live ({}) and 0 cached, after "
                "the cache was emptied; use a smaller batch, or recompute",
                13 * kMiB, m.live_bytes, held));
  CHECK(m.live_by_category[static_cast<int>(Category::activation)] >= 4 * kMiB);
  // Small blocks come from slabs of the same memory; the next request succeeds.
  CHECK(bytes_of(100).defined());
  CHECK(bytes_of(12 * kMiB, kSecond).defined());
}

TEST_CASE("gpu memory: memory outside of the cache comes from it if there is no other") {
  const Limit limit(8 * kMiB);
  { const Tensor cached = bytes_of(5 * kMiB); }
  CHECK(memory_stats(kGpu).cached_bytes >= 5 * kMiB);
  void* const p = cuda::detail::allocate_uncached(kGpu, 6 * kMiB);
  CHECK(p != nullptr);
  CHECK(memory_stats(kGpu).cached_bytes == 0);
  CHECK(cuda::detail::allocate_uncached(kGpu, 6 * kMiB) == nullptr);
  cuda::rt::free(p);
}

TEST_CASE("gpu memory: a capture keeps blocks of other streams and does not wait") {
  Stream side = Stream::take(), second = Stream::take(kSecond);
  const MemoryStats before = memory_stats(kSecond);
  Tensor here = bytes_of(4 * kMiB), there = bytes_of(4 * kMiB, kSecond);
  record_stream(here, side);
  record_stream(there, second);
  const Limit limit(8 * kMiB);
  {
    cuda::Graph graph;
    std::string text;
    graph.capture([&] {
      there = Tensor();
      std::thread([&] { here = Tensor(); }).join();  // to the stream's cache, with an event
      text = error_of([] { (void)bytes_of(9 * kMiB); });
    });
    CHECK(text.starts_with("allocate: cuda:0 has no memory for 9437184 bytes: "));
    CHECK(graph.captured());
  }
  release_cached_memory(kGpu);
  CHECK(bytes_of(9 * kMiB).defined());
  release_cached_memory(kSecond);
  CHECK(memory_stats(kSecond).live_bytes == before.live_bytes);
  CHECK(memory_stats(kSecond).cached_bytes == 0);
  side.give_back();
  second.give_back();
}

TEST_CASE("gpu memory: the device reports its free memory") {
  const Limit limit(16 * kMiB);
  std::int64_t free = 0, total = 0;
  cuda::rt::memory_info(free, total);
  CHECK(total == emu::control.memory_bytes);
  CHECK(free == 16 * kMiB);
  const Tensor t = bytes_of(4 * kMiB);
  cuda::rt::memory_info(free, total);
  CHECK(free == 12 * kMiB);
  CHECK(cuda::rt::device_name(1) == "emulated GPU 1");
}

}  // namespace weft::gpu_memory_test
