#pragma once

namespace weft {

/// What this thread allocates and frees until the end of the scope is counted apart, and
/// memory_stats() and reset_peak() on it are about that alone: for ranks that are threads of one
/// process, by their number (from 64 on they share). A block counts where it is allocated and where
/// it is freed: one that another thread frees stays in its domain's live bytes, and is missing in
/// the other's. Outside of any domain memory_stats() is about all of them together, with their
/// peaks added up; what is cached and what comes from the system all of them share.
class MemoryDomain {
 public:
  explicit MemoryDomain(int number);
  ~MemoryDomain();
  MemoryDomain(const MemoryDomain&) = delete;

 private:
  int previous_;
};

}  // namespace weft
