#pragma once
// Operands and memory for tests of the packed product.
#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "weft/tests/support.h"

namespace weft::packed_product_test {

template <class T>
std::vector<T> normal(std::int64_t n, std::uint64_t seed) {
  const Tensor x = test::random({n}, seed).to(std::is_same_v<T, float> ? DType::f32 : DType::f64);
  return std::vector<T>(x.data<T>(), x.data<T>() + n);
}

// Memory for packed operands, at a multiple of 64.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t n) : bytes_(n + 64) {}
  void* data() {
    void* p = bytes_.data();
    std::size_t space = bytes_.size();
    return std::align(64, space - 64, p, space);
  }

 private:
  std::vector<std::byte> bytes_;
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace weft::packed_product_test
