#include <algorithm>
#include <cmath>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/core/philox.h"
#include "weft/tests/generated/program_ops.h"

namespace weft::generated {
namespace {

// Two operands that broadcast: some axes of the second have length 1, or leading axes are dropped.
bool pair(Maker& m, Item& item) {
  const int a = m.any();
  Shape shape = m.shape(a);
  if (m.rng.chance(0.4)) {
    Shape part;
    const std::int64_t from = m.rng.below(shape.size() + 1);
    for (int d = static_cast<int>(from); d < shape.size(); ++d)
      part.push_back(m.rng.chance(0.3) ? 1 : shape[d]);
    shape = part;
  }
  const int b = m.like(shape);
  item.in = {a, b};
  if (m.rng.chance(0.3)) std::swap(item.in[0], item.in[1]);
  return true;
}

// A number; two forms of an op put it before or after the tensor.
bool number(Maker& m, Item& item) {
  one(m, item);
  item.reals = {static_cast<double>(m.rng.below(33) - 16) / 8 + 0.0625};
  item.ints = {m.rng.below(2)};
  return true;
}
bool exponent(Maker& m, Item& item) {
  one(m, item);
  constexpr double kExponents[] = {0, 1, 2, 3, -1, 0.5};
  item.reals = {kExponents[m.rng.below(6)]};
  return true;
}
bool chosen(Maker& m, Item& item) {
  pair(m, item);
  item.in.push_back(m.any());
  const Shape &a = m.shape(item.in[0]), &b = m.shape(item.in[1]), &c = m.shape(item.in[2]);
  return a == b && b == c;
}
bool dropped(Maker& m, Item& item) {
  one(m, item);
  item.ints = {m.rng.below(1000)};
  return true;
}

// The operand selected by an op if both are equal: half of the gradient goes to each.
Number middle(N a, N b) { return (a + b) * 0.5; }

Number larger(N a, N b) {
  if (a.v == b.v) return (Closest::see(a.v, b.v), middle(a, b));
  return greater(a, b) ? a : b;
}
Number smaller(N a, N b) {
  if (a.v == b.v) return (Closest::see(a.v, b.v), middle(a, b));
  return greater(a, b) ? b : a;
}
constexpr double kLow = -0.53125, kHigh = 0.71875;
Number clamped(N x) {
  if (greater(kLow, x)) return kLow;
  return greater(x, kHigh) ? Number(kHigh) : x;
}
// A negative number has no power with a tensor of exponents. For an exponent of 0 the gradient of x
// is defined as 0, and higher derivatives are not tested.
Number power_of(N x, N p) { return p.v == 0 ? std::nan("") : exp(p * log(x)); }
Number sum_of(N a, N b) { return a + b; }
Number difference(N a, N b) { return a - b; }
Number product_of(N a, N b) { return a * b; }
Number quotient(N a, N b) { return a / b; }
Number negative(N x) { return 0 - x; }
Number absolute(N x) {
  if (x.v == 0) return 0;
  return greater(x, 0) ? x : 0 - x;
}
Number squared(N x) { return x * x; }
Number inverse_root(N x) { return power(x, -0.5); }
Number positive(N x) { return greater(x, 0) ? x : Number(0); }
Number gelu_tanh(N x) { return gelu(x, false); }
Number gelu_erf(N x) { return gelu(x, true); }
Number log_of_more(N x) { return log(1 + exp(x)); }
template <Number (*f)(N, N)>
Number reversed(N a, N b) {
  return f(b, a);
}

Array dropout_exact(I item, A in) {
  const RandomKey key{3, static_cast<std::uint64_t>(item.ints[0]), 2};
  Array y = *in[0];
  for (std::size_t i = 0; i < y.at.size(); ++i)
    y.at[i] = uniform_from_bits(random_bits(key, i)) < 0.25F ? Number(0) : y.at[i] / 0.75;
  return y;
}

Array where_exact(I, A in) {
  Array y = *in[0];
  for (std::size_t i = 0; i < y.at.size(); ++i)
    if (greater(in[0]->at[i], in[1]->at[i])) y.at[i] = in[2]->at[i];
  return y;
}

template <Number (*f)(N)>
Array unary(I, A in) {
  return map(*in[0], f);
}
template <Number (*f)(N, N)>
Array two(I, A in) {
  return binary(*in[0], *in[1], f);
}
// f(x, number), or with ints[0] = 0 g(x, number).
template <Number (*f)(N, N), Number (*g)(N, N)>
Array scalar(I item, A in) {
  return map(*in[0], [&item](N x) { return (item.ints[0] ? f : g)(x, item.reals[0]); });
}

const ProgramOp kElementwiseOps[] = {
    {"add", 2, pair, [](I, T in) { return add(in[0], in[1]); }, two<sum_of>},
    {"sub", 2, pair, [](I, T in) { return sub(in[0], in[1]); }, two<difference>},
    {"mul", 2, pair, [](I, T in) { return mul(in[0], in[1]); }, two<product_of>},
    {"div", 2, pair, [](I, T in) { return div(in[0], in[1]); }, two<quotient>},
    {"maximum", 2, pair, [](I, T in) { return maximum(in[0], in[1]); }, two<larger>},
    {"minimum", 2, pair, [](I, T in) { return minimum(in[0], in[1]); }, two<smaller>},
    {"pow", 2, pair, [](I, T in) { return pow(in[0], in[1]); }, two<power_of>},
    {"add number", 2, number, [](I item, T in) { return in[0] + item.reals[0]; },
     [](I item, A in) { return map(*in[0], [&](N x) { return x + item.reals[0]; }); }},
    {"sub number", 2, number,
     [](I item, T in) {
       return item.ints[0] ? sub(in[0], item.reals[0]) : sub(item.reals[0], in[0]);
     },
     scalar<difference, reversed<difference>>},
    {"mul number", 2, number, [](I item, T in) { return mul(in[0], item.reals[0]); },
     [](I item, A in) { return map(*in[0], [&](N x) { return x * item.reals[0]; }); }},
    {"div number", 2, number,
     [](I item, T in) {
       return item.ints[0] ? div(in[0], item.reals[0]) : div(item.reals[0], in[0]);
     },
     scalar<quotient, reversed<quotient>>},
    {"maximum number", 2, number,
     [](I item, T in) {
       return item.ints[0] ? maximum(in[0], item.reals[0]) : minimum(in[0], item.reals[0]);
     },
     scalar<larger, smaller>},
    {"pow number", 2, exponent, [](I item, T in) { return pow(in[0], item.reals[0]); },
     [](I item, A in) { return map(*in[0], [&](N x) { return power(x, item.reals[0]); }); }},
    {"clamp", 2, one, [](I, T in) { return clamp(in[0], kLow, kHigh); }, unary<clamped>},
    {"where", 2, chosen, [](I, T in) { return where(gt(in[0], in[1]), in[2], in[0]); },
     where_exact},
    {"neg", 2, one, [](I, T in) { return neg(in[0]); }, unary<negative>},
    {"abs", 2, one, [](I, T in) { return abs(in[0]); }, unary<absolute>},
    {"square", 2, one, [](I, T in) { return square(in[0]); }, unary<squared>},
    {"exp", 2, one, [](I, T in) { return exp(in[0]); }, unary<exp>},
    {"log", 2, one, [](I, T in) { return log(in[0]); }, unary<log>},
    {"sqrt", 2, one, [](I, T in) { return sqrt(in[0]); }, unary<sqrt>},
    {"rsqrt", 2, one, [](I, T in) { return rsqrt(in[0]); }, unary<inverse_root>},
    {"tanh", 2, one, [](I, T in) { return tanh(in[0]); }, unary<tanh>},
    {"sigmoid", 2, one, [](I, T in) { return sigmoid(in[0]); }, unary<sigmoid>},
    {"relu", 2, one, [](I, T in) { return relu(in[0]); }, unary<positive>},
    {"gelu tanh", 2, one, [](I, T in) { return gelu(in[0]); }, unary<gelu_tanh>},
    {"gelu erf", 2, one, [](I, T in) { return gelu(in[0], Gelu::erf); }, unary<gelu_erf>},
    {"silu", 2, one, [](I, T in) { return silu(in[0]); }, unary<silu>},
    {"softplus", 2, one, [](I, T in) { return softplus(in[0]); }, unary<log_of_more>},
    {"dropout", 2, dropped,
     [](I item, T in) {
       return dropout(in[0], 0.25, {3, static_cast<std::uint64_t>(item.ints[0]), 2});
     },
     dropout_exact},
};

}  // namespace

std::span<const ProgramOp> elementwise_ops() { return kElementwiseOps; }

}  // namespace weft::generated
