#include "weft/core/kernels/scaled_activation.h"

#include <algorithm>

#include "weft/core/cpu/fp8_values.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kPiece = 256;  // columns at a time, in buffers on the stack
constexpr std::int64_t kWork = 28;    // one exp and one division per element

/// Input and output of one piece of a row. gelu has no up.
template <class T>
struct Piece {
  const T *gate, *up, *dy;
  T *y, *dgate, *dup;
};

RowKernels<float>::Map* gelu_of(const RowKernels<float>& f, ScaledKind kind) {
  return kind == ScaledKind::gelu_tanh ? f.gelu_tanh : f.gelu_erf;
}

void forward(const Piece<float>& p, float scale, ScaledKind kind, std::int64_t n) {
  const SimdTable& table = simd();
  if (kind == ScaledKind::swiglu)
    table.f32.swiglu(p.gate, p.up, p.y, n);
  else
    gelu_of(table.f32, kind)(p.gate, p.y, n);
  table.attention.scale(p.y, n, scale);
}

/// Returns the contribution of this piece to dscale.
float backward(const Piece<float>& p, float scale, ScaledKind kind, std::int64_t n) {
  const SimdTable& table = simd();
  float dscale = 0;
  if (kind == ScaledKind::swiglu) {
    table.f32.swiglu_bwd(p.gate, p.up, p.dy, p.dgate, p.dup, n);
    dscale = table.f32.dot(p.dup, p.up, n);  // dup is still dy * silu(gate)
    table.attention.scale(p.dup, n, scale);
  } else {
    float act[kPiece];
    const bool tanh = kind == ScaledKind::gelu_tanh;
    (tanh ? table.f32.gelu_tanh_bwd_and_y : table.f32.gelu_erf_bwd_and_y)(p.gate, p.dy, p.dgate,
                                                                          act, n);
    dscale = table.f32.dot(p.dy, act, n);
  }
  table.attention.scale(p.dgate, n, scale);
  return dscale;
}

double activation(double x, ScaledKind kind) {
  if (kind == ScaledKind::swiglu) return apply<UnaryOp::silu>(x);
  return kind == ScaledKind::gelu_tanh ? apply<UnaryOp::gelu_tanh>(x) : apply<UnaryOp::gelu_erf>(x);
}

double derivative(double x, double dy, ScaledKind kind) {
  if (kind == ScaledKind::swiglu) return apply<BinaryOp::silu_bwd>(x, dy);
  return kind == ScaledKind::gelu_tanh ? apply<BinaryOp::gelu_tanh_bwd>(x, dy)
                                       : apply<BinaryOp::gelu_erf_bwd>(x, dy);
}

void forward(const Piece<double>& p, double scale, ScaledKind kind, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    p.y[i] = activation(p.gate[i], kind) * (p.up ? p.up[i] : 1) * scale;
}

double backward(const Piece<double>& p, double scale, ScaledKind kind, std::int64_t n) {
  double dscale = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double act = activation(p.gate[i], kind), up = p.up ? p.up[i] : 1;
    dscale += p.dy[i] * act * up;
    p.dgate[i] = derivative(p.gate[i], p.dy[i] * up * scale, kind);
    if (p.up) p.dup[i] = p.dy[i] * act * scale;
  }
  return dscale;
}

/// f32 buffers of a piece whose values are stored in 16 bits.
template <class T>
class Widened {
 public:
  explicit Widened(const Piece<T>& p, std::int64_t n) : p_(p), n_(n) {
    const auto widen = simd().of<T>().widen;
    widen(p.gate, gate_, n);
    if (p.up) widen(p.up, up_, n);
    if (p.dy) widen(p.dy, dy_, n);
  }
  Piece<float> piece() {
    return {gate_, p_.up ? up_ : nullptr, p_.dy ? dy_ : nullptr, out_, out_, dup_};
  }
  void store() const {
    const auto narrow = simd().of<T>().narrow;
    narrow(out_, p_.y ? p_.y : p_.dgate, n_);
    if (p_.dup) narrow(dup_, p_.dup, n_);
  }

 private:
  const Piece<T>& p_;
  std::int64_t n_;
  float gate_[kPiece], up_[kPiece], dy_[kPiece], out_[kPiece], dup_[kPiece];
};

template <class T>
void forward(const Piece<T>& p, float scale, ScaledKind kind, std::int64_t n) {
  Widened wide(p, n);
  forward(wide.piece(), scale, kind, n);
  wide.store();
}

template <class T>
float backward(const Piece<T>& p, float scale, ScaledKind kind, std::int64_t n) {
  Widened wide(p, n);
  const float dscale = backward(wide.piece(), scale, kind, n);
  wide.store();
  return dscale;
}

}  // namespace

void scaled_activation_fwd(const Tensor& h, const Tensor& scale, ScaledKind kind, const Tensor& y,
                           const RoundedRows& to) {
  const std::int64_t width = y.dim(1), stride = h.dim(1);
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T* in = h.data<T>();
    const Compute<T>* p = data_or_null<Compute<T>>(scale);
    T* out = y.data<T>();
    const RowRounder rounded(to, width);
    parallel_for(y.dim(0), kWork * width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t c = 0; c < width; c += kPiece) {
          const T* gate = in + r * stride + c;
          forward(Piece<T>{gate, kind == ScaledKind::swiglu ? gate + width : nullptr, nullptr,
                           out + r * width + c, nullptr, nullptr},
                  p ? p[r] : 1, kind, std::min(kPiece, width - c));
        }
        rounded(out + r * width, r);
      }
    });
  });
}

void scaled_activation_bwd(const Tensor& h, const Tensor& scale, const Tensor& dy, ScaledKind kind,
                           const Tensor& dh, const Tensor& dscale) {
  const std::int64_t width = dy.dim(1), stride = h.dim(1);
  dispatch_floating(dy.dtype(), [&]<class T>() {
    const T *in = h.data<T>(), *pdy = dy.data<T>();
    const Compute<T>* p = scale.data<Compute<T>>();
    T* out = dh.data<T>();
    Compute<T>* dp = dscale.data<Compute<T>>();
    parallel_for(dy.dim(0), 2 * kWork * width, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        Compute<T> sum = 0;
        for (std::int64_t c = 0; c < width; c += kPiece) {
          const T* gate = in + r * stride + c;
          T* dgate = out + r * stride + c;
          const bool two = kind == ScaledKind::swiglu;
          sum += backward(Piece<T>{gate, two ? gate + width : nullptr, pdy + r * width + c, nullptr,
                                   dgate, two ? dgate + width : nullptr},
                          p[r], kind, std::min(kPiece, width - c));
        }
        dp[r] = sum;
      }
    });
  });
}

}  // namespace weft::cpu
