#include <cmath>
#include <utility>

#include "weft/autograd/rope.h"
#include "weft/tests/generated/program_heads.h"

// Rotary position embedding.
namespace weft::generated {
namespace {

constexpr std::int64_t kPositions = 16;
constexpr double kTheta = 100;
double angle(std::int64_t position, std::int64_t i, std::int64_t half) {
  return static_cast<double>(position) *
         std::pow(kTheta, -static_cast<double>(i) / static_cast<double>(half));
}
RopeTables tables(const Tensor& x, std::int64_t width) {
  const DType real = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const RopeTables t = rope_tables(kPositions, width, kTheta, real);
  return {t.cos.to(x.device()), t.sin.to(x.device())};
}

// ints[4]: the number of heads that turn, [5]: an offset of the positions, or -1 and then a
// position for each token.
bool rotated(Maker& m, Item& item) {
  if (!heads(m, item, 1, true)) return false;
  item.ints.insert(item.ints.end(), {item.ints[2], m.rng.below(5) - 1});
  if (item.ints[5] < 0) draw_indices(m, item, item.ints[0] * item.ints[1], kPositions);
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
bool rotated_packed(Maker& m, Item& item) {
  if (!heads(m, item, 3, true)) return false;
  item.ints.insert(item.ints.end(), {item.ints[2] / 3 * 2, m.rng.chance(0.5) ? 0 : -1});
  if (item.ints[5] < 0) draw_indices(m, item, item.ints[0] * item.ints[1], kPositions);
  item.reals = {m.rng.chance(0.5) ? 1.0 : 0.0};
  return true;
}
Tensor positions(I item, const Tensor& x) {
  if (item.ints[5] >= 0) return {};
  return int_tensor(item, 6, {item.ints[0], item.ints[1]}, x).to(DType::i32);
}
Array rotated_exact(I item, A in) {
  const Array x = in_heads(item, *in[0]);
  Array y = x;
  const std::int64_t half = item.ints[3] / 2, T = x.shape[1];
  std::size_t next = 0;
  for (std::int64_t b = 0; b < x.shape[0]; ++b)
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t h = 0; h < x.shape[2]; ++h)
        for (std::int64_t d = 0; d < 2 * half; ++d, ++next) {
          if (h >= item.ints[4]) continue;
          const std::int64_t i = d % half, offset = item.ints[5];
          const std::int64_t position =
              offset >= 0 ? t + offset : item.ints[static_cast<std::size_t>(6 + b * T + t)];
          const double turn = angle(position, i, half);
          const Number &low = element(x, {b, t, h, i}), &high = element(x, {b, t, h, i + half});
          y.at[next] = d < half ? low * std::cos(turn) - high * std::sin(turn)
                                : low * std::sin(turn) + high * std::cos(turn);
        }
  return y;
}
bool even_width(Maker& m, Item& item) {
  one(m, item);
  item.ints = {2 + 2 * m.rng.below(3)};
  return true;
}

const ProgramOp kRopeOps[] = {
    {"rope_tables", 2, even_width,
     [](I item, T in) {
       const RopeTables t = tables(in[0], item.ints[0]);
       return stack({t.cos, t.sin});
     },
     [](I item, A) {
       const std::int64_t half = item.ints[0] / 2;
       Array y = filled({2, kPositions, half}, 0);
       for (std::size_t k = 0; k < y.at.size(); ++k) {
         const auto i = static_cast<std::int64_t>(k), row = i / half;
         const double turn = angle(row % kPositions, i % half, half);
         y.at[k] = rounded({row < kPositions ? std::cos(turn) : std::sin(turn), 0, 0, 0});
       }
       return y;
     }},
    {"rope", 2, rotated,
     [](I item, T in) {
       const Tensor x = in_heads(item, in[0]), at = positions(item, x);
       const RopeTables t = tables(x, item.ints[3]);
       return at.defined() ? rope(x, t.cos, t.sin, at) : rope(x, t.cos, t.sin, item.ints[5]);
     },
     rotated_exact},
    {"rope_packed", 2, rotated_packed,
     [](I item, T in) {
       Tensor x = in_heads(item, in[0]);
       const Tensor at = positions(item, x);
       const RopeTables t = tables(x, item.ints[3]);
       return rope_packed(std::move(x), item.ints[4], t.cos, t.sin, at);
     },
     rotated_exact},
};

}  // namespace

std::span<const ProgramOp> rope_ops() { return kRopeOps; }

}  // namespace weft::generated
