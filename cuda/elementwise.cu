// Unary kernels, clamp and the in-place updates.
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_ops.h"
#include "weft/cuda/gelu.h"
#include "weft/cuda/strided.h"

namespace weft::cuda {
namespace {

template <UnaryOp op, class T>
struct Unary {
  __device__ T operator()(T x) const {
    if constexpr (op == UnaryOp::gelu_tanh)
      return narrow<T>(gelu_tanh(widen(x)));
    else
      return narrow<T>(apply<op>(widen(x)));
  }
};

template <class T>
struct AnyUnary {
  UnaryOp op;
  __device__ T operator()(T x) const {
    T y{};
    with_running_op(op, [&]<UnaryOp known>() {
      if constexpr (!std::is_integral_v<T> || takes_integers(known)) y = Unary<known, T>{}(x);
    });
    return y;
  }
};

template <class T>
struct Clamp {
  Compute<T> low, high;
  __device__ T operator()(T x) const {  // keeps NaN
    const auto v = widen(x);
    return narrow<T>(v < low ? low : v > high ? high : v);
  }
};

template <class T>
struct ClampBwd {
  Compute<T> low, high;
  __device__ T operator()(T x, T dy) const {
    const auto v = widen(x);
    return v >= low && v <= high ? dy : T(Compute<T>(0));
  }
};

template <class T>
struct AddScaled {
  Compute<T> factor;
  template <class X>
  __device__ T operator()(X x, T old) const {
    using C = Compute<T>;
    return narrow<T>(
        apply<BinaryOp::add, C>(widen(old), apply<BinaryOp::mul, C>(factor, C(widen(x)))));
  }
};

template <class T>
struct Scale {
  Compute<T> factor;
  __device__ T operator()(T old) const {
    return narrow<T>(apply<BinaryOp::mul, Compute<T>>(widen(old), factor));
  }
};

template <class T>
struct ScaleBy {
  using C = Compute<T>;
  const void* factor;
  DType dtype;
  __device__ C product(T x) const {
    const double by =
        dtype == DType::f32    ? static_cast<double>(*static_cast<const float*>(factor))
        : dtype == DType::bf16 ? static_cast<double>(*static_cast<const bf16*>(factor))
        : dtype == DType::f16  ? static_cast<double>(widen(*static_cast<const f16*>(factor)))
                               : *static_cast<const double*>(factor);
    return apply<BinaryOp::mul, C>(widen(x), number<BinaryOp::mul, C>(by));
  }
  __device__ T operator()(T x) const { return narrow<T>(product(x)); }
  __device__ T operator()(T x, T old) const {
    return narrow<T>(apply<BinaryOp::add, C>(widen(old), product(x)));
  }
};

}  // namespace

void unary(const Tensor& x, UnaryOp op, const Tensor& out) {
  bool done = false;
  with_op(every<UnaryOp>, op, [&]<UnaryOp known>() {
    done = try_dense(x.dtype(), [&]<class T>() {
      if constexpr (shares_loop(known))
        return map_dense<T, T>(out, AnyUnary<T>{op}, x);
      else
        return map_dense<T, T>(out, Unary<known, T>{}, x);
    });
  });
  if (done) return;
  const auto any = [&]<class T>() { map_strided<T, T>(out, AnyUnary<T>{op}, x); };
  takes_integers(op) ? dispatch_numeric(x.dtype(), any) : dispatch_floating(x.dtype(), any);
}

void clamp(const Tensor& x, double low, double high, const Tensor& out) {
  dispatch_numeric(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    map_numbers<T>(out, Clamp<T>{nearest<C>(low), nearest<C>(high)}, x);
  });
}

void clamp_bwd(const Tensor& x, const Tensor& dy, double low, double high, const Tensor& out) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    map_numbers<T>(out, ClampBwd<T>{static_cast<C>(low), static_cast<C>(high)}, x, dy);
  });
}

void add_scaled(const Tensor& x, double alpha, const Tensor& out) {
  if (x.dtype() == DType::bf16 && out.dtype() == DType::f32)
    return map<float, bf16, float>(out, AddScaled<float>{static_cast<float>(alpha)}, x, out);
  if (x.dtype() == DType::f16 && out.dtype() == DType::f32)
    return map<float, f16, float>(out, AddScaled<float>{static_cast<float>(alpha)}, x, out);
  dispatch_numeric(
      out.dtype(),
      [&]<class T>() {
        map_numbers<T>(out, AddScaled<T>{number<BinaryOp::mul, Compute<T>>(alpha)}, x, out);
      },
      "add_");
}

void scale(const Tensor& out, double factor) {
  dispatch_numeric(
      out.dtype(),
      [&]<class T>() {
        map_numbers<T>(out, Scale<T>{number<BinaryOp::mul, Compute<T>>(factor)}, out);
      },
      "mul_");
}

void scale_by(const Tensor& x, const Tensor& factor, bool adds, const Tensor& out) {
  dispatch_floating(out.dtype(), [&]<class T>() {
    const ScaleBy<T> by{factor.raw(), factor.dtype()};
    adds ? map_numbers<T>(out, by, x, out) : map_numbers<T>(out, by, x);
  });
}

}  // namespace weft::cuda
