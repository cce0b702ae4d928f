#include "weft/core/cpu/simd.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "weft/core/error.h"

namespace weft {
namespace {

constexpr const SimdTable* kTables[] = {&detail::simd_avx512, &detail::simd_avx2,
                                        &detail::simd_scalar};

// AVX-512 means the extensions of every CPU since Skylake-SP: F, BW, DQ, VL.
bool processor_runs(const SimdTable& table) {
  if (&table == &detail::simd_scalar) return true;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (&table == &detail::simd_avx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// The first of kTables that this process may use: WEFT_ISA selects a lesser instruction set.
const SimdTable* const* first_allowed() {
  const char* const wanted = std::getenv("WEFT_ISA");
  if (wanted == nullptr || *wanted == 0) return std::begin(kTables);
  const auto found = std::find_if(std::begin(kTables), std::end(kTables), [&](const SimdTable* t) {
    return std::string_view(wanted) == t->name;
  });
  check(found != std::end(kTables), "WEFT_ISA: must be scalar, avx2 or avx512, got {}", wanted);
  return found;
}

bool runs(const SimdTable& table) {
  static const SimdTable* const* const first = first_allowed();
  return std::find(first, std::end(kTables), &table) != std::end(kTables) && processor_runs(table);
}

const SimdTable* widest() {
  for (const SimdTable* table : kTables)
    if (runs(*table)) return table;
  return &detail::simd_scalar;
}

std::atomic<const SimdTable*> chosen{nullptr};

}  // namespace

const SimdTable& simd() {
  const SimdTable* table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) [[unlikely]] {
    table = widest();
    chosen.store(table, std::memory_order_relaxed);
  }
  return *table;
}

const SimdTable* find_simd(const char* name) {
  for (const SimdTable* table : kTables)
    if (std::string_view(table->name) == name) return runs(*table) ? table : nullptr;
  return nullptr;
}

void set_simd(const char* name) {
  const SimdTable* table = find_simd(name);
  check(table != nullptr, "set_simd: must be an instruction set of this CPU, got {}", name);
  chosen.store(table, std::memory_order_relaxed);
}

}  // namespace weft
