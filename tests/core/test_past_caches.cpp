// Packed products that write their result past the caches.
#include <doctest/doctest.h>

#include <algorithm>

#include "weft/core/cpu/packed_product.h"
#include "weft/tests/packed_support.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::past_caches_test {

using cpu::Product;
using packed_product_test::AlignedBytes, packed_product_test::normal, packed_product_test::same;

TEST_CASE_TEMPLATE("past caches: the bits are those of plain stores", T, float, double) {
  // A panel that c does not fill, a last tile of fewer rows, and gaps between rows.
  const std::int64_t m = 523, n = 536, k = 37, ldc = n + 40, whole = m * ldc;
  REQUIRE(ldc % 16 == 0);
  const std::vector<T> a = normal<T>(k * m, 1), b = normal<T>(k * n, 2),
                       before = normal<T>(whole, 3);
  // c begins `shift` elements after a line.
  const auto computed = [&](std::int64_t shift, std::int64_t inner, bool accumulate, bool past) {
    AlignedBytes memory((before.size() + 1) * sizeof(T));
    T* const c = static_cast<T*>(memory.data()) + shift;
    std::copy(before.begin(), before.end(), c);
    Product<T> p{a.data(), b.data(), c, m, n, k, m, n, ldc, true, false, accumulate};
    const PanelKernels<T>& kernels = simd().panels<T>();
    const cpu::PackedBlocks block{3 * kernels.rows, 2 * kernels.columns, inner, true};
    CHECK(cpu::goes_past_caches(p, block) == past);
    p.read_soon = true;
    CHECK(!cpu::goes_past_caches(p, block));
    p.read_soon = false;
    AlignedBytes buffer(cpu::packed_bytes<T>(block));
    cpu::packed_in_blocks<T>(
        p, nullptr, [](auto...) {}, block, buffer.data());
    return std::vector<T>(c, c + whole);
  };
  const test::RestoreKernels restore;
  for (const SimdTable* table : test::simd_tables()) {
    CAPTURE(table->name);
    set_simd(table->name);
    const std::vector<T> want = computed(1, 40, false, false);
    CHECK(same(computed(0, 40, false, true), want));
    CHECK(same(computed(0, 36, false, false), want));  // two passes
    CHECK(same(computed(0, 40, true, false), computed(1, 40, true, false)));
    bool gaps = true;
    for (std::int64_t i = 0; i < whole; ++i) gaps &= i % ldc < n || want[i] == before[i];
    CHECK(gaps);
  }
}

}  // namespace weft::past_caches_test
