#include "weft/nn/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "weft/core/error.h"

namespace weft::nn {
namespace {

struct Candidate {
  double logit;
  std::int64_t token;
};

// Most likely first; ties by token index, so the order does not depend on the sort algorithm.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

std::vector<Candidate> candidates(const Tensor& logits, const SamplingOptions& o) {
  std::vector<double> values(static_cast<std::size_t>(logits.numel()));
  logits.copy_to(values);
  std::vector<Candidate> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (o.allows && !o.allows(static_cast<std::int64_t>(i))) continue;
    check(!std::isnan(values[i]), "sample_token: logits must not be NaN, got one at token {}", i);
    check(values[i] != INFINITY, "sample_token: logits must not be +inf, got one at token {}", i);
    if (values[i] != -INFINITY) out.push_back({values[i], static_cast<std::int64_t>(i)});
  }
  check(!out.empty(), "sample_token: at least one logit must be above -inf, got none of {}",
        values.size());
  return out;
}

/// The candidate tokens, most likely first; only the first weights.size() can be drawn.
struct Choice {
  std::vector<Candidate> tokens;
  std::vector<double> weights;
};

Choice choice(const Tensor& logits, const SamplingOptions& o) {
  check(logits.ndim() == 1 && logits.numel() > 0,
        "sample_token: logits must have shape (V) with V at least 1, got {}", logits.shape());
  check(o.temperature >= 0 && std::isfinite(o.temperature),
        "sample_token: temperature must be at least 0, got {}", o.temperature);
  check(o.top_k >= 0, "sample_token: top_k must be at least 0, got {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "sample_token: top_p must be in (0, 1], got {}", o.top_p);

  std::vector<Candidate> c = candidates(logits, o);
  if (o.temperature == 0) return {{*std::min_element(c.begin(), c.end(), likelier)}, {1}};
  std::sort(c.begin(), c.end(), likelier);
  if (o.top_k > 0 && o.top_k < static_cast<std::int64_t>(c.size()))
    c.resize(static_cast<std::size_t>(o.top_k));

  // Weights are relative to the most likely token, so a tiny temperature cannot overflow.
  std::vector<double> weight;
  for (const Candidate& x : c) weight.push_back(std::exp((x.logit - c[0].logit) / o.temperature));
  if (o.top_p < 1) {
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    double kept = 0;
    std::size_t n = 0;
    while (n < weight.size() && kept < o.top_p * total) kept += weight[n++];
    weight.resize(n);
  }
  return {std::move(c), std::move(weight)};
}

}  // namespace

std::int64_t sample_token(const Tensor& logits, const SamplingOptions& options,
                          const RandomKey& key) {
  const Choice c = choice(logits, options);
  return c.tokens[static_cast<std::size_t>(draw_token(c.weights, key))].token;
}

std::vector<double> token_probabilities(const Tensor& logits, const SamplingOptions& options) {
  const Choice c = choice(logits, options);
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  std::vector<double> p(static_cast<std::size_t>(logits.numel()));
  for (std::size_t i = 0; i < c.weights.size(); ++i)
    p[static_cast<std::size_t>(c.tokens[i].token)] = c.weights[i] / total;
  return p;
}

std::int64_t draw_token(std::span<const double> weights, const RandomKey& key) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  check(total > 0 && std::isfinite(total) &&
            std::all_of(weights.begin(), weights.end(), [](double w) { return w >= 0; }),
        "draw_token: weights must be at least 0 with a sum above 0, got a sum of {}", total);
  const double u = (static_cast<double>(random_bits(key, 0)) + 0.5) * 0x1p-32;
  double left = u * total;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<std::int64_t>(i);
  // Rounding left a remainder: return the last token with a nonzero weight.
  std::size_t last = weights.size() - 1;
  while (last > 0 && weights[last] == 0) --last;
  return static_cast<std::int64_t>(last);
}

}  // namespace weft::nn
