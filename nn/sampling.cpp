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

// Likeliest first; equal logits by token number, so the order never depends on the sort.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

std::vector<Candidate> candidates(const Tensor& logits) {
  std::vector<double> values(static_cast<std::size_t>(logits.numel()));
  logits.copy_to(values);
  std::vector<Candidate> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check(!std::isnan(values[i]), "sample_token: logits must not be NaN, got one at token {}", i);
    check(values[i] != INFINITY, "sample_token: logits must not be +inf, got one at token {}", i);
    if (values[i] != -INFINITY) out.push_back({values[i], static_cast<std::int64_t>(i)});
  }
  check(!out.empty(), "sample_token: at least one logit must be above -inf, got none of {}",
        values.size());
  return out;
}

}  // namespace

std::int64_t sample_token(const Tensor& logits, const SamplingOptions& o, const RandomKey& key) {
  check(logits.ndim() == 1 && logits.numel() > 0,
        "sample_token: logits must have shape (V) with V at least 1, got {}", logits.shape());
  check(o.temperature >= 0 && std::isfinite(o.temperature),
        "sample_token: temperature must be at least 0, got {}", o.temperature);
  check(o.top_k >= 0, "sample_token: top_k must be at least 0, got {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "sample_token: top_p must be in (0, 1], got {}", o.top_p);

  std::vector<Candidate> c = candidates(logits);
  if (o.temperature == 0) return std::min_element(c.begin(), c.end(), likelier)->token;
  std::sort(c.begin(), c.end(), likelier);
  if (o.top_k > 0 && o.top_k < static_cast<std::int64_t>(c.size()))
    c.resize(static_cast<std::size_t>(o.top_k));

  // Weights relative to the likeliest token, so a tiny temperature cannot overflow.
  std::vector<double> weight;
  for (const Candidate& x : c) weight.push_back(std::exp((x.logit - c[0].logit) / o.temperature));
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (o.top_p < 1) {
    double kept = 0;
    std::size_t n = 0;
    while (n < weight.size() && kept < o.top_p * total) kept += weight[n++];
    weight.resize(n);
    total = kept;
  }
  const double u = (static_cast<double>(random_bits(key, 0)) + 0.5) * 0x1p-32;
  double left = u * total;
  for (std::size_t i = 0; i < weight.size(); ++i)
    if ((left -= weight[i]) < 0) return c[i].token;
  // Rounding left a crumb: the last token that has any weight.
  std::size_t last = weight.size() - 1;
  while (last > 0 && weight[last] == 0) --last;
  return c[last].token;
}

}  // namespace weft::nn
