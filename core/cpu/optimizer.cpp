#include "weft/core/kernels/optimizer.h"

#include <cmath>
#include <limits>

#include "weft/core/cpu/optimizer_block.h"

namespace weft::cpu {
namespace {

// 1 for null. NaN or infinite: the step is skipped.
double scale_of(const double* grad_scale) { return grad_scale ? *grad_scale : 1; }

AdamConstants constants_of(const AdamSlot& slot, const AdamStep& s) {
  return {static_cast<float>(scale_of(s.grad_scale)),
          static_cast<float>(s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(s.eps),
          static_cast<float>(s.now.bias_correction1),
          static_cast<float>(s.now.bias_correction2),
          static_cast<float>(s.now.lr * slot.lr_scale),
          static_cast<float>(slot.weight_decay),
          s.decoupled};
}

bool has_f16(const AdamSlot& slot) {
  return slot.m_dtype == DType::f16 || slot.v_dtype == DType::f16;
}

using AdamChunk = Chunk<AdamSlot>;

// One chunk of f64 params in f64. Also the readable form of the update.
void adam_f64(const AdamChunk& c, const AdamStep& s) {
  const double scale = scale_of(s.grad_scale), decay = c.slot.weight_decay;
  const double lr = s.now.lr * c.slot.lr_scale;
  double* p = at<double>(c.slot.param, c.begin);
  const double* grad = at<double>(c.slot.grad, c.begin);
  double *m = at<double>(c.slot.m, c.begin), *v = at<double>(c.slot.v, c.begin);
  for (std::int64_t i = 0; i < c.n; ++i) {
    double g = grad[i] * scale;
    if (!s.decoupled) g += decay * p[i];
    m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
    v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
    double u = (m[i] / s.now.bias_correction1) / (std::sqrt(v[i] / s.now.bias_correction2) + s.eps);
    if (s.decoupled) u += decay * p[i];
    p[i] -= lr * u;
  }
}

struct Scales {
  float m = 1, v = 1;
};

float f16_scale(DType dtype, const void* scale) {
  return dtype == DType::f16 ? *static_cast<const float*>(scale) : 1.0f;
}
StoredState first_moment(const AdamSlot& s) {
  return {s.m, s.m_dtype, s.m_scale, f16_scale(s.m_dtype, s.m_scale), false};
}
StoredState second_moment(const AdamSlot& s) {
  return {s.v, s.v_dtype, s.v_scale, f16_scale(s.v_dtype, s.v_scale), true};
}

// Computes the largest magnitudes of a chunk's new moments without writing them.
Scales adam_absmax(const AdamChunk& c, const AdamStep& step) {
  const AdamSlot& s = c.slot;
  const OptimizerKernels& k = simd().optimizer;
  const AdamConstants constants = constants_of(s, step);
  const StoredState old_m = first_moment(s), old_v = second_moment(s);
  Scales most{0, 0};
  Block pb, gb, mb, vb;
  for (std::int64_t i = 0; i < c.n; i += kOptimizerBlock) {
    const std::int64_t n = std::min(kOptimizerBlock, c.n - i), o = c.begin + i;
    float* p = pb.copy(pb.read_param(s, o, n), n);
    const float* g = gb.read({const_cast<void*>(s.grad), s.grad_dtype}, o, n);
    float *m = mb.copy(mb.read(old_m, o, n), n), *v = vb.copy(vb.read(old_v, o, n), n);
    k.adam(p, g, m, v, n, constants);
    most.m = std::max(most.m, k.absmax(m, n));
    most.v = std::max(most.v, k.absmax(v, n));
  }
  return most;
}

void adam_chunk(const AdamChunk& c, const AdamStep& step, Scales fresh) {
  const AdamSlot& s = c.slot;
  const OptimizerKernels& k = simd().optimizer;
  const AdamConstants constants = constants_of(s, step);
  const StoredState old_m = first_moment(s), old_v = second_moment(s);
  StoredState new_m = old_m, new_v = old_v;
  new_m.scale = fresh.m;
  new_v.scale = fresh.v;
  Block pb, gb, mb, vb;
  RandomWords words;
  for (std::int64_t i = 0; i < c.n; i += kOptimizerBlock) {
    const std::int64_t n = std::min(kOptimizerBlock, c.n - i), o = c.begin + i;
    float* p = pb.read_param(s, o, n);
    const float* g = gb.read({const_cast<void*>(s.grad), s.grad_dtype}, o, n);
    float *m = mb.read(old_m, o, n), *v = vb.read(old_v, o, n);
    k.adam(p, g, m, v, n, constants);
    write_param(s, p, o, n, step.seed, step.now.step, words);
    const std::uint32_t* const drawn =
        s.stochastic && (rounds(s.m_dtype) || rounds(s.v_dtype))
            ? words.draw(s, step.seed, step.now.step, Drawn::states, o, n)
            : nullptr;
    mb.write(new_m, o, n, {drawn, 0});
    vb.write(new_v, o, n, {drawn, 16});
  }
}

template <class C, class P, class G>
void sgd_chunk(const Chunk<SgdSlot>& c, const SgdStep& s) {
  const C scale = static_cast<C>(scale_of(s.grad_scale)),
          lr = static_cast<C>(s.now.lr * c.slot.lr_scale);
  const C decay = static_cast<C>(c.slot.weight_decay), momentum = static_cast<C>(s.momentum);
  P* p = at<P>(c.slot.param, c.begin);
  const G* grad = at<G>(c.slot.grad, c.begin);
  C* buffer = at<C>(c.slot.momentum, c.begin);
  auto* remainder = at<std::int16_t>(c.slot.remainder, c.begin);
  const auto read = [=](std::int64_t i) {
    if constexpr (std::is_same_v<P, bf16>)
      if (remainder) return merge_float(p[i], remainder[i]);
    return static_cast<C>(p[i]);
  };
  const RandomKey key{s.seed, rounding_stream(c.slot.stream, s.now.step, Drawn::weight)};
  const auto write = [=](std::int64_t i, C x) {
    if constexpr (std::is_same_v<P, bf16>)
      if (remainder) {
        const SplitFloat halves = split_float(x);
        p[i] = halves.upper;
        remainder[i] = halves.remainder;
        return;
      }
    if constexpr (std::is_same_v<P, bf16>)
      if (c.slot.stochastic) {
        const std::int64_t whole = whole_index(c.slot.place, c.slot.first + c.begin + i);
        p[i] = stochastic_bf16(x, random_bits(key, static_cast<std::uint64_t>(whole)) & 0xffff);
        return;
      }
    p[i] = P(x);
  };
  for (std::int64_t i = 0; i < c.n; ++i) {
    const C old = read(i);
    C g = static_cast<C>(grad[i]) * scale + decay * old;
    if (buffer) {
      buffer[i] = momentum * buffer[i] + g;
      g = s.nesterov ? g + momentum * buffer[i] : buffer[i];
    }
    write(i, old - lr * g);
  }
  if constexpr (std::is_same_v<P, float>)
    if (c.slot.half_copy) write_copy(c.slot, p, c.begin, c.n);
}

// A parameter that is not f64, with any such gradient.
template <class P>
void sgd_of(const Chunk<SgdSlot>& c, const SgdStep& s) {
  const DType g = c.slot.grad_dtype;
  if (g == DType::f32) return sgd_chunk<float, P, float>(c, s);
  g == DType::bf16 ? sgd_chunk<float, P, bf16>(c, s) : sgd_chunk<float, P, f16>(c, s);
}

// Sixteen sums, then their sum, as in the row kernels of the narrower types.
double squares(const double* x, std::int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % kLanes] += x[i] * x[i];
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

void adam_step(const Tensor& scratch, const AdamSlot* slots, std::int64_t count,
               const AdamStep& step) {
  if (!std::isfinite(scale_of(step.grad_scale))) return;
  const bool f16_states = std::any_of(slots, slots + count, has_f16);
  float* absmax = f16_states ? scratch.data<float>() : nullptr;
  if (f16_states) {
    // First pass: the largest new moments. Then the scales of each slot, at its first chunk.
    each_chunk(slots, count, [&](const AdamChunk& c) {
      if (!has_f16(c.slot)) return;
      const Scales most = adam_absmax(c, step);
      absmax[2 * c.index] = most.m;
      absmax[2 * c.index + 1] = most.v;
    });
    float* first = absmax;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t chunks = optimizer_chunks(slots + i, 1);
      if (has_f16(slots[i])) {
        Scales most{0, 0};
        for (std::int64_t c = 0; c < chunks; ++c) {
          most.m = std::max(most.m, first[2 * c]);
          most.v = std::max(most.v, first[2 * c + 1]);
        }
        constexpr float kLargest = 32752;  // half of the f16 range
        for (std::int64_t c = 0; c < chunks; ++c) {
          first[2 * c] = most.m / kLargest;
          first[2 * c + 1] = most.v / kLargest;
        }
      }
      first += 2 * chunks;
    }
  }
  each_chunk(slots, count, [&](const AdamChunk& c) {
    if (c.slot.param_dtype == DType::f64) return adam_f64(c, step);
    adam_chunk(c, step,
               has_f16(c.slot) ? Scales{absmax[2 * c.index], absmax[2 * c.index + 1]} : Scales{});
  });
  for (std::int64_t i = 0; f16_states && i < count; ++i) {
    const AdamSlot& s = slots[i];
    if (has_f16(s) && s.n > 0) {
      if (s.m_dtype == DType::f16) *static_cast<float*>(s.m_scale) = absmax[0];
      if (s.v_dtype == DType::f16) *static_cast<float*>(s.v_scale) = absmax[1];
    }
    absmax += 2 * optimizer_chunks(slots + i, 1);
  }
}

void sgd_step(const Tensor&, const SgdSlot* slots, std::int64_t count, const SgdStep& step) {
  if (!std::isfinite(scale_of(step.grad_scale))) return;
  each_chunk(slots, count, [&](const Chunk<SgdSlot>& c) {
    const DType p = c.slot.param_dtype;
    if (p == DType::f64) return sgd_chunk<double, double, double>(c, step);
    if (p == DType::f32) return sgd_of<float>(c, step);
    p == DType::bf16 ? sgd_of<bf16>(c, step) : sgd_of<f16>(c, step);
  });
}

void grad_squares(const Tensor& partials, const GradSlot* slots, std::int64_t count,
                  const Tensor& sums) {
  double* partial = partials.data<double>();
  each_chunk(slots, count, [=](const Chunk<GradSlot>& c) {
    const void* g = c.slot.grad;
    switch (c.slot.grad_dtype) {
      case DType::f64:
        partial[c.index] = squares(at<double>(g, c.begin), c.n);
        break;
      case DType::bf16:
        partial[c.index] = simd().bf16_.sum_squares(at<bf16>(g, c.begin), c.n);
        break;
      case DType::f16:
        partial[c.index] = simd().f16_.sum_squares(at<f16>(g, c.begin), c.n);
        break;
      default:
        partial[c.index] = simd().f32.sum_squares(at<float>(g, c.begin), c.n);
    }
  });
  double* out = sums.data<double>();
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = 0;
    for (std::int64_t c = optimizer_chunks(slots + i, 1); c > 0; --c) sum += *partial++;
    out[i] = sum;
    total += sum;
  }
  out[count] = total;
}

void clip_scale(const Tensor& sums, double max_norm, const Tensor& scale) {
  const double norm = std::sqrt(sums.data<double>()[sums.numel() - 1]);
  scale.data<double>()[0] = !std::isfinite(norm) ? std::numeric_limits<double>::quiet_NaN()
                                                 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace weft::cpu
