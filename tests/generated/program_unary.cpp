#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/tests/generated/program_ops.h"

// Elementwise functions of one operand.
namespace weft::generated {
namespace {

constexpr double kLow = -0.53125, kHigh = 0.71875;
Number clamped(N x) {
  if (greater(kLow, x)) return kLow;
  return greater(x, kHigh) ? Number(kHigh) : x;
}
Number raised_to_low(N x) { return greater(kLow, x) ? Number(kLow) : x; }
Number cut_to_high(N x) { return greater(x, kHigh) ? Number(kHigh) : x; }
Number negative(N x) { return -x; }
Number absolute(N x) {
  if (x.v == 0) return 0;
  return greater(x, 0) ? x : -x;
}
Number squared(N x) { return x * x; }
Number inverse_root(N x) { return power(x, -0.5); }
Number positive(N x) { return greater(x, 0) ? x : Number(0); }
Number gelu_tanh(N x) { return gelu(x, false); }
Number gelu_erf(N x) { return gelu(x, true); }
Number sine(N x) { return chain(x, std::sin(x.v), std::cos(x.v), -std::sin(x.v)); }
Number cosine(N x) { return chain(x, std::cos(x.v), -std::sin(x.v), -std::cos(x.v)); }
Number log_from_one(N x) {
  const double y = 1 + x.v;
  if (y < 1e-4) return std::nan("");
  return chain(x, std::log1p(x.v), 1 / y, -1 / (y * y));
}
Number exp_from_one(N x) {
  const double e = std::exp(x.v);
  return chain(x, std::expm1(x.v), e, e);
}
Number leaky(N x) { return greater(x, 0) ? x : x * 0.25; }
Number exponential_below(N x) { return greater(x, 0) ? x : exp_from_one(x) * 0.5; }
// A step function, whose derivatives are 0; `edge`: the nearest place where it jumps.
Number step(N x, double edge, double value) {
  Closest::see(x, edge);
  return value;
}
Number floored(N x) { return step(x, std::round(x.v), std::floor(x.v)); }
Number raised(N x) { return step(x, std::round(x.v), std::ceil(x.v)); }
Number nearest(N x) { return step(x, std::floor(x.v) + 0.5, std::nearbyint(x.v)); }
Number sign_of(N x) { return step(x, 0, x.v > 0 ? 1 : x.v < 0 ? -1 : 0); }

const ProgramOp kUnaryOps[] = {
    {"clamp", 2, one, [](I, T in) { return clamp(in[0], kLow, kHigh); }, unary<clamped>},
    {"clamp_min", 2, one, [](I, T in) { return clamp_min(in[0], kLow); }, unary<raised_to_low>},
    {"clamp_max", 2, one, [](I, T in) { return clamp_max(in[0], kHigh); }, unary<cut_to_high>},
    {"neg", 2, one, [](I, T in) { return neg(in[0]); }, unary<negative>},
    {"abs", 2, one, [](I, T in) { return abs(in[0]); }, unary<absolute>},
    {"square", 2, one, [](I, T in) { return square(in[0]); }, unary<squared>},
    {"exp", 2, one, [](I, T in) { return exp(in[0]); }, unary<exp>},
    {"log", 2, one, [](I, T in) { return log(in[0]); }, unary<log>},
    {"sqrt", 2, one, [](I, T in) { return sqrt(in[0]); }, unary<sqrt>},
    {"rsqrt", 2, one, [](I, T in) { return rsqrt(in[0]); }, unary<inverse_root>},
    {"sin", 2, one, [](I, T in) { return sin(in[0]); }, unary<sine>},
    {"cos", 2, one, [](I, T in) { return cos(in[0]); }, unary<cosine>},
    {"log1p", 2, one, [](I, T in) { return log1p(in[0]); }, unary<log_from_one>},
    {"expm1", 2, one, [](I, T in) { return expm1(in[0]); }, unary<exp_from_one>},
    {"erf", 2, one, [](I, T in) { return erf(in[0]); }, unary<erf>},
    {"floor", 2, one, [](I, T in) { return floor(in[0]); }, unary<floored>},
    {"ceil", 2, one, [](I, T in) { return ceil(in[0]); }, unary<raised>},
    {"round", 2, one, [](I, T in) { return round(in[0]); }, unary<nearest>},
    {"sign", 2, one, [](I, T in) { return sign(in[0]); }, unary<sign_of>},
    {"tanh", 2, one, [](I, T in) { return tanh(in[0]); }, unary<tanh>},
    {"sigmoid", 2, one, [](I, T in) { return sigmoid(in[0]); }, unary<sigmoid>},
    {"relu", 2, one, [](I, T in) { return relu(in[0]); }, unary<positive>},
    {"gelu tanh", 2, one, [](I, T in) { return gelu(in[0]); }, unary<gelu_tanh>},
    {"gelu erf", 2, one, [](I, T in) { return gelu(in[0], Gelu::erf); }, unary<gelu_erf>},
    {"silu", 2, one, [](I, T in) { return silu(in[0]); }, unary<silu>},
    {"softplus", 2, one, [](I, T in) { return softplus(in[0]); }, unary<softplus>},
    {"leaky_relu", 2, one, [](I, T in) { return leaky_relu(in[0], 0.25); }, unary<leaky>},
    {"elu", 2, one, [](I, T in) { return elu(in[0], 0.5); }, unary<exponential_below>},
};

}  // namespace

std::span<const ProgramOp> unary_ops() { return kUnaryOps; }

}  // namespace weft::generated
