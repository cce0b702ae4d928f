#pragma once
// Groups of rows in a kernel, and what the two files of FP8 quantization share.
#include <algorithm>

#include "weft/core/kernels/quantize.h"
#include "weft/cuda/fp8.h"

namespace weft::cuda::fp8_groups {

inline constexpr int kThreads = 256;

/// Groups of rows for the blocks of one launch, by value: the host's list may be gone when it runs.
struct Groups {
  static constexpr int kMost = 64;
  std::int64_t first_row[kMost + 1];
  std::int32_t first, count;  // number of the first group in here, and how many there are
};

/// Calls f(groups, rows of the largest) for so many groups at a time.
template <class F>
void each_part(const RowGroups& all, F f) {
  std::int64_t row = 0;
  for (std::int64_t e = 0; e < all.count; e += Groups::kMost) {
    Groups g;
    g.first = static_cast<std::int32_t>(e);
    g.count = static_cast<std::int32_t>(std::min<std::int64_t>(all.count - e, Groups::kMost));
    g.first_row[0] = row;
    std::int64_t most = 0;
    for (int i = 0; i < g.count; ++i) {
      most = std::max(most, all.of(e + i));
      g.first_row[i + 1] = row += all.of(e + i);
    }
    if (most > 0) f(g, most);
  }
}

template <class F>
void dispatch_input(const Tensor& x, F f) {
  x.dtype() == DType::f32 ? f.template operator()<float>() : f.template operator()<bf16>();
}

template <class F>
void dispatch_code(DType t, F f) {
  t == DType::e5m2 ? f.template operator()<e5m2>() : f.template operator()<e4m3>();
}

inline std::uint8_t* codes_of(const Tensor& t) {
  return t.defined() ? static_cast<std::uint8_t*>(t.raw()) : nullptr;
}

/// Whether packs of n elements of rows of `cols` elements are aligned and do not cross rows.
template <class T>
bool four_at_once(const T* p, std::int64_t cols, std::int64_t n) {
  return cols % n == 0 &&
         reinterpret_cast<std::uintptr_t>(p) % (static_cast<std::size_t>(n) * sizeof(T)) == 0;
}

}  // namespace weft::cuda::fp8_groups
