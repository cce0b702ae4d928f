#pragma once
#include <cstdint>

namespace weft {

// What std::atomic would do, whose header brings strings, locks and clocks into every file that
// knows tensors.

/// How many handles share something; it starts with one.
class RefCount {
 public:
  RefCount() = default;
  RefCount(const RefCount&) = delete;
  void retain() { __atomic_fetch_add(&count_, 1, __ATOMIC_RELAXED); }
  /// True for the last owner, who sees what all others did before they let go.
  bool release() { return load() == 1 || __atomic_fetch_sub(&count_, 1, __ATOMIC_ACQ_REL) == 1; }
  std::int32_t load() const { return __atomic_load_n(&count_, __ATOMIC_ACQUIRE); }
  /// For memory that is used again: nobody else knows it.
  void restart() { __atomic_store_n(&count_, 1, __ATOMIC_RELAXED); }

 private:
  std::int32_t count_ = 1;
};

/// What one owner at a time may hold; free at first.
class Claim {
 public:
  Claim() = default;
  Claim(const Claim&) = delete;
  /// True when it was free; else `other` is the owner.
  bool take(const void* self, const void*& other) {
    other = nullptr;
    return __atomic_compare_exchange_n(&owner_, &other, self, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  void give_back() { __atomic_store_n(&owner_, nullptr, __ATOMIC_RELEASE); }

 private:
  const void* owner_ = nullptr;
};

}  // namespace weft
