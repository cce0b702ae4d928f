#include "weft/autograd/activation.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/mlp.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/view.h"
#include "weft/tests/generated/program_ops.h"

// Products, norms and gates.
namespace weft::generated {
namespace {

// A second matrix with or without leading axes.
bool product(Maker& m, Item& item) {
  const int x = m.any(2);
  if (x < 0) return false;
  Shape shape = m.shape(x);
  const std::int64_t inner = shape.back();
  const bool batch = m.rng.chance(0.5);
  Shape other;
  for (int d = 0; batch && d + 2 < shape.size(); ++d)
    other.push_back(m.rng.chance(0.2) ? 1 : shape[d]);
  other.push_back(inner);
  other.push_back(m.length());
  const int y = m.like(other);
  item.in = {x, y};
  return true;
}
// A vector as second operand, or before a matrix.
bool by_vector(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  const std::int64_t k = m.shape(x).back(), n = m.length();
  const bool before = m.shape(x).size() == 1 && m.rng.chance(0.5);
  const Shape other = before ? Shape{k, n} : Shape{k};
  item.in = {x, m.like(other)};
  return true;
}
// Flattened, and another vector: as long, or not.
bool flat_pair(Maker& m, Item& item) {
  one(m, item);
  const Shape flat{m.shape(item.in[0]).numel()};
  item.in.push_back(m.like(flat));
  return true;
}
bool flat_and_other(Maker& m, Item& item) {
  one(m, item);
  const Shape other{m.length()};
  item.in.push_back(m.like(other));
  return true;
}
// A row, and weights with as many columns; then a bias.
bool weights(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  const std::int64_t k = m.shape(x).back(), n = m.length();
  const int w = m.like({n, k});
  const int b = m.like({n});
  item.in = {x, w, b};
  return true;
}
bool two_layers(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0) return false;
  const std::int64_t k = m.shape(x).back(), f = 1 + m.rng.below(4), n = 1 + m.rng.below(4);
  const bool gated = m.rng.chance(0.5);
  item.in = {x};
  item.in.push_back(m.like({gated ? 2 * f : f, k}));
  item.in.push_back(m.like({gated ? 2 * f : f}));
  item.in.push_back(m.like({n, f}));
  item.in.push_back(m.like({n}));
  item.ints = {gated ? 2 : m.rng.below(2), m.rng.below(2)};
  return true;
}
bool norm_operands(Maker& m, Item& item) {
  const int x = m.any(1);
  if (x < 0 || m.shape(x).back() == 0) return false;
  const std::int64_t c = m.shape(x).back();
  const int w = m.like({c});
  const int b = m.like({c});
  item.in = {x, w, b};
  item.ints = {m.rng.below(2)};
  return true;
}
bool norm_and_residual(Maker& m, Item& item) {
  if (!norm_operands(m, item)) return false;
  const Shape shape = m.shape(item.in[0]);
  item.in.push_back(m.like(shape));
  return true;
}
bool even_row(Maker& m, Item& item) {
  const int x = m.any(1);
  item.in = {x};
  return x >= 0 && m.shape(x).back() % 2 == 0;
}
bool scaled_rows(Maker& m, Item& item) {
  const int x = m.any(2);
  if (x < 0 || m.shape(x).size() != 2) return false;
  const Shape shape = m.shape(x);
  item.in = {x, m.like({shape[0]})};
  item.ints = {m.rng.below(2)};
  return true;
}
bool scaled_pairs(Maker& m, Item& item) {
  return scaled_rows(m, item) && m.shape(item.in[0]).back() % 2 == 0;
}
Array gated(const Array& x) {
  return along(x, x.ndim() - 1, [](const Row& row) {
    Row y;
    const std::size_t half = row.size() / 2;
    for (std::size_t i = 0; i < half; ++i) y.push_back(silu(row[i]) * row[i + half]);
    return y;
  });
}
// Activations without kernels of their own; ints[0] chooses one.
constexpr Activation kComposed[] = {Activation::geglu, Activation::relu2, Activation::relu,
                                    Activation::silu};
Activation composed(I item) { return kComposed[item.ints[0]]; }
bool composed_row(Maker& m, Item& item) {
  const int x = m.any(1);
  item.in = {x};
  item.ints = {m.rng.below(std::ssize(kComposed))};
  return x >= 0 && (!is_gated(composed(item)) || m.shape(x).back() % 2 == 0);
}
bool composed_rows(Maker& m, Item& item) {
  if (!composed_row(m, item) || m.shape(item.in[0]).size() != 2) return false;
  const Shape shape = m.shape(item.in[0]);
  item.in.push_back(m.like({shape[0]}));
  return true;
}
Array composed_exact(I item, const Array& x) {
  const Number zero(0);
  switch (composed(item)) {
    case Activation::geglu:
      return along(x, x.ndim() - 1, [](const Row& row) {
        Row y;
        const std::size_t half = row.size() / 2;
        for (std::size_t i = 0; i < half; ++i) y.push_back(gelu(row[i], false) * row[i + half]);
        return y;
      });
    case Activation::relu2:
      return map(x, [&](N v) { return greater(v, 0) ? v * v : zero; });
    case Activation::relu:
      return map(x, [&](N v) { return greater(v, 0) ? v : zero; });
    default:
      return map(x, [](N v) { return silu(v); });
  }
}
Array mlp_exact(I item, A in) {
  const Array hidden = plus(linear_exact(*in[0], *in[1]), *in[2]);
  const auto kind = item.ints[0];
  const Array active =
      kind == 2 ? gated(hidden) : map(hidden, [kind](N x) { return gelu(x, kind == 1); });
  return plus(linear_exact(active, *in[3]), *in[4]);
}
Array normed(const Array& x, bool centred, double eps) {
  return along(x, x.ndim() - 1, [=](Row row) {
    const auto n = static_cast<double>(row.size());
    const Number mean = centred ? total(row) / n : Number(0);
    Number squares;
    for (Number& v : row) {
      v = v - mean;
      squares = squares + v * v;
    }
    const Number scale = power(squares / n + eps, -0.5);
    for (Number& v : row) v = v * scale;
    return row;
  });
}
Array layer_norm_exact(I item, A in) {
  const Array y = normed(*in[0], true, 1e-5);
  return item.ints[0] ? plus(times(y, *in[1]), *in[2]) : y;
}
Array rms_norm_exact(I item, A in) {
  const Array y = normed(*in[0], false, 1e-6);
  return item.ints[0] ? times(y, *in[1]) : y;
}
Array by_rows(const Array& x, const Array& scale) {
  return times(x, reshaped(scale, {scale.shape[0], 1}));
}

// The scale is f32 if the rows have 16 bits.
Tensor scale_for(const Tensor& rows, const Tensor& scale) {
  return is_half(rows.dtype()) ? cast(scale, DType::f32) : scale;
}

// Adds the sum, so that it gets a gradient from two sides.
template <class Result>
Tensor both(const Result& r) {
  return r.y + r.sum;
}

const ProgramOp kFusedOps[] = {
    {"matmul", 2, product, [](I, T in) { return matmul(in[0], in[1]); },
     [](I, A in) { return matmul(*in[0], *in[1]); }},
    {"matmul vector", 2, by_vector, [](I, T in) { return matmul(in[0], in[1]); },
     [](I, A in) {
       const Array &x = *in[0], &w = *in[1];
       const std::int64_t k = w.shape[0];
       if (x.ndim() == 1 && w.ndim() > 1) {
         const Array y = matmul(reshaped(x, {1, k}), w);
         return reshaped(y, {y.shape[1]});
       }
       Shape shape = x.shape;
       shape.pop_back();
       const Array rows = reshaped(x, {shape.numel(), k});
       return reshaped(matmul(rows, reshaped(w, {k, 1})), shape);
     }},
    {"dot", 2, flat_pair, [](I, T in) { return dot(flatten(in[0]), in[1]); },
     [](I, A in) {
       return Array{{}, {total(times(reshaped(*in[0], in[1]->shape), *in[1]).at)}};
     }},
    {"outer", 2, flat_and_other, [](I, T in) { return outer(flatten(in[0]), in[1]); },
     [](I, A in) {
       return times(reshaped(*in[0], {in[0]->shape.numel(), 1}), *in[1]);
     }},
    {"linear", 2, weights, [](I, T in) { return linear(in[0], in[1], in[2]); },
     [](I, A in) { return plus(linear_exact(*in[0], *in[1]), *in[2]); }},
    {"mlp", 1, two_layers,
     [](I item, T in) {
       const MlpOptions o{static_cast<Activation>(item.ints[0]), item.ints[1] == 1};
       return mlp(in[0], in[1], in[2], in[3], in[4], o);
     },
     mlp_exact},
    {"layer_norm", 1, norm_operands,
     [](I item, T in) {
       return item.ints[0] ? layer_norm(in[0], in[1], in[2]) : layer_norm(in[0]);
     },
     layer_norm_exact},
    {"rms_norm", 1, norm_operands,
     [](I item, T in) { return item.ints[0] ? rms_norm(in[0], in[1]) : rms_norm(in[0]); },
     rms_norm_exact},
    {"layer_norm_residual", 1, norm_and_residual,
     [](I item, T in) {
       return both(item.ints[0] ? layer_norm_residual(in[0], in[3], in[1], in[2])
                                : layer_norm_residual(in[0], in[3]));
     },
     [](I item, A in) {
       const Array sum = plus(*in[0], *in[3]);
       return plus(layer_norm_exact(item, {&sum, in[1], in[2]}), sum);
     }},
    {"rms_norm_residual", 1, norm_and_residual,
     [](I item, T in) {
       return both(item.ints[0] ? rms_norm_residual(in[0], in[3], in[1])
                                : rms_norm_residual(in[0], in[3]));
     },
     [](I item, A in) {
       const Array sum = plus(*in[0], *in[3]);
       return plus(rms_norm_exact(item, {&sum, in[1]}), sum);
     }},
    {"swiglu", 1, same_shapes, [](I, T in) { return swiglu(in[0], in[1]); },
     [](I, A in) { return binary(*in[0], *in[1], [](N x, N y) { return silu(x) * y; }); }},
    {"swiglu packed", 1, even_row, [](I, T in) { return swiglu(in[0]); },
     [](I, A in) { return gated(*in[0]); }},
    {"activation", 2, composed_row, [](I item, T in) { return activation(in[0], composed(item)); },
     [](I item, A in) { return composed_exact(item, *in[0]); }},
    {"scaled_activation", 2, composed_rows,
     [](I item, T in) { return scaled_activation(in[0], scale_for(in[0], in[1]), composed(item)); },
     [](I item, A in) { return by_rows(composed_exact(item, *in[0]), *in[1]); }},
    {"scaled_swiglu", 1, scaled_pairs,
     [](I, T in) { return scaled_swiglu(in[0], scale_for(in[0], in[1])); },
     [](I, A in) { return by_rows(gated(*in[0]), *in[1]); }},
    {"scaled_gelu", 1, scaled_rows,
     [](I item, T in) {
       return scaled_gelu(in[0], scale_for(in[0], in[1]), item.ints[0] ? Gelu::erf : Gelu::tanh);
     },
     [](I item, A in) {
       return by_rows(map(*in[0], [&](N x) { return gelu(x, item.ints[0] == 1); }), *in[1]);
     }},
};

}  // namespace

std::span<const ProgramOp> fused_ops() { return kFusedOps; }

}  // namespace weft::generated
