#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/autograd/attention.h"
#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/recurrent.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// Ops over the tokens of a sequence. An existing item is flattened and reshaped to their first
// operand, so that every shape can reach them.
namespace weft::generated {
namespace {

// ints: batch, tokens, heads, width of the first operand.
bool heads(Maker& m, Item& item, std::int64_t heads_multiple, bool even) {
  const int x = m.any();
  const std::int64_t count = m.shape(x).numel();
  const std::int64_t d = (1 + m.rng.below(3)) * (even ? 2 : 1);
  const std::int64_t h = (1 + m.rng.below(2)) * heads_multiple;
  const std::int64_t b = 1 + m.rng.below(2);
  if (count == 0 || count % (d * h * b) != 0) return false;
  item.in = {x};
  item.ints = {b, count / (d * h * b), h, d};
  return item.ints[1] <= 8;
}
Shape head_shape(I item) { return {item.ints[0], item.ints[1], item.ints[2], item.ints[3]}; }
// (B, T, H, D) is also made from (B, H, T, D), the other order in which heads are stored.
Tensor in_heads(I item, const Tensor& x) {
  if (item.reals[0] == 0) return reshape(x, head_shape(item));
  return transpose(reshape(x, {item.ints[0], item.ints[2], item.ints[1], item.ints[3]}), 1, 2);
}
Array in_heads(I item, const Array& x) {
  if (item.reals[0] == 0) return reshaped(x, head_shape(item));
  return transposed(reshaped(x, {item.ints[0], item.ints[2], item.ints[1], item.ints[3]}), 1, 2);
}

// ints[4]: keys (as many as queries, or more), [5]: key heads, [6]: causal, [7]: window.
bool attended(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  const std::int64_t keys = item.ints[1] + (m.rng.chance(0.5) ? 0 : m.rng.below(4));
  const std::int64_t key_heads = item.ints[2] % 2 == 0 && m.rng.chance(0.5) ? 1 : item.ints[2];
  const std::int64_t values = 1 + m.rng.below(3);
  item.in.push_back(m.like({item.ints[0], keys, key_heads, item.ints[3]}));
  item.in.push_back(m.like({item.ints[0], keys, key_heads, values}));
  const std::int64_t causal = m.rng.below(2);
  item.ints.insert(item.ints.end(), {keys, key_heads, causal, causal * m.rng.below(3)});
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
bool attended_packed(Maker& m, Item& item) {
  if (!heads(m, item, 3, false)) return false;
  item.ints.insert(item.ints.end(), {item.ints[1], item.ints[2] / 3, 1, 0});
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
AttentionOptions attention_options(I item) {
  AttentionOptions o;
  o.causal = item.ints[6] == 1;
  o.window = item.ints[7];
  return o;
}
Array attention_of(I item, const Array& q, const Array& k, const Array& v) {
  const std::int64_t queries = q.shape[1], keys = k.shape[1], share = q.shape[2] / k.shape[2];
  Array y = filled({q.shape[0], queries, q.shape[2], v.shape[3]}, 0);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < q.shape[0]; ++b)
    for (std::int64_t t = 0; t < queries; ++t)
      for (std::int64_t h = 0; h < q.shape[2]; ++h) {
        const std::int64_t last = item.ints[6] ? t + keys - queries : keys - 1;
        const std::int64_t first =
            item.ints[7] ? std::max<std::int64_t>(last - item.ints[7] + 1, 0) : 0;
        Row scores;
        for (std::int64_t s = first; s <= last; ++s) {
          Number score;
          for (std::int64_t d = 0; d < q.shape[3]; ++d)
            score = score + element(q, {b, t, h, d}) * element(k, {b, s, h / share, d});
          scores.push_back(score / std::sqrt(static_cast<double>(q.shape[3])));
        }
        const Row weights = softmax(scores);
        for (std::int64_t d = 0; d < v.shape[3]; ++d, ++next)
          for (std::int64_t s = first; s <= last; ++s)
            y.at[next] = y.at[next] + weights[static_cast<std::size_t>(s - first)] *
                                          element(v, {b, s, h / share, d});
      }
  return y;
}
Array some_heads(const Array& x, std::int64_t first, std::int64_t count) {
  return along(
      x, 2, [=](const Row& row) { return Row(row.begin() + first, row.begin() + first + count); });
}

// ints[4]: taps, [5]: with activation.
bool convolved(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  item.ints = {item.ints[0], item.ints[1], item.ints[2] * item.ints[3], 1 + m.rng.below(4),
               m.rng.below(2)};
  item.in.push_back(m.like({item.ints[2], item.ints[3]}));
  return true;
}
Array convolved_exact(I item, A in) {
  const Array x = reshaped(*in[0], {item.ints[0], item.ints[1], item.ints[2]});
  const std::int64_t taps = item.ints[3];
  Array y = filled(x.shape, 0);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t t = 0; t < x.shape[1]; ++t)
      for (std::int64_t c = 0; c < x.shape[2]; ++c, ++next) {
        Number sum;
        for (std::int64_t j = 0; j < taps; ++j)
          if (t - taps + 1 + j >= 0)
            sum = sum + element(*in[1], {c, j}) * element(x, {b, t - taps + 1 + j, c});
        y.at[next] = item.ints[4] ? silu(sum) : sum;
      }
  return y;
}

// reals: layout of the heads, offset of the positions.
bool turned(Maker& m, Item& item) {
  if (!heads(m, item, 1, true)) return false;
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0, static_cast<double>(m.rng.below(4))};
  return true;
}
Array turned_exact(I item, A in) {
  const Array x = in_heads(item, *in[0]);
  Array y = x;
  const std::int64_t half = item.ints[3] / 2;
  std::size_t next = 0;
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t t = 0; t < x.shape[1]; ++t)
      for (std::int64_t h = 0; h < x.shape[2]; ++h)
        for (std::int64_t d = 0; d < 2 * half; ++d, ++next) {
          const std::int64_t i = d % half;
          const double angle =
              (static_cast<double>(t) + item.reals[1]) *
              std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(2 * half));
          const Number &low = element(x, {b, t, h, i}), &high = element(x, {b, t, h, i + half});
          y.at[next] = d < half ? low * std::cos(angle) - high * std::sin(angle)
                                : low * std::sin(angle) + high * std::cos(angle);
        }
  return y;
}

// k like q; v (B, T, Hv, V); the decay -square(g) and the rate sigmoid(beta) (B, T, Hv).
bool delta(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  const Shape q = head_shape(item);
  const std::int64_t value_heads = q[2] * (1 + m.rng.below(2)), width = 1 + m.rng.below(3);
  item.in.push_back(m.like(q));
  item.in.push_back(m.like({q[0], q[1], value_heads, width}));
  item.in.push_back(m.like({q[0], q[1], value_heads}));
  item.in.push_back(m.like({q[0], q[1], value_heads}));
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
template <GatedDelta (*f)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const GatedDeltaOptions&)>
Tensor delta_weft(I item, T in) {
  const DType real = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor decay = cast(neg(square(in[3])), real), share = cast(sigmoid(in[4]), real);
  return f(in_heads(item, in[0]), in[1], in[2], decay, share, {}).y;
}
Array delta_exact(I item, A in) {
  const Array q = in_heads(item, *in[0]), &k = *in[1], &v = *in[2];
  const std::int64_t wide = q.shape[3], share = v.shape[2] / q.shape[2];
  Array y = filled(v.shape, 0);
  for (std::int64_t b = 0; b < v.shape[0]; ++b)
    for (std::int64_t h = 0; h < v.shape[2]; ++h) {
      Array state = filled({wide, v.shape[3]}, 0);
      for (std::int64_t t = 0; t < v.shape[1]; ++t) {
        const Number g = element(*in[3], {b, t, h}), keep = exp(0 - g * g);
        const Number beta = sigmoid(element(*in[4], {b, t, h}));
        for (Number& s : state.at) s = s * keep;
        for (std::int64_t j = 0; j < v.shape[3]; ++j) {
          Number found, result;
          for (std::int64_t i = 0; i < wide; ++i)
            found = found + element(state, {i, j}) * element(k, {b, t, h / share, i});
          const Number update = beta * (element(v, {b, t, h, j}) - found);
          for (std::int64_t i = 0; i < wide; ++i) {
            Number& s = state.at[static_cast<std::size_t>(i * v.shape[3] + j)];
            s = s + element(k, {b, t, h / share, i}) * update;
            result = result + s * element(q, {b, t, h / share, i});
          }
          const std::int64_t at = ((b * v.shape[1] + t) * v.shape[2] + h) * v.shape[3] + j;
          y.at[static_cast<std::size_t>(at)] = result / std::sqrt(static_cast<double>(wide));
        }
      }
    }
  return y;
}

// ints: batch, tokens, units. The operands are the gates of a GRU (3) or LSTM (4), the weight, the
// bias and the initial h.
template <int gates>
bool recurrent(Maker& m, Item& item) {
  const int x = m.any();
  const std::int64_t count = m.shape(x).numel(), h = 1 + m.rng.below(3), b = 1 + m.rng.below(2);
  if (count == 0 || count % (gates * h * b) != 0) return false;
  item.in = {x, m.like({gates * h, h}), m.like({gates * h}), m.like({b, h})};
  item.ints = {b, count / (gates * h * b), h};
  return item.ints[1] <= 4;
}
template <int gates>
Tensor recurrent_weft(I item, T in) {
  const Tensor x = reshape(in[0], {item.ints[0], item.ints[1], gates * item.ints[2]});
  const Tensor h = cast(in[3], x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  if (gates == 3) {
    GruOptions o;
    o.state = h;
    return gru(x, in[1], in[2], o).y;
  }
  LstmOptions o;
  o.state = {h, h};
  return lstm(x, in[1], in[2], o).y;
}
template <int gates>
Array recurrent_exact(I item, A in) {
  const std::int64_t n = item.ints[2];
  const Array x = reshaped(*in[0], {item.ints[0], item.ints[1], gates * n});
  Array y = filled({item.ints[0], item.ints[1], n}, 0);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < item.ints[0]; ++b) {
    Row h;
    for (std::int64_t i = 0; i < n; ++i) h.push_back(element(*in[3], {b, i}));
    Row c = h;
    for (std::int64_t t = 0; t < item.ints[1]; ++t) {
      const Row before = h;
      for (std::int64_t i = 0; i < n; ++i, ++next) {
        const auto product = [&](std::int64_t gate) {
          Number sum = element(*in[2], {gate * n + i});
          for (std::int64_t k = 0; k < n; ++k)
            sum = sum + before[static_cast<std::size_t>(k)] * element(*in[1], {gate * n + i, k});
          return sum;
        };
        const auto gate = [&](std::int64_t j) { return element(x, {b, t, j * n + i}); };
        const auto sum = [&](std::int64_t j) { return gate(j) + product(j); };
        Number &state = h[static_cast<std::size_t>(i)], &cell = c[static_cast<std::size_t>(i)];
        if (gates == 3) {
          const Number z = sigmoid(sum(1)), fresh = tanh(gate(2) + sigmoid(sum(0)) * product(2));
          state = (1 - z) * fresh + z * state;
        } else {
          cell = sigmoid(sum(1)) * cell + sigmoid(sum(0)) * tanh(sum(2));
          state = sigmoid(sum(3)) * tanh(cell);
        }
        y.at[next] = state;
      }
    }
  }
  return y;
}

const ProgramOp kSequencesOps[] = {
    {"attention", 1, attended,
     [](I item, T in) {
       return attention(in_heads(item, in[0]), in[1], in[2], attention_options(item));
     },
     [](I item, A in) { return attention_of(item, in_heads(item, *in[0]), *in[1], *in[2]); }},
    {"attention_packed", 1, attended_packed,
     [](I item, T in) {
       const std::int64_t h = item.ints[5];
       return attention_packed(in_heads(item, in[0]), h, h, attention_options(item));
     },
     [](I item, A in) {
       const Array x = in_heads(item, *in[0]);
       const std::int64_t h = item.ints[5];
       return attention_of(item, some_heads(x, 0, h), some_heads(x, h, h), some_heads(x, 2 * h, h));
     }},
    {"causal_conv1d", 1, convolved,
     [](I item, T in) {
       CausalConv1dOptions o;
       o.silu = item.ints[4] == 1;
       return causal_conv1d(reshape(in[0], {item.ints[0], item.ints[1], item.ints[2]}), in[1], o);
     },
     convolved_exact},
    {"rope", 2, turned,
     [](I item, T in) {
       const DType real = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
       const RopeTables t = rope_tables(16, item.ints[3], 100, real);
       const Device device = in[0].device();
       return rope(in_heads(item, in[0]), t.cos.to(device), t.sin.to(device),
                   static_cast<std::int64_t>(item.reals[1]));
     },
     turned_exact},
    {"gated_delta", 1, delta, delta_weft<gated_delta>, delta_exact},
    {"gated_delta_recurrent", 2, delta, delta_weft<gated_delta_recurrent>, delta_exact},
    {"gru", 1, recurrent<3>, recurrent_weft<3>, recurrent_exact<3>},
    {"lstm", 1, recurrent<4>, recurrent_weft<4>, recurrent_exact<4>},
};

}  // namespace

std::span<const ProgramOp> sequence_ops() { return kSequencesOps; }

}  // namespace weft::generated
