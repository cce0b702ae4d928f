#include <bit>

#include "weft/core/kernels/convert.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/elementwise_ops.h"
#include "weft/cuda/math.h"
#include "weft/cuda/strided.h"

namespace weft::cuda {
namespace {

struct Same {
  template <class T>
  __device__ T operator()(T v) const {
    return v;
  }
};

/// With the bits of convert() on the CPU: a NaN keeps its sign and the upper part of its payload.
struct ToHalf {
  template <class T>
  __device__ T to(float v) const {
    T r = narrow<T>(v);
    if (v != v) {
      const auto bits = std::bit_cast<std::uint32_t>(v);
      r.bits = static_cast<std::uint16_t>(
          std::is_same_v<T, bf16> ? bits >> 16 | 0x40u
                                  : (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu));
    }
    return r;
  }
};
struct ToBf16 : ToHalf {
  __device__ bf16 operator()(float v) const { return to<bf16>(v); }
};
struct ToF16 : ToHalf {
  __device__ f16 operator()(float v) const { return to<f16>(v); }
};
struct Widen {
  template <class T>
  __device__ float operator()(T v) const {
    return static_cast<float>(v);
  }
};

template <class To>
struct Constant {
  To value;
  __device__ To operator()() const { return value; }
};

// Conversions that are rare in models share kernels, one for each type that represents several
// others exactly: float, double and i64. The actual types are kernel arguments.
template <class Wide>
__device__ inline Wide load_as(const void* from, std::int64_t i, DType dtype) {
  const auto at = [&]<class T>() { return static_cast<Wide>(static_cast<const T*>(from)[i]); };
  if constexpr (std::is_same_v<Wide, double>) {
    return at.template operator()<double>();
  } else if constexpr (std::is_same_v<Wide, float>) {
    if (dtype == DType::f32) return at.template operator()<float>();
    if (dtype == DType::bf16) return at.template operator()<bf16>();
    if (dtype == DType::f16) return at.template operator()<f16>();
    if (dtype == DType::e4m3) return at.template operator()<e4m3>();
    return at.template operator()<e5m2>();
  } else {
    if (dtype == DType::i32) return at.template operator()<std::int32_t>();
    if (dtype == DType::i64) return at.template operator()<std::int64_t>();
    return at.template operator()<std::uint8_t>();  // a bool is 0 or 1
  }
}

template <class Wide>
__device__ inline void store_as(void* to, std::int64_t i, DType dtype, Wide v) {
  const auto put = [&]<class T>() { static_cast<T*>(to)[i] = convert<T>(v); };
  switch (dtype) {
    case DType::f32:
      return put.template operator()<float>();
    case DType::f64:
      return put.template operator()<double>();
    case DType::bf16:
      return put.template operator()<bf16>();
    case DType::f16:
      return put.template operator()<f16>();
    case DType::e4m3:
      return put.template operator()<e4m3>();
    case DType::e5m2:
      return put.template operator()<e5m2>();
    case DType::i32:
      return put.template operator()<std::int32_t>();
    case DType::i64:
      return put.template operator()<std::int64_t>();
    case DType::u8:
      return put.template operator()<std::uint8_t>();
    case DType::boolean:
      return put.template operator()<bool>();
  }
}

template <class Wide>
__global__ void __launch_bounds__(kMapThreads)
    convert_strided_kernel(Strided<2> s, void* to, DType to_dtype, const void* from,
                           DType from_dtype) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= s.total) return;
  std::int64_t at[2];
  s.locate(i, at);
  store_as<Wide>(to, at[0], to_dtype, load_as<Wide>(from, at[1], from_dtype));
}

template <std::size_t bytes>
using Word = std::conditional_t<
    bytes == 1, std::uint8_t,
    std::conditional_t<bytes == 2, std::uint16_t,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;

}  // namespace

void copy(const Tensor& source, const Tensor& out) {
  const DType from = source.dtype(), to = out.dtype();
  if (from == to)  // only the element size matters
    return with_word(size_of(to), [&]<class W>() { map<W, W>(out, Same{}, source); });
  if (from == DType::f32 && to == DType::bf16) return map<bf16, float>(out, ToBf16{}, source);
  if (from == DType::bf16 && to == DType::f32) return map<float, bf16>(out, Widen{}, source);
  if (from == DType::f32 && to == DType::f16) return map<f16, float>(out, ToF16{}, source);
  if (from == DType::f16 && to == DType::f32) return map<float, f16>(out, Widen{}, source);
  const auto kernel = from == DType::f64  ? convert_strided_kernel<double>
                      : is_floating(from) ? convert_strided_kernel<float>
                                          : convert_strided_kernel<std::int64_t>;
  launch(kernel, grid_of(blocks_for(out.numel(), kMapThreads)), kMapThreads, 0,
         strided<2>({&out, &source}), out.raw(), to, source.raw(), from);
}

void fill(const Tensor& out, double value) {
  dispatch_all(out.dtype(), [&]<class T>() {
    using W = Word<sizeof(T)>;
    map<W>(out, Constant<W>{std::bit_cast<W>(convert<T>(value))});
  });
}

}  // namespace weft::cuda
