#include "weft/core/kernels/attention.h"

#include "weft/core/cpu/attention_block.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

template <class T>
struct Forward {
  const AttentionSpec& a;
  const T* q;
  const T* k;
  const T* v;
  T* y;
  T* lse;
  std::int64_t ldq, ldk, ldv, ldy;
  Rows<T> rows;

  // One block of queries of one head: keys pass by in blocks, and the rows' largest score and sum
  // of exponentials are kept up to date (online softmax).
  void block(const Sequence& seq, std::int64_t head, std::int64_t first) const {
    constexpr T kInf = std::numeric_limits<T>::infinity();
    const std::int64_t n = std::min(kQueryBlock, seq.t - first), d = a.head_dim;
    const std::int64_t kv = head / (a.heads / a.kv_heads);
    const KeyRange keys = seq.visible(a, first, n);
    const T* qb = q + (seq.q0 + first) * ldq + head * d;
    T* yb = y + (seq.q0 + first) * ldy + head * d;
    T* lse_row =
        lse + (seq.batch * a.heads + head) * a.queries + seq.q0 - seq.batch * a.queries + first;
    T largest[kQueryBlock], sum[kQueryBlock], p[kQueryBlock * kKeyBlock], factors[kKeyBlock];
    std::fill_n(largest, n, -kInf);
    std::fill_n(sum, n, T(0));
    if (keys.begin == keys.end)
      for (std::int64_t i = 0; i < n; ++i) std::fill_n(yb + i * ldy, d, T(0));

    for (std::int64_t s = keys.begin; s < keys.end; s += kKeyBlock) {
      const std::int64_t m = std::min(kKeyBlock, keys.end - s);
      const T* kb = k + (seq.k0 + s) * ldk + kv * d;
      const T* vb = v + (seq.k0 + s) * ldv + kv * d;
      product_here(Product<T>{qb, kb, p, n, m, d, ldq, ldk, m, false, true, false});
      for (std::int64_t i = 0; i < n; ++i) {
        T* row = p + i * m;
        const KeyRange seen = within(seq.visible(a, first + i), s, m);
        std::fill(row, row + seen.begin, T(0));
        std::fill(row + seen.end, row + m, T(0));
        if (seen.begin == seen.end) continue;
        T* live = row + seen.begin;
        const std::int64_t count = seen.end - seen.begin;
        const T scale = static_cast<T>(a.scale);
        const T high = std::max(largest[i], score_max(live, count) * scale);
        const T shrink = largest[i] == -kInf ? T(0) : std::exp(largest[i] - high);
        sum[i] = sum[i] * shrink + rows.exp_sum(live, count, scale, high);
        if (s > keys.begin && shrink != T(1)) rows.scale(yb + i * ldy, d, shrink);
        largest[i] = high;
        if (a.dropout > 0) {
          dropout_factors(a, seq, head, first + i, s + seen.begin, count, factors);
          for (std::int64_t j = 0; j < count; ++j) live[j] *= factors[j];
        }
      }
      product_here(Product<T>{p, vb, yb, n, d, m, m, ldv, ldy, false, false, s > keys.begin});
    }
    for (std::int64_t i = 0; i < n; ++i) {
      lse_row[i] = sum[i] == T(0) ? -kInf : largest[i] + std::log(sum[i]);
      if (sum[i] != T(0)) rows.scale(yb + i * ldy, d, T(1) / sum[i]);
    }
  }

  // With a negative scale the smallest score is the one that matters.
  T score_max(T* x, std::int64_t n) const {
    if (a.scale >= 0) return rows.max(x, n);
    T low = x[0];
    for (std::int64_t i = 1; i < n; ++i) low = std::min(low, x[i]);
    return low;
  }
};

}  // namespace

void attention_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& a, const Tensor& y, const Tensor& lse) {
  if (y.numel() == 0) return;
  const std::int32_t* cu = cu_seqlens ? cu_seqlens.data<std::int32_t>() : nullptr;
  const std::int64_t sequences = cu ? cu_seqlens.numel() - 1 : a.batch;
  // Packed sequences have different numbers of blocks: a work item is then a whole sequence.
  const std::int64_t blocks = cu ? 1 : query_blocks(a.queries);
  const std::int64_t items = sequences * a.heads * blocks;
  const auto run = [&]<class T>() {
    const Forward<T> f{a,
                       q.data<T>(),
                       k.data<T>(),
                       v.data<T>(),
                       y.data<T>(),
                       lse.data<T>(),
                       q.strides()[1],
                       k.strides()[1],
                       v.strides()[1],
                       y.strides()[1],
                       {}};
    const std::int64_t work = a.batch * a.heads * a.queries * (a.keys + 1) / items * a.head_dim / 4;
    parallel_for(items, work + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Sequence seq = Sequence::at(a, cu, i / (a.heads * blocks));
        const std::int64_t head = i / blocks % a.heads, from = cu ? 0 : i % blocks;
        const std::int64_t to = cu ? query_blocks(seq.t) : from + 1;
        for (std::int64_t b = from; b < to; ++b) f.block(seq, head, b * kQueryBlock);
      }
    });
  };
  q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
