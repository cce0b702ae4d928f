#include "weft/core/kernels/router_loss.h"

#include <algorithm>
#include <cmath>

#include "weft/core/cpu/router_rows.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kWork = 32;  // of an expert of a token

// f[e] = E * counts[b, e] / sum_e counts[b, e] of the sequence that a token belongs to.
template <class R>
class Fractions {
 public:
  Fractions(const std::int64_t* counts, std::int64_t length, std::int64_t E)
      : counts_(counts), length_(length), E_(E) {}
  const R* of(std::int64_t token) {
    if (token / length_ == at_) return f_;
    at_ = token / length_;
    const std::int64_t* c = counts_ + at_ * E_;
    std::int64_t total = 0;
    for (std::int64_t e = 0; e < E_; ++e) total += c[e];
    const double scale = total > 0 ? static_cast<double>(E_) / static_cast<double>(total) : 0;
    for (std::int64_t e = 0; e < E_; ++e) f_[e] = static_cast<R>(static_cast<double>(c[e]) * scale);
    return f_;
  }

 private:
  const std::int64_t* counts_;
  std::int64_t length_, E_, at_ = -1;
  alignas(64) R f_[kRouterExperts];
};

// The scores of all experts before they are divided by their sum (softmax: after), and the divisor.
template <class R>
R scores(RouterScore score, const R* x, R* s, std::int64_t E) {
  if (score == RouterScore::softmax) {
    RouterRows<R>::softmax(x, s, E);
    return 1;
  }
  RouterRows<R>::score(score, x, s, E);
  return RouterRows<R>::sum(s, E) + static_cast<R>(kRouterEps);
}

template <class R>
R log_sum_exp(const R* x, std::int64_t E) {
  const R top = RouterRows<R>::max(x, E);
  return top + std::log(RouterRows<R>::sum_exp(x, top, E));
}

// Calls row(t, x, fractions) for every token that is not padding, skip(t) for the others.
template <class T, class Row, class Skip>
void each_token(const Tensor& logits, const Tensor& counts, const Tensor& padding, Row row,
                Skip skip) {
  using R = RouterReal<T>;
  const std::int64_t tokens = logits.dim(0), E = logits.dim(1);
  const T* px = logits.data<T>();
  const std::int64_t* pc = counts ? counts.data<std::int64_t>() : nullptr;
  const std::int64_t length = counts ? std::max<std::int64_t>(tokens / counts.dim(0), 1) : 1;
  const bool* pad = padding ? padding.data<bool>() : nullptr;
  parallel_for(tokens, kWork * E, [=](std::int64_t begin, std::int64_t end) {
    alignas(64) R wide[kRouterExperts];
    Fractions<R> fractions(pc, length, E);
    for (std::int64_t t = begin; t < end; ++t)
      if (pad && pad[t])
        skip(t);
      else
        row(t, RouterRows<R>::widened(px + t * E, wide, E), fractions);
  });
}

}  // namespace

void router_loss_fwd(const Tensor& logits, const Tensor& counts, const Tensor& padding,
                     RouterScore score, double coefficient, const Tensor& terms, const Tensor& loss,
                     const Tensor& share) {
  const std::int64_t tokens = logits.dim(0), E = logits.dim(1);
  const bool balance = static_cast<bool>(counts);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = RouterReal<T>;
    R* term = terms.data<R>();
    each_token<T>(
        logits, counts, padding,
        [=](std::int64_t t, const R* x, Fractions<R>& fractions) {
          if (balance) {
            alignas(64) R s[kRouterExperts];
            const R sum = scores(score, x, s, E);
            term[t] = RouterRows<R>::dot(s, fractions.of(t), E) / sum;
          } else {
            const R z = log_sum_exp(x, E);
            term[t] = z * z;
          }
        },
        [=](std::int64_t t) { term[t] = 0; });
    std::int64_t counted = tokens;
    for (std::int64_t t = 0; padding && t < tokens; ++t) counted -= padding.data<bool>()[t];
    double total = 0;
    for (std::int64_t t = 0; t < tokens; ++t) total += term[t];
    const double part = counted > 0 ? coefficient / static_cast<double>(counted) : 0;
    *loss.data<R>() = static_cast<R>(total * part);
    *share.data<R>() = static_cast<R>(part);
  });
}

void router_loss_bwd(const Tensor& logits, const Tensor& counts, const Tensor& padding,
                     RouterScore score, const Tensor& share, const Tensor& dloss,
                     const Tensor& dlogits) {
  const std::int64_t E = logits.dim(1);
  const bool balance = static_cast<bool>(counts);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = RouterReal<T>;
    const R scale = *share.data<R>() * *dloss.data<R>();
    T* pdx = dlogits.data<T>();
    each_token<T>(
        logits, counts, padding,
        [=](std::int64_t t, const R* x, Fractions<R>& fractions) {
          alignas(64) R s[kRouterExperts];
          T* dx = pdx + t * E;
          if (!balance) {
            RouterRows<R>::softmax(x, s, E);
            const R factor = 2 * scale * log_sum_exp(x, E);
            for (std::int64_t e = 0; e < E; ++e) dx[e] = T(s[e] * factor);
            return;
          }
          const R* f = fractions.of(t);
          const R sum = scores(score, x, s, E), mean = RouterRows<R>::dot(s, f, E) / sum;
          if (score == RouterScore::softmax)
            for (std::int64_t e = 0; e < E; ++e) dx[e] = T(scale * s[e] * (f[e] - mean));
          else
            for (std::int64_t e = 0; e < E; ++e)
              dx[e] = T(scale / sum * (f[e] - mean) * router_slope(score, x[e], s[e]));
        },
        [=](std::int64_t t) { std::fill_n(pdx + t * E, E, T(0)); });
  });
}

void count_experts(const Tensor& experts, const Tensor& counts) {
  const std::int64_t parts = counts.dim(0), E = counts.dim(1), size = experts.numel() / parts;
  const std::int64_t* chosen = experts.data<std::int64_t>();
  std::int64_t* out = counts.data<std::int64_t>();
  parallel_for(parts, size, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * size; i < end * size; ++i)
      if (chosen[i] >= 0 && chosen[i] < E) ++out[i / size * E + chosen[i]];
  });
}

}  // namespace weft::cpu
