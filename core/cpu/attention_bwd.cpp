#include "weft/core/cpu/attention_block.h"
#include "weft/core/kernels/attention.h"
#include "weft/core/kernels/operand.h"
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
  std::int64_t ldq, ldk, ldv;  // of the inputs, which may be slices of wider rows
  std::int64_t ldy;            // of y and dy
  std::int64_t lddq, lddk, lddv;
  Steps<T> steps;

  // The rows of one key head.
  struct KeyRows {
    const T *k, *v;
    T *dk, *dv;
    std::int64_t ldk, ldv, lddk, lddv;
  };
  // The rows of one query head, from the first query of a block.
  struct QueryRows {
    const T *q, *dy;
    T* dq;
    std::int64_t ldq, lddy, lddq;
  };

  // The first query of a block by its place in a head's order: the last block, then the others from
  // the first on.
  static std::int64_t query_at(std::int64_t place, std::int64_t blocks) {
    return ((place == 0 ? blocks : place) - 1) * kQueryBlock;
  }

  // Queues what the block at `place` in a head's order reads and writes; if `keys`, the first block
  // with all of the head's keys, unless they take too much of the L2.
  void fetch(const SequenceHead& h, std::int64_t place, bool keys) const {
    const auto& [seq, head] = h;
    const std::int64_t blocks = query_blocks(seq.t), d = a.head_dim, w = a.value_dim;
    if (place >= blocks) return;
    const std::int64_t first = query_at(place, blocks), row = seq.q0 + first;
    const std::int64_t n = std::min(kQueryBlock, seq.t - first), kv = head / (a.heads / a.kv_heads);
    const std::int64_t key_bytes = 2 * seq.s * (d + w) * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t s = keys && place == 0 && key_bytes <= l2_bytes() / 4 ? seq.s : 0;
    steps.fetch(k + seq.k0 * ldk + kv * d, ldk, s, d);
    steps.fetch(v + seq.k0 * ldv + kv * w, ldv, s, w);
    steps.fetch(q + row * ldq + head * d, ldq, n, d);
    steps.fetch(dy + row * ldy + head * w, ldy, n, w);
    steps.fetch(y + row * ldy + head * w, ldy, n, w);
    steps.fetch(dv + seq.k0 * lddv + kv * w, lddv, s, w);
    steps.fetch(dk + seq.k0 * lddk + kv * d, lddk, s, d);
    steps.fetch(dq + row * lddq + head * d, lddq, n, d);
  }

  // One key head of one sequence: the only writer of its dk and dv, and of dq of its query heads.
  // `next`: the head after them, or null.
  void group(const Sequence& seq, std::int64_t kv, const SequenceHead* next) const {
    const std::int64_t d = a.head_dim, w = a.value_dim;
    const KeyRows given{.k = k + seq.k0 * ldk + kv * d,
                        .v = v + seq.k0 * ldv + kv * w,
                        .dk = dk + seq.k0 * lddk + kv * d,
                        .dv = dv + seq.k0 * lddv + kv * w,
                        .ldk = ldk,
                        .ldv = ldv,
                        .lddk = lddk,
                        .lddv = lddv};
    const std::int64_t keys = seq.s * (d + w), block = kQueryBlock * (2 * d + w);
    T* const room = room_for_rows<T>(a, seq.t, 2 * keys, block);
    if (room == nullptr) return heads(seq, kv, given, nullptr, next);
    T *const own_k = room + block, *const own_v = own_k + seq.s * d;
    T *const own_dk = own_k + keys, *const own_dv = own_v + keys;
    copy_rows(given.k, ldk, seq.s, d, own_k, d);
    copy_rows(given.v, ldv, seq.s, w, own_v, w);
    heads(seq, kv, {own_k, own_v, own_dk, own_dv, d, w, d, w}, room, next);
    copy_rows(own_dk, d, seq.s, d, given.dk, lddk);
    copy_rows(own_dv, w, seq.s, w, given.dv, lddv);
  }

  // The query heads of a key head.
  void heads(const Sequence& seq, std::int64_t kv, const KeyRows& rows, T* room,
             const SequenceHead* next) const {
    const std::int64_t share = a.heads / a.kv_heads;
    // Without a window the last query sees every key: its block runs first and writes dk and dv;
    // the other blocks add to them.
    const bool writes = a.window == 0 && seq.t > 0;
    for (std::int64_t s = 0; !writes && s < seq.s; ++s) {
      std::fill_n(rows.dk + s * rows.lddk, a.head_dim, T(0));
      std::fill_n(rows.dv + s * rows.lddv, a.value_dim, T(0));
    }
    if (seq.t == 0) return;
    const std::int64_t blocks = query_blocks(seq.t), ahead = blocks_ahead(blocks);
    for (std::int64_t head = kv * share; head < (kv + 1) * share; ++head) {
      const bool first_head = head == kv * share, last_head = head + 1 == (kv + 1) * share;
      const SequenceHead here{seq, head}, same_keys{seq, head + 1};
      const SequenceHead* const after = last_head ? next : &same_keys;
      for (std::int64_t place = 0; place < blocks; ++place) {
        steps.keep(8 * (ahead - 1));  // up to eight entries a block; older ones are late
        if (place + ahead < blocks)
          fetch(here, place + ahead, false);
        else if (after != nullptr)
          fetch(*after, place + ahead - blocks, last_head && room == nullptr);
        block(seq, head, rows, query_at(place, blocks), !writes || !first_head || place > 0, room);
      }
    }
  }

  // One block of queries: recomputes the probabilities from scores and lse. Copies its rows to
  // `room`, if there is any.
  void block(const Sequence& seq, std::int64_t head, const KeyRows& key_rows, std::int64_t first,
             bool add, T* room) const {
    const std::int64_t n = std::min(kQueryBlock, seq.t - first), d = a.head_dim, w = a.value_dim;
    const KeyRange range = seq.visible(a, first, n);
    const std::int64_t at = (seq.q0 + first) * ldy + head * w;
    QueryRows rows{.q = q + (seq.q0 + first) * ldq + head * d,
                   .dy = dy + at,
                   .dq = dq + (seq.q0 + first) * lddq + head * d,
                   .ldq = ldq,
                   .lddy = ldy,
                   .lddq = lddq};
    T* const given_dq = rows.dq;
    if (room != nullptr) {
      T *const own_q = room, *const own_dy = own_q + kQueryBlock * d;
      copy_rows(rows.q, ldq, n, d, own_q, d);
      copy_rows(rows.dy, ldy, n, w, own_dy, w);
      rows = {own_q, own_dy, own_dy + kQueryBlock * w, d, w, d};
    }
    T delta[kQueryBlock] = {}, shift[kQueryBlock] = {};
    bool started[kGroups] = {};
    std::copy_n(
        lse + (seq.batch * a.heads + head) * a.queries + seq.q0 - seq.batch * a.queries + first, n,
        shift);
    for (std::int64_t i = 0; i < n; ++i)
      delta[i] = steps.dot(rows.dy + i * rows.lddy, y + at + i * ldy, w);
    LaneScores<T> queries(rows.q, rows.ldq, n, d, static_cast<T>(a.scale), steps);
    LaneScores<T> grads(rows.dy, rows.lddy, n, w, T(1), steps);

    alignas(64) T p[kKeyBlock * kQueryBlock], dp[kKeyBlock * kQueryBlock];
    for (std::int64_t s = range.begin; s < range.end; s += kKeyBlock) {
      const BlockKeys keys(seq, a, first, n, s, std::min(kKeyBlock, range.end - s));
      const T* const kb = key_rows.k + s * key_rows.ldk;
      queries.against(kb, key_rows.ldk, keys, steps, p);
      grads.against(key_rows.v + s * key_rows.ldv, key_rows.ldv, keys, steps, dp);
      for (int g = 0; g < kGroups; ++g)
        if (!keys.empty(g)) score_gradients(seq, head, first, s, keys, g, delta, shift, p, dp);

      T* const dkb = key_rows.dk + s * key_rows.lddk;
      T* const dvb = key_rows.dv + s * key_rows.lddv;
      keys.by_keys([&](std::int64_t j, std::int64_t count, std::int64_t i, std::int64_t lanes) {
        const std::int64_t from = j * kQueryBlock + i, depth = std::min(lanes, n - i);
        steps.product(p + from, kQueryBlock, 1, rows.dy + i * rows.lddy, rows.lddy,
                      dvb + j * key_rows.lddv, key_rows.lddv, count, w, depth, add);
        steps.product(dp + from, kQueryBlock, 1, rows.q + i * rows.ldq, rows.ldq,
                      dkb + j * key_rows.lddk, key_rows.lddk, count, d, depth, add);
      });
      keys.by_queries([&](int g, int groups, std::int64_t key, std::int64_t count) {
        const std::int64_t i = g * kLanes;
        steps.product(dp + key * kQueryBlock + i, 1, kQueryBlock, kb + key * key_rows.ldk,
                      key_rows.ldk, rows.dq + i * rows.lddq, rows.lddq,
                      std::min(n - i, groups * kLanes), d, count, started[g]);
        std::fill_n(started + g, groups, true);
      });
    }
    for (std::int64_t i = 0; i < n; ++i)
      if (!started[i / kLanes]) std::fill_n(rows.dq + i * rows.lddq, d, T(0));
    if (room != nullptr) copy_rows(rows.dq, d, n, d, given_dq, lddq);
  }

  // In a group of queries, p becomes the probabilities that dv needs and dp the gradient of the
  // scores.
  void score_gradients(const Sequence& seq, std::int64_t head, std::int64_t first, std::int64_t s,
                       const BlockKeys& keys, int g, const T* delta, const T* shift, T* p,
                       T* dp) const {
    const LaneKeys& seen = keys[g];
    const std::int64_t at = g * kLanes, count = seen.end - seen.begin;
    const std::int64_t from = seen.begin * kQueryBlock + at;
    alignas(64) T factors[kKeyBlock * kLanes];
    steps.probabilities(p + at, seen, shift + at);
    if (a.dropout > 0) {
      dropout_factors(a, seq, head, first + at, s + seen.begin, count, steps, factors);
      multiply_lanes(dp + from, factors, count);
    }
    steps.scores_bwd(p + at, dp + at, seen, delta + at, static_cast<T>(a.scale));
    if (a.dropout > 0) multiply_lanes(p + from, factors, count);
  }
};

}  // namespace

void attention_bwd(const AttentionIn& in, const AttentionSpec& a, const AttentionOut& forward,
                   const Tensor& dy, const AttentionGrads& out) {
  if (in.q.numel() == 0 && in.k.numel() == 0) return;
  const std::int32_t* cu = data_or_null<std::int32_t>(in.cu_seqlens);
  const std::int64_t items = (cu ? in.cu_seqlens.numel() - 1 : a.batch) * a.kv_heads;
  const auto run = [&]<class T>() {
    const BackwardPass<T> shared{.a = a,
                                 .q = in.q.data<T>(),
                                 .k = in.k.data<T>(),
                                 .v = in.v.data<T>(),
                                 .y = forward.y.data<T>(),
                                 .lse = forward.lse.data<T>(),
                                 .dy = dy.data<T>(),
                                 .dq = out.dq.data<T>(),
                                 .dk = out.dk.data<T>(),
                                 .dv = out.dv.data<T>(),
                                 .ldq = token_distance(in.q),
                                 .ldk = token_distance(in.k),
                                 .ldv = token_distance(in.v),
                                 .ldy = token_distance(forward.y),
                                 .lddq = token_distance(out.dq),
                                 .lddk = token_distance(out.dk),
                                 .lddv = token_distance(out.dv),
                                 .steps = {}};
    const std::int64_t work =
        a.batch * a.heads * (a.queries + 1) * (a.keys + 1) / items * a.head_dim;
    parallel_for(items, work + 1, [&](std::int64_t begin, std::int64_t end) {
      BackwardPass<T> pass = shared;
      RowsAhead ahead;
      pass.steps.use(&ahead);
      const auto group = [&](std::int64_t i) { return Sequence::at(a, cu, i / a.kv_heads); };
      const std::int64_t share = a.heads / a.kv_heads;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t next = std::min(i + 1, items - 1);
        const SequenceHead after{group(next), next % a.kv_heads * share};
        pass.group(group(i), i % a.kv_heads, next < end && next > i ? &after : nullptr);
      }
    });
  };
  in.q.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
}

}  // namespace weft::cpu
