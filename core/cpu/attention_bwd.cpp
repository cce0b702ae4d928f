#include "weft/core/cpu/attention_block.h"
#include "weft/core/kernels/attention.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

template <class T>
struct BackwardPass {
  const AttentionSpec& a;
  const T* q;
  const T* k;
  const T* v;
  const T* y;
  const T* lse;
  const T* dy;
  T* dq;
  T* dk;
  T* dv;
  std::int64_t ldq, ldk, ldv;  // of the inputs, which may be parts of wider rows
  std::int64_t ldy, ldkv;      // of y, dy, dq and of dk, dv
  Rows<T> rows;

  // One key head of one sequence: nobody else writes its dk and dv, nor dq of its query heads.
  void group(const Sequence& seq, std::int64_t kv) const {
    const std::int64_t d = a.head_dim, share = a.heads / a.kv_heads;
    for (std::int64_t s = 0; s < seq.s; ++s) {
      std::fill_n(dk + (seq.k0 + s) * ldkv + kv * d, d, T(0));
      std::fill_n(dv + (seq.k0 + s) * ldkv + kv * d, d, T(0));
    }
    for (std::int64_t head = kv * share; head < (kv + 1) * share; ++head)
      for (std::int64_t first = 0; first < seq.t; first += kQueryBlock) block(seq, head, kv, first);
  }

  // One block of queries: the probabilities are computed again from scores and lse.
  void block(const Sequence& seq, std::int64_t head, std::int64_t kv, std::int64_t first) const {
    const std::int64_t n = std::min(kQueryBlock, seq.t - first), d = a.head_dim;
    const KeyRange keys = seq.visible(a, first, n);
    const T* qb = q + (seq.q0 + first) * ldq + head * d;
    const std::int64_t at = (seq.q0 + first) * ldy + head * d;
    const T* lse_row =
        lse + (seq.batch * a.heads + head) * a.queries + seq.q0 - seq.batch * a.queries + first;
    T delta[kQueryBlock];
    for (std::int64_t i = 0; i < n; ++i)
      delta[i] = rows.dot(dy + at + i * ldy, y + at + i * ldy, d);
    if (keys.begin == keys.end)
      for (std::int64_t i = 0; i < n; ++i) std::fill_n(dq + at + i * ldy, d, T(0));

    T p[kQueryBlock * kKeyBlock], dp[kQueryBlock * kKeyBlock], factors[kKeyBlock];
    for (std::int64_t s = keys.begin; s < keys.end; s += kKeyBlock) {
      const std::int64_t m = std::min(kKeyBlock, keys.end - s);
      const T* kb = k + (seq.k0 + s) * ldk + kv * d;
      const T* vb = v + (seq.k0 + s) * ldv + kv * d;
      const std::int64_t out = (seq.k0 + s) * ldkv + kv * d;
      product_here(Product<T>{qb, kb, p, n, m, d, ldq, ldk, m, false, true, false});
      product_here(Product<T>{dy + at, vb, dp, n, m, d, ldy, ldv, m, false, true, false});
      for (std::int64_t i = 0; i < n; ++i) {
        const KeyRange seen = within(seq.visible(a, first + i), s, m);
        const std::int64_t count = seen.end - seen.begin;
        T *row = p + i * m, *drow = dp + i * m;
        std::fill(row, row + seen.begin, T(0));
        std::fill(row + seen.end, row + m, T(0));
        std::fill(drow, drow + seen.begin, T(0));
        std::fill(drow + seen.end, drow + m, T(0));
        if (count == 0) continue;
        const T scale = static_cast<T>(a.scale);
        T *live = row + seen.begin, *dlive = drow + seen.begin;
        rows.exp_sum(live, count, scale, lse_row[i]);
        if (a.dropout > 0) {
          dropout_factors(a, seq, head, first + i, s + seen.begin, count, factors);
          for (std::int64_t j = 0; j < count; ++j) dlive[j] *= factors[j];
        }
        rows.scores_bwd(live, dlive, count, delta[i], scale);
        if (a.dropout > 0)
          for (std::int64_t j = 0; j < count; ++j) live[j] *= factors[j];
      }
      product_here(Product<T>{p, dy + at, dv + out, m, d, n, m, ldy, ldkv, true, false, true});
      product_here(Product<T>{dp, qb, dk + out, m, d, n, m, ldq, ldkv, true, false, true});
      product_here(Product<T>{dp, kb, dq + at, n, d, m, m, ldk, ldy, false, false, s > keys.begin});
    }
  }
};

}  // namespace

void attention_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& a, const Tensor& y, const Tensor& lse, const Tensor& dy,
                   const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  if (q.numel() == 0 && k.numel() == 0) return;
  const std::int32_t* cu = cu_seqlens ? cu_seqlens.data<std::int32_t>() : nullptr;
  const std::int64_t items = (cu ? cu_seqlens.numel() - 1 : a.batch) * a.kv_heads;
  const auto run = [&]<class T>() {
    const BackwardPass<T> pass{a,
                               q.data<T>(),
                               k.data<T>(),
                               v.data<T>(),
                               y.data<T>(),
                               lse.data<T>(),
                               dy.data<T>(),
                               dq.data<T>(),
                               dk.data<T>(),
                               dv.data<T>(),
                               q.strides()[1],
                               k.strides()[1],
                               v.strides()[1],
                               y.strides()[1],
                               dk.strides()[1],
                               {}};
    const std::int64_t work =
        a.batch * a.heads * (a.queries + 1) * (a.keys + 1) / items * a.head_dim;
    parallel_for(items, work + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        pass.group(Sequence::at(a, cu, i / a.kv_heads), i % a.kv_heads);
    });
  };
  q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
