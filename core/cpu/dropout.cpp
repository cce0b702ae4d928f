#include "weft/core/kernels/dropout.h"

#include <algorithm>
#include <type_traits>

#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// Philox blocks drawn at a time, side by side, so that the compiler can use vector registers.
constexpr std::int64_t kBlocks = 64;
constexpr std::int64_t kElements = 4 * kBlocks;

// bits[4 b + j] = word j of Philox block `first + b` of the key's stream, for b in [0, kBlocks).
void draw_blocks(const RandomKey& key, std::uint64_t first, std::uint32_t* bits) {
  std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(b);
    c0[b] = static_cast<std::uint32_t>(block);
    c1[b] = static_cast<std::uint32_t>(block >> 32);
    c2[b] = static_cast<std::uint32_t>(key.stream);
    c3[b] = static_cast<std::uint32_t>(key.stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key.seed), k1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const std::uint64_t x = std::uint64_t{0xD2511F53u} * c0[b];
      const std::uint64_t y = std::uint64_t{0xCD9E8D57u} * c2[b];
      c0[b] = static_cast<std::uint32_t>(y >> 32) ^ c1[b] ^ k0;
      c1[b] = static_cast<std::uint32_t>(y);
      c2[b] = static_cast<std::uint32_t>(x >> 32) ^ c3[b] ^ k1;
      c3[b] = static_cast<std::uint32_t>(x);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    bits[4 * b] = c0[b];
    bits[4 * b + 1] = c1[b];
    bits[4 * b + 2] = c2[b];
    bits[4 * b + 3] = c3[b];
  }
}

template <class T>
void drop(const T* x, const std::uint32_t* bits, std::int64_t n, std::uint32_t threshold,
          double scale, T* y) {
  using R = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const R s = static_cast<R>(scale);
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = bits[i] >> 8 < threshold ? T(R(0)) : T(static_cast<R>(x[i]) * s);
}

}  // namespace

void dropout(const Tensor& x, const RandomKey& key, std::uint32_t threshold, double scale,
             const Tensor& y) {
  const std::int64_t n = x.numel();
  // Chunks are aligned to Philox blocks of the global sequence: the first may start inside a block.
  const auto lead = static_cast<std::int64_t>(key.first & 3);
  const std::int64_t chunks = n == 0 ? 0 : (lead + n + kElements - 1) / kElements;
  dispatch_floating(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_for(chunks, 8 * kElements, [&](std::int64_t begin, std::int64_t end) {
      std::uint32_t bits[kElements];
      for (std::int64_t c = begin; c < end; ++c) {
        draw_blocks(key, (key.first >> 2) + static_cast<std::uint64_t>(c * kBlocks), bits);
        const std::int64_t start = c * kElements - lead;  // of bits[0] in x; negative at the front
        const std::int64_t from = std::max<std::int64_t>(start, 0);
        const std::int64_t to = std::min(start + kElements, n);
        drop(in + from, bits + (from - start), to - from, threshold, scale, out + from);
      }
    });
  });
}

}  // namespace weft::cpu
