#include "weft/core/kernels/attention.h"

#include "weft/core/cpu/attention_block.h"
#include "weft/core/kernels/operand.h"
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
  Steps<T> steps;

  // The rows of one key head, from key `first` of the sequence on.
  struct KeyRows {
    const T *k, *v;
    std::int64_t ldk, ldv, first;
  };

  // Queues what block b of a head reads; of the keys, if `keys`, those that the block before does
  // not see, unless they take too much of the L2.
  void fetch(const SequenceHead& h, std::int64_t b, bool keys) const {
    const std::int64_t first = b * kQueryBlock, n = std::min(kQueryBlock, h.seq.t - first);
    if (n <= 0) return;
    const std::int64_t d = a.head_dim, w = a.value_dim, kv = h.head / (a.heads / a.kv_heads);
    const std::int64_t row = h.seq.q0 + first;
    steps.fetch(q + row * ldq + h.head * d, ldq, n, d);
    if (!keys) return;
    auto [begin, end] = h.seq.visible(a, first, n);
    if (b > 0) begin = std::max(begin, h.seq.visible(a, first - 1).end);
    const std::int64_t bytes = (end - begin) * (d + w) * static_cast<std::int64_t>(sizeof(T));
    if (bytes > l2_bytes() / 4) return;
    steps.fetch(k + (h.seq.k0 + begin) * ldk + kv * d, ldk, end - begin, d);
    steps.fetch(v + (h.seq.k0 + begin) * ldv + kv * w, ldv, end - begin, w);
  }

  // Blocks [from, to) of one head; `next`: the head after it, or null.
  void blocks(const SequenceHead& here, std::int64_t from, std::int64_t to,
              const SequenceHead* next) const {
    const auto& [seq, head] = here;
    const std::int64_t d = a.head_dim, w = a.value_dim, kv = head / (a.heads / a.kv_heads);
    const std::int64_t first = from * kQueryBlock, n = std::min(to * kQueryBlock, seq.t) - first;
    bool copied = false;
    KeyRows keys{k + seq.k0 * ldk + kv * d, v + seq.k0 * ldv + kv * w, ldk, ldv, 0};
    const auto [begin, end] = seq.visible(a, first, n);
    const std::int64_t rows = end - begin;
    if (T* const own_k = room_for_rows<T>(a, n, rows * (d + w))) {
      T* const own_v = own_k + rows * d;
      copy_rows(keys.k + begin * ldk, ldk, rows, d, own_k, d);
      copy_rows(keys.v + begin * ldv, ldv, rows, w, own_v, w);
      keys = {own_k, own_v, d, w, begin};
      copied = true;
    }
    const std::int64_t ahead = blocks_ahead(to - from), share = a.heads / a.kv_heads;
    const bool same_keys = next != nullptr && next->seq.k0 == seq.k0 && next->head / share == kv;
    for (std::int64_t b = from; b < to; ++b) {
      const std::int64_t later = b + ahead - to;
      steps.keep(3 * (ahead - 1));  // up to three entries a block; older ones are late
      if (later < 0)
        fetch(here, b + ahead, !copied);
      else if (next != nullptr)
        fetch(*next, later, !copied && !same_keys);
      block(seq, head, keys, b * kQueryBlock);
    }
  }

  // One block of queries of one head. Online softmax: loops over blocks of keys and updates each
  // query's largest score and sum of exponentials.
  void block(const Sequence& seq, std::int64_t head, const KeyRows& rows,
             std::int64_t first) const {
    constexpr T kInf = std::numeric_limits<T>::infinity();
    const std::int64_t n = std::min(kQueryBlock, seq.t - first), d = a.head_dim, w = a.value_dim;
    const KeyRange range = seq.visible(a, first, n);
    T* const yb = y + (seq.q0 + first) * ldy + head * w;
    alignas(64) T high[kQueryBlock], sum[kQueryBlock], p[kKeyBlock * kQueryBlock];
    bool started[kGroups] = {};
    std::fill_n(high, kQueryBlock, -kInf);
    std::fill_n(sum, kQueryBlock, T(0));
    LaneScores<T> queries(q + (seq.q0 + first) * ldq + head * d, ldq, n, d, static_cast<T>(a.scale),
                          steps);

    for (std::int64_t s = range.begin; s < range.end; s += kKeyBlock) {
      const std::int64_t m = std::min(kKeyBlock, range.end - s);
      const BlockKeys keys(seq, a, first, n, s, m);
      queries.against(rows.k + (s - rows.first) * rows.ldk, rows.ldk, keys, steps, p);
      for (int g = 0; g < kGroups; ++g) {
        if (keys.empty(g)) continue;
        const std::int64_t at = g * kLanes;
        T shrink[kLanes];
        steps.softmax_step(p + at, keys[g], high + at, sum + at, shrink);
        for (std::int64_t i = 0; started[g] && i < keys.queries(g); ++i)
          if (shrink[i] != T(1)) steps.scale(yb + (at + i) * ldy, w, shrink[i]);
        if (a.dropout > 0) drop(seq, head, first + at, s, keys[g], p + at);
      }
      const T* const vb = rows.v + (s - rows.first) * rows.ldv;
      keys.by_queries([&](int g, int groups, std::int64_t key, std::int64_t count) {
        // Groups that see the same keys here started at the same block, or have not started yet.
        const std::int64_t at = g * kLanes;
        steps.product(p + key * kQueryBlock + at, 1, kQueryBlock, vb + key * rows.ldv, rows.ldv,
                      yb + at * ldy, ldy, std::min(n - at, groups * kLanes), w, count, started[g]);
        std::fill_n(started + g, groups, true);
      });
    }
    T* const lse_row =
        lse + (seq.batch * a.heads + head) * a.queries + seq.q0 - seq.batch * a.queries + first;
    for (std::int64_t i = 0; i < n; ++i) {
      if (!started[i / kLanes]) std::fill_n(yb + i * ldy, w, T(0));
      lse_row[i] = sum[i] == T(0) ? -kInf : high[i] + std::log(sum[i]);
      if (sum[i] != T(0)) steps.scale(yb + i * ldy, w, T(1) / sum[i]);
    }
  }

  void drop(const Sequence& seq, std::int64_t head, std::int64_t query, std::int64_t s,
            const LaneKeys& keys, T* p) const {
    alignas(64) T factors[kKeyBlock * kLanes];
    const std::int64_t count = keys.end - keys.begin;
    dropout_factors(a, seq, head, query, s + keys.begin, count, steps, factors);
    multiply_lanes(p + keys.begin * kQueryBlock, factors, count);
  }
};

}  // namespace

void attention_fwd(const AttentionIn& in, const AttentionSpec& a, const AttentionOut& out) {
  if (out.y.numel() == 0) return;
  const std::int32_t* cu = data_or_null<std::int32_t>(in.cu_seqlens);
  const std::int64_t sequences = cu ? in.cu_seqlens.numel() - 1 : a.batch;
  // Packed sequences differ in their number of blocks: there a work item is a whole sequence.
  const std::int64_t blocks = cu ? 1 : query_blocks(a.queries);
  const std::int64_t items = sequences * a.heads * blocks;
  const auto run = [&]<class T>() {
    const Forward<T> shared{.a = a,
                            .q = in.q.data<T>(),
                            .k = in.k.data<T>(),
                            .v = in.v.data<T>(),
                            .y = out.y.data<T>(),
                            .lse = out.lse.data<T>(),
                            .ldq = token_distance(in.q),
                            .ldk = token_distance(in.k),
                            .ldv = token_distance(in.v),
                            .ldy = token_distance(out.y),
                            .steps = {}};
    const auto head_of = [&](std::int64_t i) {
      return SequenceHead{Sequence::at(a, cu, i / (a.heads * blocks)), i / blocks % a.heads};
    };
    const std::int64_t work = a.batch * a.heads * a.queries * (a.keys + 1) / items * a.head_dim / 4;
    parallel_for(items, work + 1, [&](std::int64_t begin, std::int64_t end) {
      Forward<T> f = shared;
      RowsAhead ahead;
      f.steps.use(&ahead);
      for (std::int64_t i = begin, next; i < end; i = next) {
        next = std::min(end, (i / blocks + 1) * blocks);  // where the head ends
        const SequenceHead here = head_of(i), after = head_of(std::min(next, items - 1));
        const std::int64_t from = i % blocks;
        f.blocks(here, from, cu ? query_blocks(here.seq.t) : from + next - i,
                 next < end ? &after : nullptr);
      }
    });
  };
  in.q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
