#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/recurrent.h"
#include "weft/tests/generated/program_heads.h"

// Recurrence over the tokens of a sequence. The result and the last states are one vector.
namespace weft::generated {
namespace {

// k like q; v (B, T, Hv, V); the decay -square(g) and the rate sigmoid(beta) (B, T, Hv); perhaps a
// state. ints[4]: where a packed row is cut, or -1.
bool delta(Maker& m, Item& item) {
  if (!heads(m, item, 1, false)) return false;
  const Shape q = head_shape(item);
  const std::int64_t value_heads = q[2] * (1 + m.rng.below(2)), width = 1 + m.rng.below(3);
  item.in.push_back(m.like(q));
  item.in.push_back(m.like({q[0], q[1], value_heads, width}));
  item.in.push_back(m.like({q[0], q[1], value_heads}));
  item.in.push_back(m.like({q[0], q[1], value_heads}));
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  item.ints.push_back(draw_cut(m, q[0], q[1]));
  if (m.rng.chance(0.4)) {
    const std::int64_t sequences = item.ints[4] < 0 ? q[0] : 3;
    item.in.push_back(m.like({sequences, value_heads, q[3], width}));
  }
  return true;
}
template <GatedDelta (*f)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const GatedDeltaOptions&)>
Tensor delta_weft(I item, T in) {
  const DType real = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor decay = cast(neg(square(in[3])), real), share = cast(sigmoid(in[4]), real);
  GatedDeltaOptions o;
  if (item.ints[4] >= 0) o.cu_seqlens = packed_at(item.ints[4], item.ints[1]);
  if (in.size() == 6) o.state = cast(in[5], real);
  const GatedDelta r = f(in_heads(item, in[0]), in[1], in[2], decay, share, o);
  return cat({flatten(r.y), flatten(cast(r.state, r.y.dtype()))});
}
Array one_vector(const std::vector<Array>& parts) {
  Array y{{0}, {}};
  for (const Array& part : parts) y.at.insert(y.at.end(), part.at.begin(), part.at.end());
  y.shape[0] = static_cast<std::int64_t>(y.at.size());
  return y;
}
Array delta_exact(I item, A in) {
  const Array q = in_heads(item, *in[0]), &k = *in[1], &v = *in[2];
  const std::int64_t wide = q.shape[3], H = v.shape[2], share = H / q.shape[2], V = v.shape[3];
  const std::int64_t T = v.shape[1];
  const std::vector<Sequence> sequences = sequences_of(v.shape[0], T, item.ints[4]);
  const auto count = static_cast<std::int64_t>(sequences.size());
  Array y = filled(v.shape, 0), states = filled({count, H, wide, V}, 0);
  if (in.size() == 6) states = *in[5];
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t h = 0; h < H; ++h) {
      const auto [b, first, end] = sequences[static_cast<std::size_t>(n)];
      Number* const state = states.at.data() + (n * H + h) * wide * V;
      for (std::int64_t t = first; t < end; ++t) {
        const Number g = element(*in[3], {b, t, h}), keep = exp(0 - g * g);
        const Number beta = sigmoid(element(*in[4], {b, t, h}));
        for (std::int64_t i = 0; i < wide * V; ++i) state[i] = state[i] * keep;
        for (std::int64_t j = 0; j < V; ++j) {
          Number found, result;
          for (std::int64_t i = 0; i < wide; ++i)
            found = found + state[i * V + j] * element(k, {b, t, h / share, i});
          const Number update = beta * (element(v, {b, t, h, j}) - found);
          for (std::int64_t i = 0; i < wide; ++i) {
            Number& s = state[i * V + j];
            s = s + element(k, {b, t, h / share, i}) * update;
            result = result + s * element(q, {b, t, h / share, i});
          }
          const std::int64_t at = ((b * T + t) * H + h) * V + j;
          y.at[static_cast<std::size_t>(at)] = result / std::sqrt(static_cast<double>(wide));
        }
      }
    }
  return one_vector({y, states});
}

// ints: batch, tokens, units, [3]: where a packed row is cut, or -1. The operands are the gates of
// a GRU (3) or an LSTM (4), the weight and the bias, and perhaps the initial states.
template <int gates>
bool recurrent(Maker& m, Item& item) {
  const int x = m.any();
  const std::int64_t h = 1 + m.rng.below(3), b = 1 + m.rng.below(2);
  const std::int64_t tokens = std::min<std::int64_t>(m.shape(x).numel() / (gates * h * b), 4);
  if (tokens == 0) return false;
  item.in = {x, m.like({gates * h, h}), m.like({gates * h})};
  item.ints = {b, tokens, h, draw_cut(m, b, tokens)};
  const std::int64_t sequences = item.ints[3] < 0 ? b : 3;
  if (m.rng.chance(0.5))
    for (int states = gates - 2; states > 0; --states) item.in.push_back(m.like({sequences, h}));
  return true;
}
Shape gate_shape(I item, std::int64_t gates) {
  return {item.ints[0], item.ints[1], gates * item.ints[2]};
}
Tensor state_of(const Tensor& x) {
  return cast(x, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
}
Tensor boundaries(I item) {
  return item.ints[3] < 0 ? Tensor() : packed_at(item.ints[3], item.ints[1]);
}
Tensor gru_weft(I item, T in) {
  GruOptions o;
  if (in.size() > 3) o.state = state_of(in[3]);
  o.cu_seqlens = boundaries(item);
  const GruOutput r = gru(flat_part(in[0], gate_shape(item, 3)), in[1], in[2], o);
  return cat({flatten(r.y), flatten(cast(r.state, r.y.dtype()))});
}
Tensor lstm_weft(I item, T in) {
  LstmOptions o;
  if (in.size() > 3) o.state = {state_of(in[3]), state_of(in[4])};
  o.cu_seqlens = boundaries(item);
  const LstmOutput r = lstm(flat_part(in[0], gate_shape(item, 4)), in[1], in[2], o);
  const DType dtype = r.y.dtype();
  return cat({flatten(r.y), flatten(cast(r.state.h, dtype)), flatten(cast(r.state.c, dtype))});
}
template <int gates>
Array recurrent_exact(I item, A in) {
  const std::int64_t n = item.ints[2];
  const Array x = flat_part(*in[0], gate_shape(item, gates));
  const std::vector<Sequence> sequences = sequences_of(item.ints[0], item.ints[1], item.ints[3]);
  Array y = filled({item.ints[0], item.ints[1], n}, 0);
  Array last_h = filled({static_cast<std::int64_t>(sequences.size()), n}, 0), last_c = last_h;
  if (in.size() > 3) last_h = *in[3], last_c = *in[gates];
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    Number* const h = last_h.at.data() + s * static_cast<std::size_t>(n);
    Number* const c = last_c.at.data() + s * static_cast<std::size_t>(n);
    const auto [b, first, end] = sequences[s];
    for (std::int64_t t = first; t < end; ++t) {
      const Row before(h, h + n);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto product = [&](std::int64_t gate) {
          Number sum = element(*in[2], {gate * n + i});
          for (std::int64_t k = 0; k < n; ++k)
            sum = sum + before[static_cast<std::size_t>(k)] * element(*in[1], {gate * n + i, k});
          return sum;
        };
        const std::int64_t row = b;
        const auto gate = [&](std::int64_t j) { return element(x, {row, t, j * n + i}); };
        const auto sum = [&](std::int64_t j) { return gate(j) + product(j); };
        if (gates == 3) {
          const Number z = sigmoid(sum(1)), fresh = tanh(gate(2) + sigmoid(sum(0)) * product(2));
          h[i] = (1 - z) * fresh + z * h[i];
        } else {
          c[i] = sigmoid(sum(1)) * c[i] + sigmoid(sum(0)) * tanh(sum(2));
          h[i] = sigmoid(sum(3)) * tanh(c[i]);
        }
        y.at[static_cast<std::size_t>((b * item.ints[1] + t) * n + i)] = h[i];
      }
    }
  }
  return gates == 3 ? one_vector({y, last_h}) : one_vector({y, last_h, last_c});
}

const ProgramOp kRecurrentOps[] = {
    {"gated_delta", 1, delta, delta_weft<gated_delta>, delta_exact},
    {"gated_delta_recurrent", 2, delta, delta_weft<gated_delta_recurrent>, delta_exact},
    {"gru", 1, recurrent<3>, gru_weft, recurrent_exact<3>},
    {"lstm", 1, recurrent<4>, lstm_weft, recurrent_exact<4>},
};

}  // namespace

std::span<const ProgramOp> recurrent_ops() { return kRecurrentOps; }

}  // namespace weft::generated
