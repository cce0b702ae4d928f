#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/losses.h"
#include "weft/autograd/mse.h"
#include "weft/tests/generated/program_ops.h"

namespace weft::generated {
namespace {

// ints[0]: how the losses are reduced.
Reduction reduction(I item) {
  constexpr Reduction kAll[] = {Reduction::none, Reduction::mean, Reduction::sum};
  return kAll[item.ints[0]];
}
Array reduced_loss(I item, const Array& losses, double count) {
  if (item.ints[0] == 0) return losses;
  Array sum{{}, {total(losses.at)}};
  if (item.ints[0] == 1) sum.at[0] = count == 0 ? Number(0) : sum.at[0] / count;
  return sum;
}

// A loss of every element; the mean of none is not a number.
bool loss_pair(Maker& m, Item& item) {
  if (!same_shapes(m, item)) return false;
  item.ints = {m.shape(item.in[0]).numel() == 0 ? 2 : m.rng.below(3)};
  return true;
}
template <Tensor (*f)(const Tensor&, const Tensor&, Reduction)>
Tensor loss(I item, T in) {
  return f(in[0], in[1], reduction(item));
}
template <Number (*f)(N, N)>
Array loss_exact(I item, A in) {
  const Array losses = binary(*in[0], *in[1], f);
  return reduced_loss(item, losses, static_cast<double>(losses.at.size()));
}
Number squared_error(N x, N y) { return (x - y) * (x - y); }
Number absolute_error(N x, N y) {
  const Number e = x - y;
  if (e.v == 0) return 0;
  return greater(e, 0) ? e : -e;
}
constexpr double kDelta = 0.5;
Number huber(N x, N y) {
  const Number e = x - y;
  const bool high = greater(e, kDelta), low = greater(-kDelta, e);
  if (!high && !low) return e * e * 0.5;
  return ((high ? e : -e) - kDelta / 2) * kDelta;
}
Number binary_cross_entropy(N x, N target) {
  return target * softplus(-x) + (1 - target) * softplus(x);
}
// The target is relu(y): where it is 0, so are the value and both gradients.
Number divergence(N log_p, N y) { return greater(y, 0) ? y * (log(y) - log_p) : Number(0); }

// ints: the reduction, then one target per row; -100 is ignored. reals[0]: smoothing.
bool targets(Maker& m, Item& item, const Shape& rows, std::int64_t classes) {
  if (classes == 0) return false;
  item.ints = {m.rng.below(3)};
  for (std::int64_t i = 0; i < rows.numel(); ++i)
    item.ints.push_back(m.rng.chance(0.1) ? -100 : m.rng.below(classes));
  item.reals = {m.rng.chance(0.5) ? 0 : 0.25};
  return true;
}
bool classified(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  Shape rows = m.shape(x);
  const std::int64_t classes = rows.back();
  rows.pop_back();
  item.in = {x};
  return targets(m, item, rows, classes);
}
bool classified_by_weights(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  Shape rows = m.shape(x);
  const std::int64_t c = rows.back(), classes = 2 + m.rng.below(5);
  rows.pop_back();
  item.in = {x};
  item.in.push_back(m.like({classes, c}));
  return targets(m, item, rows, classes);
}
Tensor target_tensor(I item, const Tensor& x) {
  Shape rows = x.shape();
  rows.pop_back();
  return int_tensor(item, 1, rows, x);
}
CrossEntropyOptions loss_options(I item) {
  CrossEntropyOptions o;
  o.reduction = reduction(item);
  o.label_smoothing = item.reals[0];
  return o;
}
// f(row, target) for the rows that are not ignored.
template <class F>
Array loss_of_rows(I item, const Array& x, F f) {
  std::size_t next = 0;
  double rows = 0;
  const auto of_row = [&](const Row& row) -> Number {
    const std::int64_t target = item.ints[++next];
    if (target < 0) return 0;
    ++rows;
    return f(row, static_cast<std::size_t>(target));
  };
  const Array losses = reduce_axes(x, {x.ndim() - 1}, false, of_row);
  return reduced_loss(item, losses, rows);
}
Array cross_entropy_exact(I item, A in) {
  return loss_of_rows(item, *in[0], [&](const Row& row, std::size_t target) {
    const double smoothing = item.reals[0];
    return log_sum_exp(row) - row[target] * (1 - smoothing) -
           total(row) * (smoothing / static_cast<double>(row.size()));
  });
}
Array nll_exact(I item, A in) {
  return loss_of_rows(item, *in[0],
                      [](const Row& row, std::size_t target) { return -row[target]; });
}

const ProgramOp kLossOps[] = {
    {"mse_loss", 2, loss_pair, loss<mse_loss>, loss_exact<squared_error>},
    {"l1_loss", 2, loss_pair, loss<l1_loss>, loss_exact<absolute_error>},
    {"huber_loss", 2, loss_pair,
     [](I item, T in) { return huber_loss(in[0], in[1], kDelta, reduction(item)); },
     loss_exact<huber>},
    {"binary_cross_entropy_with_logits", 2, loss_pair, loss<binary_cross_entropy_with_logits>,
     loss_exact<binary_cross_entropy>},
    {"kl_div", 2, loss_pair,
     [](I item, T in) { return kl_div(in[0], relu(in[1]), reduction(item)); },
     loss_exact<divergence>},
    {"nll_loss", 2, classified,
     [](I item, T in) { return nll_loss(in[0], target_tensor(item, in[0]), reduction(item)); },
     nll_exact},
    {"cross_entropy", 1, classified,
     [](I item, T in) {
       return cross_entropy(in[0], target_tensor(item, in[0]), loss_options(item));
     },
     cross_entropy_exact},
    {"linear_cross_entropy", 1, classified_by_weights,
     [](I item, T in) {
       return linear_cross_entropy(in[0], in[1], target_tensor(item, in[0]), loss_options(item));
     },
     [](I item, A in) {
       const Array scores = linear_exact(*in[0], *in[1]);
       return cross_entropy_exact(item, {&scores});
     }},
    {"count_valid", 2, classified,
     [](I item, T in) { return count_valid(target_tensor(item, in[0])); },
     [](I item, A) {
       Number count;
       for (std::size_t i = 1; i < item.ints.size(); ++i)
         if (item.ints[i] >= 0) count.v += 1;
       return Array{{}, {count}};
     }},
};

}  // namespace

std::span<const ProgramOp> loss_ops() { return kLossOps; }

}  // namespace weft::generated
