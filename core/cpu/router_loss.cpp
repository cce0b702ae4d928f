#include "weft/core/kernels/router_loss.h"

#include <algorithm>
#include <cmath>

#include "weft/core/cpu/router_rows.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t L = kTokenLanes, kWork = 16;  // per expert of a token

// Up to sixteen tokens of one sequence.
struct Block {
  std::int64_t first, tokens, sequence;
};

// Calls run(block) for all blocks of tokens. Sixteen tokens form one block, or several where a
// sequence ends among them.
template <class F>
void each_block(std::int64_t tokens, const Sequences& all, std::int64_t E, F run) {
  parallel_for((tokens + L - 1) / L, L * kWork * E, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin * L; t < std::min(end * L, tokens);) {
      const std::int64_t sequence = all.of(t), next = (t / L + 1) * L;
      const std::int64_t stop = std::min({all.end(sequence), next, tokens});
      run(Block{t, stop - t, sequence});
      t = stop;
    }
  });
}

// f[e] = E counts[e] / sum(counts).
template <class R>
void fractions(const std::int64_t* counts, std::int64_t E, R* f) {
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < E; ++e) total += counts[e];
  const double scale = total > 0 ? static_cast<double>(E) / static_cast<double>(total) : 0;
  for (std::int64_t e = 0; e < E; ++e)
    f[e] = static_cast<R>(static_cast<double>(counts[e]) * scale);
}

// The unnormalised scores of a block and their sum: s (E, 16) holds the logits on entry. top: the
// value subtracted from the logits of a softmax.
template <class R>
struct Scores {
  R top[L], sum[L];

  Scores(RouterScore score, std::int64_t E, R* s) {
    std::fill_n(sum, L, R(0));
    if (score == RouterScore::softmax) {
      std::copy_n(s, L, top);
      for (std::int64_t e = 1; e < E; ++e)
        for (std::int64_t t = 0; t < L; ++t) top[t] = std::max(top[t], s[e * L + t]);
      for (std::int64_t e = 0; e < E; ++e)
        for (std::int64_t t = 0; t < L; ++t) s[e * L + t] -= top[t];
      RouterRows<R>::exp(s, s, E * L);
    } else {
      RouterRows<R>::score(score, s, s, E * L);
      std::fill_n(sum, L, static_cast<R>(kRouterEps));
    }
    for (std::int64_t e = 0; e < E; ++e)
      for (std::int64_t t = 0; t < L; ++t) sum[t] += s[e * L + t];
  }
  R log_sum(std::int64_t t) const { return top[t] + std::log(sum[t]); }
};

// mean[t] = sum_e s[e, t] f[e] / sum[t]
template <class R>
void weighted_means(const R* s, const R* f, const R* sum, std::int64_t E, R* mean) {
  std::fill_n(mean, L, R(0));
  for (std::int64_t e = 0; e < E; ++e)
    for (std::int64_t t = 0; t < L; ++t) mean[t] += s[e * L + t] * f[e];
  for (std::int64_t t = 0; t < L; ++t) mean[t] /= sum[t];
}

}  // namespace

void router_loss_fwd(const RouterLossIn& in, double coefficient, const RouterLossOut& out) {
  const std::int64_t tokens = in.logits.dim(0), E = in.logits.dim(1);
  const Sequences all = counted_sequences(tokens, in.counts, in.cu_seqlens);
  const std::int64_t* pc = data_or_null<std::int64_t>(in.counts);
  const bool* pad = data_or_null<bool>(in.padding);
  const RouterScore score = in.score;
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* px = in.logits.data<T>();
    R* term = out.terms.data<R>();
    each_block(tokens, all, E, [=](const Block& block) {
      alignas(64) R s[kRouterExperts * L], f[kRouterExperts];
      load_columns(px + block.first * E, E, block.tokens, 0, E, s);
      const Scores<R> scores(score, E, s);
      R value[L];
      if (pc) {
        fractions(pc + block.sequence * E, E, f);
        weighted_means(s, f, scores.sum, E, value);
      } else {
        for (std::int64_t t = 0; t < block.tokens; ++t)
          value[t] = scores.log_sum(t) * scores.log_sum(t);
      }
      for (std::int64_t t = 0; t < block.tokens; ++t)
        term[block.first + t] = pad && pad[block.first + t] ? R(0) : value[t];
    });
    std::int64_t counted = tokens;
    for (std::int64_t t = 0; pad && t < tokens; ++t) counted -= pad[t];
    double total = 0;
    for (std::int64_t t = 0; t < tokens; ++t) total += term[t];
    const double part = counted > 0 ? coefficient / static_cast<double>(counted) : 0;
    *out.loss.data<R>() = static_cast<R>(total * part);
    *out.share.data<R>() = static_cast<R>(part);
  });
}

void router_loss_bwd(const RouterLossIn& in, const Tensor& share, const Tensor& dloss,
                     const Tensor& dlogits) {
  const std::int64_t tokens = in.logits.dim(0), E = in.logits.dim(1);
  const Sequences all = counted_sequences(tokens, in.counts, in.cu_seqlens);
  const std::int64_t* pc = data_or_null<std::int64_t>(in.counts);
  const bool* pad = data_or_null<bool>(in.padding);
  const RouterScore score = in.score;
  dispatch_floating(in.logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* px = in.logits.data<T>();
    const R scale = *share.data<R>() * *dloss.data<R>();
    T* pdx = dlogits.data<T>();
    each_block(tokens, all, E, [=](const Block& block) {
      alignas(64) R s[kRouterExperts * L], f[kRouterExperts];
      load_columns(px + block.first * E, E, block.tokens, 0, E, s);
      const Scores<R> scores(score, E, s);
      R mean[L], factor[L];
      for (std::int64_t t = 0; t < L; ++t) factor[t] = scale / scores.sum[t];
      if (pc) {
        fractions(pc + block.sequence * E, E, f);
        weighted_means(s, f, scores.sum, E, mean);
      } else {
        for (std::int64_t t = 0; t < block.tokens; ++t) factor[t] *= 2 * scores.log_sum(t);
      }
      if (score != RouterScore::softmax)
        for (std::int64_t e = 0; e < E; ++e)
          for (std::int64_t t = 0; t < block.tokens; ++t)
            s[e * L + t] =
                router_slope(score, static_cast<R>(px[(block.first + t) * E + e]), s[e * L + t]);
      for (std::int64_t e = 0; e < E; ++e)
        for (std::int64_t t = 0; t < L; ++t)
          s[e * L + t] *= factor[t] * (pc ? f[e] - mean[t] : R(1));
      store_columns(s, E, block.tokens, pdx + block.first * E);
      for (std::int64_t t = 0; t < block.tokens; ++t)
        if (pad && pad[block.first + t]) std::fill_n(pdx + (block.first + t) * E, E, T(0));
    });
  });
}

void count_experts(const Tensor& experts, const Tensor& cu_seqlens, const Tensor& counts) {
  const std::int64_t parts = counts.dim(0), E = counts.dim(1), k = experts.dim(1);
  const Sequences all = counted_sequences(experts.dim(0), counts, cu_seqlens);
  const std::int64_t* chosen = experts.data<std::int64_t>();
  std::int64_t* out = counts.data<std::int64_t>();
  const std::int64_t work = parts > 0 ? experts.numel() / parts : 0;
  parallel_for(parts, work, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part)
      for (std::int64_t i = all.begin(part) * k; i < all.end(part) * k; ++i)
        if (chosen[i] >= 0 && chosen[i] < E) ++out[part * E + chosen[i]];
  });
}

}  // namespace weft::cpu
