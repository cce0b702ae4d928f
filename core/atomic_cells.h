#pragma once
#include <cstdint>

namespace weft {

// These types replace std::atomic, whose header pulls strings, locks and clocks into every file
// that includes the tensor.

/// A reference count; starts at one.
class RefCount {
 public:
  RefCount() = default;
  RefCount(const RefCount&) = delete;
  void retain() { __atomic_fetch_add(&count_, 1, __ATOMIC_RELAXED); }
  /// True for the last owner, which then sees every write that the other owners made before they
  /// released.
  bool release() { return load() == 1 || __atomic_fetch_sub(&count_, 1, __ATOMIC_ACQ_REL) == 1; }
  std::int32_t load() const { return __atomic_load_n(&count_, __ATOMIC_ACQUIRE); }
  /// Resets the count of recycled memory, which no other thread may reference.
  void restart() { __atomic_store_n(&count_, 1, __ATOMIC_RELAXED); }

 private:
  std::int32_t count_ = 1;
};

/// Exclusive ownership by one owner at a time; free at first.
class Claim {
 public:
  Claim() = default;
  Claim(const Claim&) = delete;
  /// Takes the claim if it is free and returns true; otherwise stores the owner in `other`.
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
