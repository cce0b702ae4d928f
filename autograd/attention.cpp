#include "weft/autograd/attention.h"

#include <algorithm>
#include <cmath>

#include "weft/autograd/cu_seqlens.h"
#include "weft/autograd/masked_attention.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/attention.h"
#include "weft/core/random.h"

namespace weft {
namespace {

void check_qkv(const Tensor& q, const Tensor& k, const Tensor& v) {
  detail::check_tensor("attention", "q", q);
  detail::check_tensor("attention", "k", k);
  detail::check_tensor("attention", "v", v);
  check(
      q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4,
      "attention: q, k and v must have 4 axes (batch, tokens, heads, head_dim), got {}, {} and {}",
      q.shape(), k.shape(), v.shape());
  if (!is_compute(q.dtype())) throw_bad_dtype("attention", q.dtype(), kFloatingNames);
  check(k.dtype() == q.dtype() && v.dtype() == q.dtype(),
        "attention: q, k and v must have one dtype, got {}, {} and {}", q.dtype(), k.dtype(),
        v.dtype());
  check(k.device() == q.device() && v.device() == q.device(),
        "attention: q, k and v must be on one device, got {}, {} and {}", q.device(), k.device(),
        v.device());
  check(v.dim(0) == k.dim(0) && v.dim(1) == k.dim(1) && v.dim(2) == k.dim(2),
        "attention: batch, tokens and heads of k {} and v {} must be equal", k.shape(), v.shape());
  check(k.dim(0) == q.dim(0) && k.dim(3) == q.dim(3),
        "attention: batch and head_dim of q {} and k {} must be equal", q.shape(), k.shape());
  const std::int64_t wide = std::max(q.dim(3), v.dim(3));
  check(q.dim(3) > 0 && v.dim(3) > 0, "attention: head_dim must be at least 1, got q {} and v {}",
        q.shape(), v.shape());
  check(!q.device().is_gpu() || wide <= kAttentionMaxDim,
        "attention: head_dim must be at most {} on a GPU, got {}", kAttentionMaxDim, wide);
  check(q.dim(2) > 0 && k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
        "attention: heads {} must be a multiple of kv_heads {}", q.dim(2), k.dim(2));
}

void check_options(const AttentionOptions& o) {
  check(o.window >= 0, "attention: window must be at least 0, got {}", o.window);
  check(o.window == 0 || o.causal, "attention: window {} needs causal", o.window);
  check(o.dropout >= 0 && o.dropout < 1, "attention: dropout must be in [0, 1), got {}", o.dropout);
  check(o.key_heads >= 0, "attention: key_heads must be at least 0, got {}", o.key_heads);
  check(o.key_rows >= 1, "attention: key_rows must be at least 1, got {}", o.key_rows);
  check(!o.mask.defined() || !o.cu_seqlens.defined(),
        "attention: a mask cannot go with cu_seqlens");
}

AttentionSpec make_spec(const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOptions& o) {
  return {.batch = q.dim(0),
          .heads = q.dim(2),
          .kv_heads = k.dim(2),
          .queries = q.dim(1),
          .keys = k.dim(1),
          .head_dim = q.dim(3),
          .value_dim = v.dim(3),
          .causal = o.causal,
          .window = o.window,
          .scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.dim(3))),
          .dropout = o.dropout,
          .key = o.dropout > 0 && !o.key ? next_random_key() : o.key.value_or(RandomKey{}),
          .key_heads = o.key_heads ? o.key_heads : q.dim(2),
          .key_rows = o.key_rows};
}

// The dtype of the kernel's operands: 16 bits become f32 on the CPU.
DType kernel_dtype(const Tensor& t) {
  return is_half(t.dtype()) && !t.device().is_gpu() ? DType::f32 : t.dtype();
}

// t in the dtype and layout that the kernels read: contiguous tokens, evenly spaced. A slice of a
// packed projection (B, T, 3 H D) already has this layout.
Tensor readable(const Tensor& t) {
  if (kernel_dtype(t) != t.dtype()) return contiguous(cast(t, kernel_dtype(t)));
  const Shape& s = t.strides();
  const std::int64_t distance = token_distance(t);
  const bool dense_token = (t.dim(3) == 1 || s[3] == 1) && (t.dim(2) == 1 || s[2] == t.dim(3));
  const bool even = t.dim(0) == 1 || s[0] == t.dim(1) * distance;
  return dense_token && even && distance >= t.dim(2) * t.dim(3) ? t : contiguous(t);
}

Tensor computed(const Tensor& t, const Tensor& like) {
  return t.dtype() == like.dtype() ? t : cast(t, like.dtype());
}

Tensor empty_readable(const Tensor& t) {
  return Tensor::empty(t.shape(), kernel_dtype(t), t.device());
}

struct Heads {
  Tensor q, k, v;
};

// q, k and v as views of a packed projection; the tape does not record them.
Heads heads_of(const Tensor& packed, std::int64_t heads, std::int64_t kv_heads) {
  const auto part = [&](std::int64_t first, std::int64_t count) {
    Shape shape = packed.shape();
    shape[2] = count;
    return packed.alias(shape, packed.strides(), first * packed.strides()[2]);
  };
  return {part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
}

void check_packed(const Tensor& packed, std::int64_t heads, std::int64_t kv_heads) {
  detail::check_tensor("attention_packed", "packed", packed);
  check(packed.ndim() == 4 && heads >= 1 && kv_heads >= 1 && heads <= packed.dim(2) &&
            kv_heads <= packed.dim(2) && packed.dim(2) == heads + 2 * kv_heads,
        "attention_packed: packed must have shape (batch, tokens, {} query + 2 * {} key heads, "
        "head_dim), got {}",
        heads, kv_heads, packed.shape());
}

Tensor checked_sequences(const AttentionOptions& o, const Tensor& q, const Tensor& k) {
  check(o.key_rows == 1 || (o.cu_seqlens.defined() && q.dim(1) % o.key_rows == 0),
        "attention: {} key_rows need a packed row of a multiple of as many tokens, got {}",
        o.key_rows, q.shape());
  if (!o.cu_seqlens.defined()) return {};
  check(q.dim(0) == 1 && q.dim(1) == k.dim(1),
        "attention: with cu_seqlens q and k must be one row of the same tokens, got {} and {}",
        q.shape(), k.shape());
  return detail::checked_cu_seqlens("attention", o.cu_seqlens, "q", q, o.cu_checked);
}

struct Result {
  Tensor y, lse;
};

// `width`: multiplications of one query with one key. Packed rows are not counted: the lengths of
// their sequences are on the device.
void count_products(const AttentionSpec& s, const Tensor& cu_seqlens, std::int64_t width) {
  if (!detail::profiling() || cu_seqlens.defined()) return;
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < s.queries; ++i) {
    const std::int64_t seen = s.causal ? s.keys - s.queries + i + 1 : s.keys;
    pairs += std::clamp<std::int64_t>(seen, 0, s.window > 0 ? s.window : s.keys);
  }
  detail::count_product(s.batch * s.heads * pairs, width);
}

Result forward(const AttentionSpec& spec, const Heads& in, const Tensor& cu) {
  const NoGradGuard quiet;
  const Tensor& q = in.q;
  Result r{Tensor::empty({q.dim(0), q.dim(1), q.dim(2), in.v.dim(3)}, kernel_dtype(q), q.device()),
           Tensor::empty({q.dim(0), q.dim(2), q.dim(1)},
                         q.dtype() == DType::f64 ? DType::f64 : DType::f32, q.device())};
  const Heads read{readable(q), readable(in.k), readable(in.v)};
  count_products(spec, cu, spec.head_dim + spec.value_dim);
  dispatch<cpu::attention_fwd, cuda::attention_fwd>(
      AttentionIn{.q = read.q, .k = read.k, .v = read.v, .cu_seqlens = cu}, spec,
      AttentionOut{.y = r.y, .lse = r.lse});
  r.y = computed(r.y, q);
  return r;
}

// Fills `grads`, which the caller allocates in a layout that the kernel can write.
void backward(Backward& b, const AttentionSpec& spec, const Heads& in, const Tensor& cu,
              const Tensor& y, const Tensor& lse, const Heads& grads) {
  Tensor scratch;
  if (in.q.device().is_gpu())
    scratch = Tensor::empty({attention_scratch(spec)}, lse.dtype(), in.q.device());
  const Heads read{readable(in.q), readable(in.k), readable(in.v)};
  const Tensor out = contiguous(readable(y)), dy = contiguous(readable(b.dy()));
  count_products(spec, cu, 3 * spec.head_dim + 2 * spec.value_dim);
  dispatch<cpu::attention_bwd, cuda::attention_bwd>(
      AttentionIn{.q = read.q, .k = read.k, .v = read.v, .cu_seqlens = cu}, spec,
      AttentionOut{.y = out, .lse = lse}, dy,
      AttentionGrads{.dq = grads.q, .dk = grads.k, .dv = grads.v, .scratch = scratch});
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  check_qkv(q, k, v);
  check_options(o);
  const Tensor cu = checked_sequences(o, q, k);
  const AttentionSpec spec = make_spec(q, k, v, o);
  if (o.mask.defined()) return detail::masked_attention(q, k, v, spec, o.mask);
  Result r = forward(spec, {q, k, v}, cu);
  if (recording(q, k, v))
    Tape::record(
        "attention", {&q, &k, &v}, {&r.y},
        [spec, sq = save(q, "q"), sk = save(k, "k"), sv = save(v, "v"), sc = save(cu, "cu_seqlens"),
         sy = save(r.y, "y"), sl = save(r.lse, "lse")](Backward& b) {
          b.once_differentiable();
          const Heads in{sq.get(), sk.get(), sv.get()};
          const Heads out{empty_readable(in.q), empty_readable(in.k), empty_readable(in.v)};
          backward(b, spec, in, sc.get(), sy.get(), sl.get(), out);
          b.add(0, computed(out.q, in.q));
          b.add(1, computed(out.k, in.k));
          b.add(2, computed(out.v, in.v));
        });
  return r.y;
}

Tensor attention_packed(const Tensor& packed, std::int64_t heads, std::int64_t kv_heads,
                        const AttentionOptions& o) {
  check_packed(packed, heads, kv_heads);
  if (o.mask.defined()) {
    const TensorList parts = split(packed, {heads, kv_heads, kv_heads}, 2);
    return attention(parts[0], parts[1], parts[2], o);
  }
  const Heads in = heads_of(packed, heads, kv_heads);
  check_qkv(in.q, in.k, in.v);
  check_options(o);
  const Tensor cu = checked_sequences(o, in.q, in.k);
  const AttentionSpec spec = make_spec(in.q, in.k, in.v, o);
  Result r = forward(spec, in, cu);
  if (recording(packed))
    Tape::record("attention", {&packed}, {&r.y},
                 [spec, sp = save(packed, "packed"), sc = save(cu, "cu_seqlens"),
                  sy = save(r.y, "y"), sl = save(r.lse, "lse")](Backward& b) {
                   b.once_differentiable();
                   const Tensor& whole = sp.get();
                   Tensor grad = empty_readable(whole);
                   backward(b, spec, heads_of(whole, spec.heads, spec.kv_heads), sc.get(), sy.get(),
                            sl.get(), heads_of(grad, spec.heads, spec.kv_heads));
                   grad = computed(grad, whole);
                   b.add(0, std::move(grad));
                 });
  return r.y;
}

}  // namespace weft
