#include <algorithm>
#include <cmath>

#include "weft/autograd/attention.h"
#include "weft/autograd/causal_conv1d.h"
#include "weft/core/philox.h"
#include "weft/tests/generated/program_heads.h"

// Attention and convolution over the tokens of a sequence.
namespace weft::generated {
namespace {

// ints[4]: keys (usually as many as queries, or more), [5]: key heads, [6]: causal, [7]: window,
// [8]: where a packed row is cut, or -1, [9]: dropout's key, or -1; reals[1]: scale.
void draw_options(Maker& m, Item& item) {
  const std::int64_t causal = m.rng.below(2);
  const bool square = item.ints[4] == item.ints[1];
  item.ints.insert(item.ints.end(), {causal, causal * m.rng.below(3)});
  item.ints.push_back(square ? draw_cut(m, item.ints[0], item.ints[1]) : -1);
  item.ints.push_back(m.rng.chance(0.2) ? m.rng.below(1000) : -1);
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0, m.rng.chance(0.3) ? 0.75 : 0};
}
bool attended(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  const std::int64_t more = m.rng.chance(0.5) ? 0 : m.rng.below(4), queries = item.ints[1];
  const std::int64_t keys = m.rng.chance(0.1) ? 1 + m.rng.below(queries) : queries + more;
  const std::int64_t key_heads = item.ints[2] % 2 == 0 && m.rng.chance(0.5) ? 1 : item.ints[2];
  const std::int64_t values = 1 + m.rng.below(3);
  item.in.push_back(m.like({item.ints[0], keys, key_heads, item.ints[3]}));
  item.in.push_back(m.like({item.ints[0], keys, key_heads, values}));
  item.ints.insert(item.ints.end(), {keys, key_heads});
  draw_options(m, item);
  return true;
}
bool attended_packed(Maker& m, Item& item) {
  if (!heads(m, item, 3, false)) return false;
  item.ints.insert(item.ints.end(), {item.ints[1], item.ints[2] / 3});
  draw_options(m, item);
  return true;
}
RandomKey dropout_key(I item) { return {7, static_cast<std::uint64_t>(item.ints[9]), 1}; }
AttentionOptions attention_options(I item) {
  AttentionOptions o;
  o.causal = item.ints[6] == 1;
  o.window = item.ints[7];
  o.scale = item.reals[1];
  if (item.ints[8] >= 0) o.cu_seqlens = packed_at(item.ints[8], item.ints[1]);
  if (item.ints[9] >= 0) o.dropout = 0.25, o.key = dropout_key(item);
  return o;
}
// The keys [first, last) that a query sees.
struct Keys {
  std::int64_t first, last;
};
Keys keys_of(I item, std::int64_t t, std::int64_t queries, std::int64_t keys) {
  Keys seen{0, item.ints[6] ? t + keys - queries + 1 : keys};
  if (item.ints[7]) seen.first = std::max<std::int64_t>(seen.last - item.ints[7], 0);
  const std::int64_t cut = item.ints[8];
  if (cut < 0) return seen;
  return t < cut ? Keys{seen.first, std::min(seen.last, cut)}
                 : Keys{std::max(seen.first, cut), seen.last};
}
Array attention_of(I item, const Array& q, const Array& k, const Array& v) {
  const std::int64_t T = q.shape[1], S = k.shape[1], H = q.shape[2], share = H / k.shape[2];
  const double scale =
      item.reals[1] == 0 ? 1 / std::sqrt(static_cast<double>(q.shape[3])) : item.reals[1];
  Array y = filled({q.shape[0], T, H, v.shape[3]}, 0);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < q.shape[0]; ++b)
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t h = 0; h < H; ++h) {
        const Keys seen = keys_of(item, t, T, S);
        Row scores;
        for (std::int64_t s = seen.first; s < seen.last; ++s) {
          Number score;
          for (std::int64_t d = 0; d < q.shape[3]; ++d)
            score = score + element(q, {b, t, h, d}) * element(k, {b, s, h / share, d});
          scores.push_back(score * scale);
        }
        Row weights = softmax(scores);
        for (std::size_t i = 0; item.ints[9] >= 0 && i < weights.size(); ++i) {
          const std::int64_t place =
              ((b * H + h) * T + t) * S + seen.first + static_cast<std::int64_t>(i);
          const std::uint32_t bits =
              random_bits(dropout_key(item), static_cast<std::uint64_t>(place));
          weights[i] = uniform_from_bits(bits) < 0.25F ? Number(0) : weights[i] / 0.75;
        }
        for (std::int64_t d = 0; d < v.shape[3]; ++d, ++next)
          for (std::int64_t s = seen.first; s < seen.last; ++s)
            y.at[next] = y.at[next] + weights[static_cast<std::size_t>(s - seen.first)] *
                                          element(v, {b, s, h / share, d});
      }
  return y;
}
Array some_heads(const Array& x, std::int64_t first, std::int64_t count) {
  return along(
      x, 2, [=](const Row& row) { return Row(row.begin() + first, row.begin() + first + count); });
}

// ints: batch, tokens, channels, taps, with activation, where a packed row is cut, or -1; the last
// operand of three is the state.
bool convolved(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  item.ints = {item.ints[0], item.ints[1], item.ints[2] * item.ints[3], 1 + m.rng.below(4),
               m.rng.below(2)};
  item.ints.push_back(draw_cut(m, item.ints[0], item.ints[1]));
  item.in.push_back(m.like({item.ints[2], item.ints[3]}));
  if (item.ints[5] < 0 && m.rng.chance(0.4))
    item.in.push_back(m.like({item.ints[0], item.ints[3] - 1, item.ints[2]}));
  return true;
}
Tensor convolved_weft(I item, T in) {
  CausalConv1dOptions o;
  o.silu = item.ints[4] == 1;
  if (item.ints[5] >= 0) o.cu_seqlens = packed_at(item.ints[5], item.ints[1]);
  if (in.size() == 3) o.state = in[2];
  return causal_conv1d(flat_part(in[0], {item.ints[0], item.ints[1], item.ints[2]}), in[1], o);
}
Array convolved_exact(I item, A in) {
  const Array x = flat_part(*in[0], {item.ints[0], item.ints[1], item.ints[2]});
  const std::int64_t taps = item.ints[3], cut = item.ints[5];
  Array y = filled(x.shape, 0);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t t = 0; t < x.shape[1]; ++t)
      for (std::int64_t c = 0; c < x.shape[2]; ++c, ++next) {
        Number sum;
        for (std::int64_t j = 0; j < taps; ++j) {
          const std::int64_t from = t - taps + 1 + j;
          const bool same_row = from >= 0 && !(cut >= 0 && from < cut && t >= cut);
          if (same_row)
            sum = sum + element(*in[1], {c, j}) * element(x, {b, from, c});
          else if (in.size() == 3)
            sum = sum + element(*in[1], {c, j}) * element(*in[2], {b, from + taps - 1, c});
        }
        y.at[next] = item.ints[4] ? silu(sum) : sum;
      }
  return y;
}

const ProgramOp kSequenceOps[] = {
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
    {"causal_conv1d", 1, convolved, convolved_weft, convolved_exact},
};

}  // namespace

std::span<const ProgramOp> sequence_ops() { return kSequenceOps; }

}  // namespace weft::generated
