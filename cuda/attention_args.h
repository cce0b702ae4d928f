#pragma once
// The arguments of all attention kernels, and which keys a query sees.
#include "weft/core/kernels/attention.h"
#include "weft/core/kernels/sequences.h"
#include "weft/cuda/device.h"

namespace weft::cuda {

__device__ inline int least(int a, int b) { return a < b ? a : b; }
__device__ inline int most(int a, int b) { return a > b ? a : b; }

/// A run of queries or keys.
struct Range {
  int begin, end;
  __device__ bool contains(int i) const {  // in one comparison
    return static_cast<unsigned>(i - begin) < static_cast<unsigned>(end - begin);
  }
};

struct AttentionArgs {
  int queries, keys, heads, kv_heads, head_dim, value_dim;
  int window;
  bool causal;
  const std::int32_t* cu_seqlens;  ///< null: one sequence a batch row
  int sequences;
  double scale;
  std::int64_t ldq, ldk, ldv;  ///< distance of tokens
  std::uint32_t drop_below;    ///< a weight whose 24 bits are lower is dropped
  double kept;                 ///< factor of the others
  RandomKey key;
  int key_heads;                    ///< heads of a batch row as `key` counts them
  int key_queries, key_keys;        ///< tokens of such a row; a packed row may hold several
  int dq_heads = 0, dkv_heads = 0;  ///< heads between tokens of dq, and of dk and dv

  /// Which keys query i sees. Both ends grow with i: a tile of queries sees only keys from the
  /// begin of its first query to the end of its last one.
  __device__ Range keys_of(int i) const {
    Range r = sequence_of(i, keys);
    if (causal) {
      const int next = i + keys - queries + 1;  // the last query is aligned with the last key
      r.end = least(r.end, most(next, r.begin));
      if (window > 0) r.begin = least(r.end, most(r.begin, next - window));
    }
    return r;
  }
  /// Which queries see key j. Both ends grow with j.
  __device__ Range queries_of(int j) const {
    Range r = sequence_of(j, queries);
    if (causal) {
      const int first = j - (keys - queries);
      r.begin = least(r.end, most(first, r.begin));
      if (window > 0) r.end = most(r.begin, least(r.end, first + window));
    }
    return r;
  }
  /// Rows of a head in the scratch of the backward pass.
  __device__ int padded_queries() const {
    constexpr int kPad = kAttentionPad;
    return (queries + kPad - 1) / kPad * kPad;
  }
  __device__ int share() const { return heads / kv_heads; }
  /// The number of query i among all B * H * T.
  __device__ std::int64_t row(int batch, int head, int i) const {
    return (std::int64_t{batch} * heads + head) * queries + i;
  }
  /// The number of the weight of query i and key 0; that of key j is j more.
  __device__ std::uint64_t weight_number(int batch, int head, int i) const {
    const int before = i / key_queries;
    const std::int64_t row =
        (std::int64_t{batch + before} * key_heads + head) * key_queries + i - before * key_queries;
    return key.first + static_cast<std::uint64_t>((row - before) * key_keys);
  }
  /// Do the numbers of keys 4 n to 4 n + 3 share a Philox block?
  __device__ bool has_whole_blocks() const {
    return (key.first | static_cast<unsigned>(key_keys)) % 4 == 0;
  }
  /// Is the weight of query i and key j dropped?
  __device__ bool drops(int batch, int head, int i, int j) const {
    const std::uint64_t n = weight_number(batch, head, i) + static_cast<std::uint64_t>(j);
    const auto words = random_block(with_device_stream(key), n >> 2);
    const std::uint32_t low = n & 1 ? words[1] : words[0], high = n & 1 ? words[3] : words[2];
    return (n & 2 ? high : low) >> 8 < drop_below;
  }

 private:
  __device__ Range sequence_of(int token, int all) const {
    if (cu_seqlens == nullptr) return {0, all};
    const int i = last_at_most(sequences, token, [this](int n) { return cu_seqlens[n]; });
    return {cu_seqlens[i], cu_seqlens[i + 1]};
  }
};

/// Throws Error on sizes beyond the kernels' 32-bit token numbers.
AttentionArgs attention_args(const AttentionIn& in, const AttentionSpec& spec);
/// The same for the backward kernels.
AttentionArgs attention_args(const AttentionIn& in, const AttentionSpec& spec,
                             const AttentionGrads& out);

/// Which tile of tokens of which head a block works on. Neighbouring blocks share their keys.
struct TileOfHead {
  int tile, head, batch;
  __device__ TileOfHead(int tiles, int heads) {
    const unsigned of_head = blockIdx.x / static_cast<unsigned>(tiles);
    tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
    head = static_cast<int>(of_head % static_cast<unsigned>(heads));
    batch = static_cast<int>(of_head / static_cast<unsigned>(heads));
  }
};

/// The scratch of the backward pass: for each row (b, h, i), rows of a head padded to a multiple of
/// kAttentionPad, the pair of its lse times `unit` (inf where the query sees no key, so that
/// exp(score - lse) is 0) and the dot product of its dy and y.
template <class R>
__device__ inline const R* row_pairs(const R* scratch, const AttentionArgs& a, int batch,
                                     int head) {
  return scratch + (std::int64_t{batch} * a.heads + head) * a.padded_queries() * 2;
}

namespace generic {
AttentionFwd attention_fwd;
/// With row_pairs() in the scratch.
void attention_bwd(const AttentionIn& in, const AttentionSpec& spec, const Tensor& dy,
                   const AttentionGrads& out);
}  // namespace generic

}  // namespace weft::cuda
