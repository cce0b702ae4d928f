#include <cmath>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_noise.h"
#include "weft/core/philox.h"
#include "weft/tests/generated/program_ops.h"

// Arithmetic of two operands, of an operand and a number, and with random numbers.
namespace weft::generated {
namespace {

bool exponent(Maker& m, Item& item) {
  one(m, item);
  constexpr double kExponents[] = {0, 1, 2, 3, -1, 0.5};
  item.reals = {kExponents[m.rng.below(6)]};
  return true;
}
bool drawn(Maker& m, Item& item) {
  one(m, item);
  item.ints = {m.rng.below(1000)};
  return true;
}
RandomKey key_of(I item) { return {3, static_cast<std::uint64_t>(item.ints[0]), 2}; }

// The operand selected by an op if both are equal: half of the gradient goes to each.
Number middle(N a, N b) {
  Closest::see(a, b);
  Number both = (a + b) * 0.5;
  both.exact = a.exact && b.exact;
  return both;
}
Number larger(N a, N b) {
  if (a.v == b.v) return middle(a, b);
  return greater(a, b) ? a : b;
}
Number smaller(N a, N b) {
  if (a.v == b.v) return middle(a, b);
  return greater(a, b) ? b : a;
}
Number floor_ratio(N a, N b) {
  const Number ratio = a / b;
  Closest::see(ratio, std::round(ratio.v));
  return std::floor(ratio.v);
}
Number rest(N a, N b) { return a - b * floor_ratio(a, b); }
// A negative number has no power with a tensor of exponents. For an exponent of 0 the gradient of x
// is defined as 0, and higher derivatives are not tested.
Number power_of(N x, N p) { return p.v == 0 ? std::nan("") : exp(p * log(x)); }
template <Number (*f)(N, N)>
Number reversed(N a, N b) {
  return f(b, a);
}
// f(x, number), or with ints[0] = 0 g(x, number).
template <Number (*f)(N, N), Number (*g)(N, N)>
Array scalar(I item, A in) {
  return map(*in[0], [&item](N x) { return (item.ints[0] ? f : g)(x, item.reals[0]); });
}

Array dropout_exact(I item, A in) {
  Array y = *in[0];
  for (std::size_t i = 0; i < y.at.size(); ++i) {
    const bool drops = uniform_from_bits(random_bits(key_of(item), i)) < 0.25F;
    y.at[i] = drops ? Number(0) : y.at[i] / 0.75;
  }
  return y;
}
Array jitter_exact(I item, A in) {
  Array y = *in[0];
  for (std::size_t i = 0; i < y.at.size(); ++i) {
    const double share = uniform_from_bits(random_bits(key_of(item), i));
    y.at[i] = y.at[i] * rounded({0.75 + 0.5 * share, 0, 0, 0});
  }
  return y;
}
// The noise replaces the values; the derivatives stay. Elements 2k and 2k + 1 are a pair.
Array noise_exact(I item, A in) {
  RandomKey key = key_of(item);
  const std::uint64_t first = key.first;
  key.first = 0;
  Array y = *in[0];
  for (std::size_t i = 0; i < y.at.size(); ++i) {
    const std::uint64_t n = first + i, even = n - n % 2;
    const auto share = [&key](std::uint64_t k) {
      return (static_cast<double>(random_bits(key, k)) + 0.5) / 4294967296.0;
    };
    const double angle = 2 * std::numbers::pi * share(even + 1);
    const double wave = n % 2 == 0 ? std::cos(angle) : std::sin(angle);
    Number& x = y.at[i];
    x = rounded({std::sqrt(-2 * std::log(share(even))) * wave, x.s, x.t, x.st});
  }
  return plus(y, map(*in[1], still));
}
bool noisy(Maker& m, Item& item) {
  const int x = m.any(2);
  if (x < 0 || m.shape(x).size() != 2) return false;
  const Shape columns{m.shape(x)[1]};
  item.in = {x, m.like(columns)};
  item.ints = {m.rng.below(1000)};
  return true;
}

const ProgramOp kElementwiseOps[] = {
    {"add", 2, pair, [](I, T in) { return add(in[0], in[1]); }, two<sum_of>},
    {"sub", 2, pair, [](I, T in) { return sub(in[0], in[1]); }, two<difference>},
    {"mul", 2, pair, [](I, T in) { return mul(in[0], in[1]); }, two<product_of>},
    {"div", 2, pair, [](I, T in) { return div(in[0], in[1]); }, two<quotient>},
    {"maximum", 2, pair, [](I, T in) { return maximum(in[0], in[1]); }, two<larger>},
    {"minimum", 2, pair, [](I, T in) { return minimum(in[0], in[1]); }, two<smaller>},
    {"floor_divide", 2, pair, [](I, T in) { return floor_divide(in[0], in[1]); }, two<floor_ratio>},
    {"remainder", 2, pair, [](I, T in) { return remainder(in[0], in[1]); }, two<rest>},
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
    {"maximum minimum number", 2, number,
     [](I item, T in) {
       return item.ints[0] ? maximum(in[0], item.reals[0]) : minimum(in[0], item.reals[0]);
     },
     scalar<larger, smaller>},
    {"floor_divide remainder number", 2, number,
     [](I item, T in) {
       return item.ints[0] ? floor_divide(in[0], item.reals[0]) : remainder(in[0], item.reals[0]);
     },
     scalar<floor_ratio, rest>},
    {"pow number", 2, exponent, [](I item, T in) { return pow(in[0], item.reals[0]); },
     [](I item, A in) { return map(*in[0], [&](N x) { return power(x, item.reals[0]); }); }},
    {"dropout", 2, drawn, [](I item, T in) { return dropout(in[0], 0.25, key_of(item)); },
     dropout_exact},
    {"jitter", 2, drawn, [](I item, T in) { return jitter(in[0], 0.25, key_of(item)); },
     jitter_exact},
    {"random_logits", 2, noisy,
     [](I item, T in) { return random_logits(in[0], key_of(item), in[1]); }, noise_exact},
};

}  // namespace

std::span<const ProgramOp> elementwise_ops() { return kElementwiseOps; }

}  // namespace weft::generated
