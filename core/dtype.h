#pragma once
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <type_traits>

#include "weft/core/low_precision.h"

namespace weft {

/// Floating-point ops compute in f32, f64, bf16 and f16. e4m3, e5m2: casts, and operands of FP8
/// products. i32, i64, u8, boolean: indexing, comparison, integer reductions, copies.
enum class DType : std::uint8_t { f32, f64, bf16, f16, e4m3, e5m2, i32, i64, u8, boolean };
inline constexpr int kDTypes = 10;

inline constexpr std::size_t size_of(DType t) {
  constexpr std::uint8_t kSizes[kDTypes] = {4, 8, 2, 2, 1, 1, 4, 8, 1, 1};
  return kSizes[static_cast<int>(t)];
}

inline constexpr const char* name(DType t) {
  constexpr const char* kNames[kDTypes] = {"f32",  "f64", "bf16", "f16", "e4m3",
                                           "e5m2", "i32", "i64",  "u8",  "bool"};
  return kNames[static_cast<int>(t)];
}

std::ostream& operator<<(std::ostream& out, DType t);

/// True for every floating-point type, including the 8-bit ones.
inline constexpr bool is_floating(DType t) { return t <= DType::e5m2; }
/// True for the types in which floating-point ops compute.
inline constexpr bool is_compute(DType t) { return t <= DType::f16; }
/// True for the 16-bit types in which ops compute: arithmetic is f32 and results are rounded to
/// them. Gradients of weights are summed in f32, and optimizers update f32 copies.
inline constexpr bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }
template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;
inline constexpr bool is_integral(DType t) { return t >= DType::i32 && t <= DType::u8; }

/// The type of arithmetic on T: f32 for types of 16 and 8 bits, else T.
template <class T>
using Compute = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bf16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, f16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, e4m3>)
    return DType::e4m3;
  else if constexpr (std::is_same_v<T, e5m2>)
    return DType::e5m2;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, std::uint8_t>)
    return DType::u8;
  else {
    static_assert(std::is_same_v<T, bool>, "Weft has no dtype for this C++ type");
    return DType::boolean;
  }
}

// The dtypes of the lists below, for error messages.
inline constexpr const char* kFloatingNames = "f32, f64, bf16, f16";
inline constexpr const char* kNumericNames = "f32, f64, bf16, f16, i32, i64, u8";
inline constexpr const char* kComparableNames = "f32, f64, bf16, f16, i32, i64, u8, bool";

/// Throws Error listing the dtypes that `op` takes: kFloatingNames, kNumericNames or others.
[[noreturn]] void throw_bad_dtype(const char* op, DType got, const char* allowed);

// Kernels get their types from these lists, so an entry adds a dtype to all of them. is_compute(),
// is_half() and the row kernels (core/cpu/simd.h) follow them.

/// Calls f.operator()<T>() with the C++ type of a dtype in which floating-point ops compute.
template <class F>
decltype(auto) dispatch_floating(DType t, F&& f, const char* op = "op") {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      throw_bad_dtype(op, t, kFloatingNames);
  }
}

/// Calls f.operator()<T>() for those and i32, i64, u8.
template <class F>
decltype(auto) dispatch_numeric(DType t, F&& f, const char* op = "op") {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    default:
      throw_bad_dtype(op, t, kNumericNames);
  }
}

/// Calls f.operator()<T>() for i32 and i64, the index types.
template <class F>
decltype(auto) dispatch_index(DType t, F&& f, const char* op = "op") {
  switch (t) {
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    default:
      throw_bad_dtype(op, t, "i32, i64");
  }
}

/// Calls f.operator()<T>() for every dtype: copies, casts, printing, files.
template <class F>
decltype(auto) dispatch_all(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::e4m3:
      return f.template operator()<e4m3>();
    case DType::e5m2:
      return f.template operator()<e5m2>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::boolean:
      break;
  }
  return f.template operator()<bool>();
}

}  // namespace weft
