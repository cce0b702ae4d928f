#include <algorithm>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/router.h"
#include "weft/autograd/router_gate.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_rows.h"

// Routers and experts.
namespace weft::generated {
namespace {

// Routing. ints after the form: the experts of a token; reals[0]: the scaling, then biases.
bool routed(Maker& m, Item& item) {
  if (!padded_rows(m, item, 5)) return false;
  const std::int64_t experts = item.ints[1];
  const bool needs_two = form(item) == 0;
  item.ints.push_back(1 + m.rng.below(std::min<std::int64_t>(experts, 3)));
  item.reals = {0.5 + static_cast<double>(m.rng.below(5)) / 4};
  if (form(item) > 1)
    for (std::int64_t e = 0; e < experts; ++e) item.reals.push_back(dyadic(m));
  if (form(item) == 4 && (experts % 2 != 0 || item.ints.back() > experts / 2)) return false;
  return !(needs_two && item.ints.back() == 1);
}
std::size_t topk(I item) { return static_cast<std::size_t>(item.ints.back()); }
RouterOptions router(I item) {
  constexpr RouterScore kScores[] = {RouterScore::softmax, RouterScore::softmax,
                                     RouterScore::sigmoid, RouterScore::sqrt_softplus,
                                     RouterScore::sigmoid};
  RouterOptions o;
  o.topk = item.ints.back();
  o.score = kScores[form(item)];
  o.pre_softmax = form(item) == 1;
  o.scaling = item.reals[0];
  if (form(item) == 4) o.groups = 2, o.group_topk = 1;
  return o;
}
// The places of the best k keys.
std::vector<int> best(const Row& keys, std::size_t k) {
  std::vector<int> order = falling(keys);
  order.resize(k);
  return order;
}
Row route_row(I item, const Row& x) {
  const RouterOptions o = router(item);
  const bool sums_to_one = o.score == RouterScore::softmax;
  const std::size_t k = topk(item);
  Row scores, keys;
  for (std::size_t e = 0; e < x.size(); ++e) {
    scores.push_back(sums_to_one ? x[e] : score_of(o.score, x[e]));
    keys.push_back(sums_to_one ? x[e] : still(scores[e]) + item.reals[1 + e]);
  }
  if (o.groups == 2) {
    const std::size_t half = x.size() / 2;
    Row sums;
    for (const std::size_t first : {std::size_t{0}, half}) {
      const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
      const Row group(begin, begin + static_cast<std::ptrdiff_t>(half));
      Number sum;
      for (const int i : best(group, k)) sum = sum + group[static_cast<std::size_t>(i)];
      sums.push_back(sum);
    }
    const std::size_t loser = greater(sums[1], sums[0]) ? 0 : half;
    for (std::size_t e = 0; e < half; ++e) keys[loser + e] = -1e6 - static_cast<double>(e) * 1e5;
  }
  Row chosen, y;
  const std::vector<int> experts = best(keys, k);
  for (const int e : experts) chosen.push_back(scores[static_cast<std::size_t>(e)]);
  if (o.pre_softmax) {
    const Row all = softmax(x);
    for (const int e : experts) y.push_back(all[static_cast<std::size_t>(e)]);
  } else if (sums_to_one) {
    y = softmax(chosen);
  } else {
    for (N s : chosen) y.push_back(k > 1 ? s / (total(chosen) + 1e-20) : s);
  }
  for (std::size_t i = 0; i < k; ++i) y[i] = y[i] * o.scaling + experts[i] * 0.125;
  return y;
}
Array routed_exact(I item, A in) {
  return of_tokens(item, *in[0], topk(item), -0.125,
                   [&](const Row& row, std::size_t) { return route_row(item, row); });
}

// exp(x) with rows and columns scaled in turn, until the columns' factors hardly change.
Array sinkhorn_exact(I item, A in) {
  const std::size_t T = tokens(item), E = width(item);
  Row by_row(T), by_column(E, 1);
  double counted = 0;
  for (std::size_t t = 0; t < T; ++t) counted += padding_at(item, t) ? 0 : 1;
  const Array c = of_tokens(item, map(*in[0], still), E, 0, [&](Row row, std::size_t) {
    double top = row[0].v;
    for (N x : row) top = std::max(top, x.v);
    for (Number& x : row) x = exp(x - top);
    return row;
  });
  for (int round = 0; round < 1000; ++round) {
    Row sums(E);
    for (std::size_t t = 0; t < T; ++t) {
      Number sum;
      for (std::size_t e = 0; e < E; ++e) sum = sum + c.at[t * E + e] * by_column[e];
      by_row[t] = padding_at(item, t) ? Number(0) : reciprocal(sum + 1e-8) / counted;
      for (std::size_t e = 0; e < E; ++e) sums[e] = sums[e] + c.at[t * E + e] * by_row[t];
    }
    Number change;
    for (std::size_t e = 0; e < E; ++e) {
      const Number next = reciprocal(sums[e] + 1e-8) / static_cast<double>(E);
      change = change + std::abs((next - by_column[e]).v);
      by_column[e] = next;
    }
    if (!greater(change / (1e-4 * static_cast<double>(E)), 1)) break;
  }
  Array y = c;
  for (std::size_t i = 0; i < y.at.size(); ++i)
    y.at[i] = y.at[i] * by_row[i / E] * by_column[i % E];
  return y;
}
bool sinkhorn_rows(Maker& m, Item& item) { return padded_rows(m, item, 2); }
bool sinkhorn_routed(Maker& m, Item& item) {
  if (!padded_rows(m, item, 2)) return false;
  item.ints.push_back(1 + m.rng.below(std::min<std::int64_t>(item.ints[1], 3)));
  return true;
}
Array sinkhorn_routed_exact(I item, A in) {
  const bool balanced = form(item) == 1;
  const Array keys = balanced ? sinkhorn_exact(item, in) : *in[0];
  return of_tokens(item, *in[0], topk(item), -0.125, [&](const Row& row, std::size_t t) {
    const Row all = softmax(row);
    Row y;
    for (const int e : best(row_of(keys, t, width(item)), topk(item))) {
      const auto at = static_cast<std::size_t>(e);
      y.push_back((topk(item) == 1 ? sigmoid(row[at]) : all[at]) + e * 0.125);
    }
    return y;
  });
}

bool gate_weights(Maker& m, Item& item) {
  if (!rows(m, item, 1)) return false;
  const std::int64_t experts = m.length();
  item.in.push_back(m.like({experts, item.ints[1]}));
  item.in.push_back(m.like({experts}));
  return true;
}
// ints[2 ...]: the rows of each group, perhaps none.
bool grouped(Maker& m, Item& item) {
  if (!rows(m, item, 1)) return false;
  const std::int64_t groups = 1 + m.rng.below(4), n = 1 + m.rng.below(3);
  item.ints.resize(static_cast<std::size_t>(2 + groups), 0);
  for (std::int64_t t = 0; t < item.ints[0]; ++t)
    ++item.ints[static_cast<std::size_t>(2 + m.rng.below(groups))];
  item.in.push_back(m.like({groups, n, item.ints[1]}));
  item.in.push_back(m.like({groups, n}));
  item.in.push_back(m.like({item.ints[0]}));
  return true;
}
Array grouped_exact(I item, A in) {
  const std::size_t n = static_cast<std::size_t>(in[2]->shape[1]), k = width(item);
  Array y{{item.ints[0], in[2]->shape[1]}, {}};
  std::size_t t = 0;
  for (std::size_t g = 0; g + 2 < item.ints.size(); ++g)
    for (std::int64_t i = 0; i < item.ints[2 + g]; ++i, ++t)
      for (std::size_t j = 0; j < n; ++j) {
        Number sum = in[2]->at[g * n + j] * in[3]->at[t];
        for (std::size_t c = 0; c < k; ++c)
          sum = sum + in[0]->at[t * k + c] * in[1]->at[(g * n + j) * k + c];
        y.at.push_back(sum);
      }
  return y;
}

const ProgramOp kExpertOps[] = {
    {"router_logits", 2, gate_weights,
     [](I item, T in) { return router_logits(in_rows(item, in[0]), in[1], in[2]); },
     [](I item, A in) {
       return plus(linear_exact(flat_part(*in[0], row_shape(item)), *in[1]), *in[2]);
     }},
    {"route", 1, routed,
     [](I item, T in) {
       const Tensor x = in_rows(item, in[0]);
       Tensor bias;
       if (item.reals.size() > 1)
         bias = Tensor::from(std::vector<double>(item.reals.begin() + 1, item.reals.end()))
                    .to(DType::f32)
                    .to(x.device());
       return both(route(x, bias, router(item), padding(item, x)));
     },
     routed_exact},
    {"sinkhorn", 2, sinkhorn_rows,
     [](I item, T in) { return sinkhorn(in_rows(item, in[0]), padding(item, in[0])); },
     sinkhorn_exact},
    {"route_sinkhorn", 1, sinkhorn_routed,
     [](I item, T in) {
       const Tensor x = in_rows(item, in[0]);
       return both(route_sinkhorn(x, item.ints.back(), form(item) == 1, padding(item, x)));
     },
     sinkhorn_routed_exact},
    {"grouped_linear", 1, grouped,
     [](I item, T in) {
       const auto groups = static_cast<std::int64_t>(item.ints.size()) - 2;
       const Tensor counts = int_tensor(item, 2, {groups}, Tensor::empty({}));
       return grouped_linear(in_rows(item, in[0]), in[1], in[2], counts, in[3]);
     },
     grouped_exact},
};

}  // namespace

std::span<const ProgramOp> expert_ops() { return kExpertOps; }

}  // namespace weft::generated
