#pragma once
// Which weights of a tile are dropped. Four weights of adjacent keys share a Philox block, but lie
// in several lanes: each lane computes a quarter of the blocks, and the lanes exchange the
// outcomes.
#include "weft/cuda/attention_tile.h"

namespace weft::cuda {

/// Bit k: whether weight 4 block + k in the order of the key is dropped.
__device__ inline unsigned drops_four(const AttentionArgs& a, const RandomKey& key,
                                      std::uint64_t number) {
  const auto words = random_block(key, number >> 2);
  unsigned four = 0;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) four |= (words[k] >> 8 < a.drop_below ? 1u : 0u) << k;
  return four;
}

/// f(n, h, e) as bit 4 n + 2 h + e, for every element of this lane's fragments of N columns.
template <int N, class F>
__device__ inline std::uint32_t bits_one_by_one(F f) {
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < N / 2; ++i) bits |= (f(i / 4, i / 2 % 2, i % 2) ? 1u : 0u) << i;
  return bits;
}

/// Bit 4 n + 2 h + e: whether element c[n][2 h + e] of this lane is dropped. Rows are queries, from
/// `query` on, and columns are keys, from `key` on. All lanes must call it.
template <int N>
__device__ inline std::uint32_t dropped_keys(const AttentionArgs& a, int batch, int head, int query,
                                             int key) {
  static_assert(N <= 64 && N % 16 == 0);
  const int g = lane_id() / 4, t = lane_id() % 4;
  if (!a.has_whole_blocks() || key % 4 != 0)
    return bits_one_by_one<N>([&](int n, int h, int e) {
      return a.drops(batch, head, query + g + 8 * h, key + 8 * n + 2 * t + e);
    });
  const RandomKey drawn = with_device_stream(a.key);
  std::uint32_t bits = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::uint64_t first = a.weight_number(batch, head, query + g + 8 * h) +
                                static_cast<std::uint64_t>(key + t / 2 * 4);
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
      // Lanes t and t ^ 1 have the two halves of a block: one computes it for n, one for n + 1.
      const unsigned four = drops_four(a, drawn, first + static_cast<unsigned>(8 * (n + t % 2)));
      const unsigned low = four & 3, high = four >> 2;
      const unsigned got = __shfl_xor_sync(kAllLanes, t % 2 ? low : high, 1);
      bits |= (t % 2 ? got | high << 4 : low | got << 4) << (4 * n + 2 * h);
    }
  }
  return bits;
}

/// The same for rows that are keys, from `key` (a multiple of 4) on, and columns that are queries,
/// from `query` on.
template <int N>
__device__ inline std::uint32_t dropped_queries(const AttentionArgs& a, int batch, int head,
                                                int query, int key) {
  static_assert(N <= 64);
  const int g = lane_id() / 4, t = lane_id() % 4;
  if (!a.has_whole_blocks())
    return bits_one_by_one<N>([&](int n, int h, int e) {
      return a.drops(batch, head, query + 8 * n + 2 * t + e, key + g + 8 * h);
    });
  const RandomKey drawn = with_device_stream(a.key);
  std::uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    // Four lanes have the four keys of a block, each in four elements c = 2 h + e: lane c of them
    // computes the block of element c.
    const int h = g % 4 / 2, e = g % 2;
    const unsigned four = drops_four(a, drawn,
                                     a.weight_number(batch, head, query + 8 * n + 2 * t + e) +
                                         static_cast<std::uint64_t>(key + g / 4 * 4 + 8 * h));
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const unsigned of_c = __shfl_sync(kAllLanes, four, (lane_id() & ~12) | c << 2);
      bits |= (of_c >> g % 4 & 1u) << (4 * n + c);
    }
  }
  return bits;
}

}  // namespace weft::cuda
