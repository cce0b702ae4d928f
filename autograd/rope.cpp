#include "weft/autograd/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/indexing.h"
#include "weft/core/kernels/rope.h"

namespace weft {
namespace {

void check_rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  detail::check_tensor("rope", "x", x);
  detail::check_tensor("rope", "cos", cos);
  detail::check_tensor("rope", "sin", sin);
  check(x.ndim() == 4, "rope: x must have 4 axes (batch, tokens, heads, head_dim), got {}",
        x.shape());
  if (!is_compute(x.dtype())) throw_bad_dtype("rope", x.dtype(), kFloatingNames);
  check(x.dim(3) % 2 == 0, "rope: head_dim must be even, got {}", x.dim(3));
  check(cos.ndim() == 2 && cos.dim(1) == x.dim(3) / 2 && sin.shape() == cos.shape(),
        "rope: cos and sin must have shape [max_T, {}] (half of x {}), got {} and {}", x.dim(3) / 2,
        x.shape(), cos.shape(), sin.shape());
  check((cos.dtype() == DType::f32 || cos.dtype() == DType::f64) && sin.dtype() == cos.dtype(),
        "rope: cos and sin must both be f32 or f64, got {} and {}", cos.dtype(), sin.dtype());
  check(cos.device() == x.device() && sin.device() == x.device(),
        "rope: cos and sin must be on the device of x, {}, got {} and {}", x.device(), cos.device(),
        sin.device());
}

void check_positions(const Tensor& positions, const Tensor& x, std::int64_t table) {
  const Shape one{x.dim(1)}, each{x.dim(0), x.dim(1)};
  check(positions.dtype() == DType::i32 && (positions.shape() == one || positions.shape() == each),
        "rope: positions must be i32 with shape {} or {}, got {} {}", one, each, positions.dtype(),
        positions.shape());
  check(positions.device() == x.device(), "rope: positions must be on the device of x, {}, got {}",
        x.device(), positions.device());
  if (x.device().is_gpu())  // the host does not wait: a bad one throws at its next sync
    dispatch<cpu::find_bad_index, cuda::find_bad_index>(positions, "rope", "positions", table,
                                                        Tensor());
  if (!x.device().is_cpu()) return;
  const std::int32_t* p = positions.data<std::int32_t>();
  for (std::int64_t i = 0; i < positions.numel(); ++i)
    check(p[i] >= 0 && p[i] < table, "rope: positions must be in [0, {}), got {}", table, p[i]);
}

/// Angles, direction, and number of heads to rotate.
struct Turn {
  std::int64_t offset, heads;
  bool inverse;
};

// In place if allowed and x's memory has no other handle, external owner or pending stream.
Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions,
            const Turn& t, bool in_place) {
  const Storage& memory = *x.storage();
  in_place = in_place && x.is_contiguous() && x.impl()->refs.load() == 1 &&
             memory.refs.load() == 1 && !memory.deleter && memory.used_on.empty();
  Tensor y = in_place ? x.alias(x.shape(), x.strides(), 0)
                      : Tensor::empty(x.shape(), x.dtype(), x.device());
  {
    const NoGradGuard quiet;
    dispatch<cpu::rope, cuda::rope>(contiguous(x), cos, sin, positions, t.offset, t.inverse,
                                    t.heads, y);
  }
  if (recording(x))
    Tape::record("rope", {&x}, {&y},
                 [sc = save(cos, "cos"), ss = save(sin, "sin"), sp = save(positions, "positions"),
                  back = Turn{t.offset, t.heads, !t.inverse}](Backward& b) {
                   b.add(0, turn(b.dy(), sc.get(), ss.get(), sp.get(), back, true));
                 });
  return y;
}

void check_range(const Tensor& x, const Tensor& cos, std::int64_t first) {
  std::int64_t end = 0;
  const bool overflows = __builtin_add_overflow(first, x.dim(1), &end);
  check(!overflows && first >= 0 && end <= cos.dim(0),
        "rope: positions [{}, {}) must be inside the {} rows of cos", first,
        overflows ? INT64_MAX : end, cos.dim(0));
}

void check_heads(const Tensor& packed, std::int64_t heads) {
  check(heads >= 0 && heads <= packed.dim(2),
        "rope_packed: heads must be in [0, {}] (packed {}), got {}", packed.dim(2), packed.shape(),
        heads);
}

// 1 where a frequency is divided by the factor, 0 where it is kept.
double llama3_share(double frequency, const RopeScaling& s) {
  const double waves = static_cast<double>(s.original) * frequency / (2 * std::numbers::pi);
  return std::clamp((s.high - waves) / (s.high - s.low), 0.0, 1.0);
}

// The pair that turns `turns` times in `original` tokens.
double pair_of(double turns, std::int64_t head_dim, double theta, const RopeScaling& s) {
  return static_cast<double>(head_dim) *
         std::log(static_cast<double>(s.original) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

double yarn_gain(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

double yarn_share(std::int64_t pair, std::int64_t head_dim, double theta, const RopeScaling& s) {
  const double last = static_cast<double>(head_dim - 1);
  const double low = std::max(std::floor(pair_of(s.beta_fast, head_dim, theta, s)), 0.0);
  double high = std::min(std::ceil(pair_of(s.beta_slow, head_dim, theta, s)), last);
  if (high == low) high += 0.001;
  return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
}

}  // namespace

double RopeScaling::table_factor() const {
  if (kind != Kind::yarn) return 1;
  if (attention != 0) return attention;
  if (mscale != 0 && mscale_all != 0)
    return yarn_gain(factor, mscale) / yarn_gain(factor, mscale_all);
  return yarn_gain(factor, 1);
}

double RopeScaling::score_factor() const {
  if (kind != Kind::yarn || mscale_all == 0) return 1;
  const double g = yarn_gain(factor, mscale_all);
  return g * g;
}

std::vector<double> rope_frequencies(std::int64_t head_dim, double theta, const RopeScaling& s) {
  using Kind = RopeScaling::Kind;
  check(head_dim >= 2 && head_dim % 2 == 0, "rope_tables: head_dim must be even, got {}", head_dim);
  check(theta > 0, "rope_tables: theta must be above 0, got {}", theta);
  check(s.factor > 0, "rope_tables: the factor of a scaling must be above 0, got {}", s.factor);
  check(s.kind < Kind::llama3 || s.original > 0,
        "rope_tables: llama3 and yarn need the original number of tokens, got {}", s.original);
  check(s.kind != Kind::llama3 || s.low < s.high,
        "rope_tables: low must be below high, got {} and {}", s.low, s.high);
  check(s.kind != Kind::yarn || (s.beta_fast > s.beta_slow && s.beta_slow > 0 && theta > 1),
        "rope_tables: yarn needs beta_fast above beta_slow, both above 0, and theta above 1, got "
        "{}, {} and {}",
        s.beta_fast, s.beta_slow, theta);
  std::vector<double> all;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double share = s.kind == Kind::none     ? 0
                         : s.kind == Kind::linear ? 1
                         : s.kind == Kind::llama3 ? llama3_share(frequency, s)
                                                  : yarn_share(i, head_dim, theta, s);
    all.push_back(share == 0 ? frequency : frequency * (share / s.factor + 1 - share));
  }
  return all;
}

RopeTables rope_tables(std::int64_t max_seq, std::int64_t head_dim, double theta, DType dtype,
                       const RopeScaling& scaling) {
  check(max_seq >= 1, "rope_tables: max_seq must be at least 1, got {}", max_seq);
  const std::vector<double> frequencies = rope_frequencies(head_dim, theta, scaling);
  check(dtype == DType::f32 || dtype == DType::f64, "rope_tables: dtype must be f32 or f64, got {}",
        dtype);
  const std::int64_t half = head_dim / 2;
  const RopeTables tables{Tensor::empty({max_seq, half}, dtype),
                          Tensor::empty({max_seq, half}, dtype)};
  const double factor = scaling.table_factor();
  const auto fill = [&]<class T>(T* cos, T* sin) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency = frequencies[static_cast<std::size_t>(i)];
      for (std::int64_t t = 0; t < max_seq; ++t) {
        const double angle = static_cast<double>(t) * frequency;
        cos[t * half + i] = static_cast<T>(factor * std::cos(angle));
        sin[t * half + i] = static_cast<T>(factor * std::sin(angle));
      }
    }
  };
  if (dtype == DType::f32)
    fill(tables.cos.data<float>(), tables.sin.data<float>());
  else
    fill(tables.cos.data<double>(), tables.sin.data<double>());
  return tables;
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t position_offset) {
  check_rope(x, cos, sin);
  check_range(x, cos, position_offset);
  return turn(x, contiguous(cos), contiguous(sin), {}, {position_offset, x.dim(2), false}, false);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions) {
  check_rope(x, cos, sin);
  if (!positions.defined()) return rope(x, cos, sin);
  const Tensor dense = contiguous(positions);
  check_positions(dense, x, cos.dim(0));
  return turn(x, contiguous(cos), contiguous(sin), dense, {0, x.dim(2), false}, false);
}

Tensor rope_packed(Tensor packed, std::int64_t heads, const Tensor& cos, const Tensor& sin,
                   const Tensor& positions) {
  check_rope(packed, cos, sin);
  check_heads(packed, heads);
  Tensor dense;
  if (positions.defined()) {
    dense = contiguous(positions);
    check_positions(dense, packed, cos.dim(0));
  } else {
    check_range(packed, cos, 0);
  }
  return turn(packed, contiguous(cos), contiguous(sin), dense, {0, heads, false}, true);
}

}  // namespace weft
