#include "weft/core/kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// A part of one slot's tensor: elements [begin, begin + n), chunk number `index` over all slots.
template <class Slot>
struct Chunk {
  const Slot& slot;
  std::int64_t index, begin, n;
};

// Calls f(chunk) for every chunk of every slot, on several threads.
template <class Slot, class F>
void each_chunk(const Slot* slots, std::int64_t count, F f) {
  const std::int64_t chunks = optimizer_chunks(slots, count);
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < count; ++i) elements += slots[i].n;
  if (chunks == 0) return;
  parallel_for(chunks, elements / chunks + 1, [&](std::int64_t begin, std::int64_t end) {
    const Slot* slot = slots;
    std::int64_t first = 0;  // chunk number of this slot's first chunk
    for (std::int64_t i = begin; i < end; ++i) {
      while (i >= first + optimizer_chunks(slot, 1)) first += optimizer_chunks(slot++, 1);
      const std::int64_t at = (i - first) * kOptimizerChunk;
      f(Chunk<Slot>{*slot, i, at, std::min(kOptimizerChunk, slot->n - at)});
    }
  });
}

// 1 for null. NaN or infinite: the step is skipped.
double scale_of(const double* grad_scale) { return grad_scale ? *grad_scale : 1; }

template <class T>
T* at(void* base, std::int64_t offset) {
  return base ? static_cast<T*>(base) + offset : nullptr;
}
template <class T>
const T* at(const void* base, std::int64_t offset) {
  return static_cast<const T*>(base) + offset;
}

constexpr std::int64_t kBlock = 1024;  // elements converted at a time; four such blocks stay in the
                                       // L1 cache

// An f32 view of a range of stored numbers: the memory itself, or a converted copy.
class Block {
 public:
  float* read(void* base, DType dtype, std::int64_t offset, std::int64_t n, float scale = 1) {
    const OptimizerKernels& k = simd().optimizer;
    if (dtype == DType::f32) return at<float>(base, offset);
    if (dtype == DType::bf16)
      k.widen(at<bf16>(base, offset), buffer_, n);
    else
      k.widen_scaled(at<f16>(base, offset), scale, buffer_, n);
    return buffer_;
  }
  void write(void* base, DType dtype, std::int64_t offset, std::int64_t n, float scale = 1) const {
    const OptimizerKernels& k = simd().optimizer;
    if (dtype == DType::bf16)
      k.narrow(buffer_, at<bf16>(base, offset), n);
    else if (dtype == DType::f16)
      k.narrow_scaled(buffer_, scale, at<f16>(base, offset), n);
  }
  /// The numbers that the step of a slot updates.
  float* read_param(const ParamSlot& s, std::int64_t offset, std::int64_t n) {
    if (!s.remainder) return read(s.param, s.param_dtype, offset, n);
    simd().optimizer.merge(at<bf16>(s.param, offset), at<std::int16_t>(s.remainder, offset),
                           buffer_, n);
    return buffer_;
  }
  /// `p` is the result of read_param().
  void write_param(const ParamSlot& s, const float* p, std::int64_t offset, std::int64_t n) const {
    const OptimizerKernels& k = simd().optimizer;
    if (s.remainder)
      k.split(p, at<bf16>(s.param, offset), at<std::int16_t>(s.remainder, offset), n);
    else
      write(s.param, s.param_dtype, offset, n);
    if (s.bf16_copy) k.narrow(p, at<bf16>(s.bf16_copy, offset), n);
  }
  /// For a pass that must not change memory.
  float* copy(const float* x, std::int64_t n) {
    if (x != buffer_) std::copy(x, x + n, buffer_);
    return buffer_;
  }

 private:
  alignas(64) float buffer_[kBlock];
};

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

Scales stored_scales(const AdamSlot& s) {
  return {s.m_scale ? *s.m_scale : 1.0f, s.v_scale ? *s.v_scale : 1.0f};
}

// Computes the largest magnitudes of a chunk's new moments without writing them.
Scales adam_absmax(const AdamChunk& c, const AdamStep& step) {
  const AdamSlot& s = c.slot;
  const OptimizerKernels& k = simd().optimizer;
  const AdamConstants constants = constants_of(s, step);
  const Scales old = stored_scales(s);
  Scales most{0, 0};
  Block pb, gb, mb, vb;
  for (std::int64_t i = 0; i < c.n; i += kBlock) {
    const std::int64_t n = std::min(kBlock, c.n - i), o = c.begin + i;
    float* p = pb.copy(pb.read_param(s, o, n), n);
    const float* g = gb.read(const_cast<void*>(s.grad), s.grad_dtype, o, n);
    float* m = mb.copy(mb.read(s.m, s.m_dtype, o, n, old.m), n);
    float* v = vb.copy(vb.read(s.v, s.v_dtype, o, n, old.v), n);
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
  const Scales old = stored_scales(s);
  Block pb, gb, mb, vb;
  for (std::int64_t i = 0; i < c.n; i += kBlock) {
    const std::int64_t n = std::min(kBlock, c.n - i), o = c.begin + i;
    float* p = pb.read_param(s, o, n);
    const float* g = gb.read(const_cast<void*>(s.grad), s.grad_dtype, o, n);
    float *m = mb.read(s.m, s.m_dtype, o, n, old.m), *v = vb.read(s.v, s.v_dtype, o, n, old.v);
    k.adam(p, g, m, v, n, constants);
    pb.write_param(s, p, o, n);
    mb.write(s.m, s.m_dtype, o, n, fresh.m);
    vb.write(s.v, s.v_dtype, o, n, fresh.v);
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
  bf16* copy = at<bf16>(c.slot.bf16_copy, c.begin);
  auto* remainder = at<std::int16_t>(c.slot.remainder, c.begin);
  const auto read = [=](std::int64_t i) {
    if constexpr (std::is_same_v<P, bf16>)
      if (remainder) return merge_float(p[i], remainder[i]);
    return static_cast<C>(p[i]);
  };
  const auto write = [=](std::int64_t i, C x) {
    if constexpr (std::is_same_v<P, bf16>)
      if (remainder) {
        const SplitFloat halves = split_float(x);
        p[i] = halves.upper;
        remainder[i] = halves.remainder;
        return;
      }
    p[i] = P(x);
    if (copy) copy[i] = bf16(static_cast<float>(x));
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
      if (s.m_scale) *s.m_scale = absmax[0];
      if (s.v_scale) *s.v_scale = absmax[1];
    }
    absmax += 2 * optimizer_chunks(slots + i, 1);
  }
}

void sgd_step(const Tensor&, const SgdSlot* slots, std::int64_t count, const SgdStep& step) {
  if (!std::isfinite(scale_of(step.grad_scale))) return;
  each_chunk(slots, count, [&](const Chunk<SgdSlot>& c) {
    const DType p = c.slot.param_dtype, g = c.slot.grad_dtype;
    if (p == DType::f64) return sgd_chunk<double, double, double>(c, step);
    if (p == DType::f32 && g == DType::f32) return sgd_chunk<float, float, float>(c, step);
    if (p == DType::f32) return sgd_chunk<float, float, bf16>(c, step);
    if (g == DType::f32) return sgd_chunk<float, bf16, float>(c, step);
    return sgd_chunk<float, bf16, bf16>(c, step);
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

void zero_tensors(const Tensor&, const ZeroSlot* slots, std::int64_t count) {
  each_chunk(slots, count, [](const Chunk<ZeroSlot>& c) {
    const auto size = static_cast<std::int64_t>(size_of(c.slot.dtype));
    std::memset(static_cast<char*>(c.slot.data) + c.begin * size, 0,
                static_cast<std::size_t>(c.n * size));
  });
}

void clip_scale(const Tensor& sums, double max_norm, const Tensor& scale) {
  const double norm = std::sqrt(sums.data<double>()[sums.numel() - 1]);
  scale.data<double>()[0] = !std::isfinite(norm) ? std::numeric_limits<double>::quiet_NaN()
                                                 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace weft::cpu
