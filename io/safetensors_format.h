#pragma once
// What readers and writers of safetensors files share.
// Source: https://github.com/huggingface/safetensors
#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "weft/core/dtype.h"
#include "weft/io/narrow.h"

namespace weft::io {

static_assert(std::endian::native == std::endian::little, "tensor files hold little-endian data");

inline constexpr std::int64_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeader = 100'000'000;
inline constexpr const char* kMetadataKey = "__metadata__";

/// A dtype of the format.
struct FileDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;  ///< nullopt: Weft validates such a tensor but cannot read it
  Widen widen = nullptr;       ///< if `dtype` is wider
};

inline constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, DType::boolean},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::u8},
    {"I8", 8, DType::i32, widen<std::int8_t, std::int32_t>},
    {"F8_E5M2", 8, DType::e5m2},
    {"F8_E4M3", 8, DType::e4m3},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, DType::i32, widen<std::int16_t, std::int32_t>},
    {"U16", 16, DType::i32, widen<std::uint16_t, std::int32_t>},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"I32", 32, DType::i32},
    {"U32", 32, DType::i64, widen<std::uint32_t, std::int64_t>},
    {"F32", 32, DType::f32},
    {"C64", 64, {}},
    {"F64", 64, DType::f64},
    {"I64", 64, DType::i64},
    {"U64", 64, {}}};

/// How Weft writes the dtype.
inline const FileDType& file_dtype(DType t) {
  return *std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                       [t](const FileDType& f) { return f.dtype == t && !f.widen; });
}

}  // namespace weft::io
