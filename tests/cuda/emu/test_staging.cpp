// Copies from the host to an emulated GPU, which reads pinned memory as late as a real one may.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/staging.h"
#include "weft/cuda/emu/control.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::staging_test {
namespace {

using cuda::Event;
using cuda::Stream;
using cuda::detail::kMaxStaged;
using cuda::detail::staging_bytes;
using cuda::detail::upload;
using test::kGpu;

constexpr std::int64_t kStagedMiB = 1 << 20;

Tensor gpu_bytes(std::int64_t n) { return Tensor::empty({n}, DType::u8, kGpu); }

// "" when every byte of t is `value`.
std::string not_all(const Tensor& t, int value) {
  const Tensor host = t.to(kCpu);
  const auto* p = host.data<std::uint8_t>();
  for (std::int64_t i = 0; i < t.numel(); ++i)
    if (p[i] != value) return message("byte {} is {}, not {}", i, int{p[i]}, value);
  return "";
}

}  // namespace

TEST_CASE("staging: the host's values may change at once and nothing waits") {
  const std::int64_t syncs = cuda::host_syncs();
  std::vector<std::uint8_t> host(3 * kStagedMiB);
  std::vector<Tensor> copies;
  for (int i = 0; i < 5; ++i) {
    std::fill(host.begin(), host.end(), static_cast<std::uint8_t>(i));
    copies.push_back(gpu_bytes(i == 3 ? 100 : 3 * kStagedMiB));
    upload(copies.back().raw(), host.data(), copies.back().numel(), Stream::current());
  }
  CHECK(cuda::host_syncs() == syncs);
  for (int i = 0; i < 5; ++i) CHECK(not_all(copies[static_cast<std::size_t>(i)], i) == "");
}

TEST_CASE("staging: a buffer is reused once its copy has run") {
  const std::vector<std::uint8_t> host(5 * kStagedMiB, 7);
  const Tensor a = gpu_bytes(5 * kStagedMiB), b = gpu_bytes(4 * kStagedMiB + 1);
  const auto copy = [&](const Tensor& t) {
    upload(t.raw(), host.data(), t.numel(), Stream::current());
  };
  cuda::synchronize();
  copy(a);
  copy(b);  // both in flight
  cuda::synchronize();
  const std::int64_t pinned = staging_bytes();
  Event copied;
  for (int i = 0; i < 20; ++i) {  // the host is at most one step ahead
    copy(a);
    copied.synchronize_unchecked();
    copied.record();
    copy(b);
  }
  // At a copy the last two copies of b and the last one of a are still in flight: four buffers.
  CHECK(staging_bytes() == pinned + 16 * kStagedMiB);
  CHECK(not_all(a, 7) == "");
  CHECK(not_all(b, 7) == "");
}

TEST_CASE("staging: copies above the size limits go through the driver") {
  cuda::synchronize();
  const std::vector<std::uint8_t> host(kMaxStaged + 1, 9);
  const Tensor t = gpu_bytes(kMaxStaged + 1);
  const std::int64_t pinned = staging_bytes();
  upload(t.raw(), host.data(), t.numel(), Stream::current());
  CHECK(staging_bytes() == pinned);
  CHECK(not_all(t, 9) == "");
  for (int i = 0; i < 6; ++i) upload(t.raw(), host.data(), kMaxStaged, Stream::current());
  CHECK(staging_bytes() <= 4 * kMaxStaged);
  CHECK(not_all(t, 9) == "");
}

TEST_CASE("staging: copies go through the driver when the system pins no more memory") {
  const Device second{Device::Kind::cuda, 1};
  const Tensor a = Tensor::zeros({kStagedMiB}, DType::u8, second), b = a.clone();
  cuda::synchronize(second);
  const std::vector<std::uint8_t> host(kStagedMiB, 11);
  const std::int64_t pinned = staging_bytes(), most = std::exchange(emu::control.pinned_bytes, 0);
  upload(a.raw(), host.data(), a.numel(), Stream::current(second));
  emu::control.pinned_bytes = most;
  upload(b.raw(), host.data(), b.numel(), Stream::current(second));  // it is not asked again
  CHECK(staging_bytes() == pinned);
  CHECK(not_all(a, 11) == "");
  CHECK(not_all(b, 11) == "");
}

TEST_CASE("staging: tensor copies use it and copy_ needs no temporary tensor") {
  const Tensor host = Tensor::full({2 * kStagedMiB}, 3, DType::u8);
  const Tensor t = gpu_bytes(2 * kStagedMiB);
  const MemoryStats before = memory_stats(kGpu);
  const std::int64_t syncs = cuda::host_syncs();
  t.copy_(host);
  host.fill_(4);
  const Tensor second = host.to(kGpu);
  host.fill_(5);
  CHECK(memory_stats(kGpu).hits + memory_stats(kGpu).misses == before.hits + before.misses + 1);
  CHECK(cuda::host_syncs() == syncs);
  CHECK(not_all(t, 3) == "");
  CHECK(not_all(second, 4) == "");
}

}  // namespace weft::staging_test
