#pragma once

namespace weft {

/// Counts the allocations and frees of this thread separately until the end of the scope;
/// memory_stats() and reset_peak() on this thread then refer to this domain only. Ranks that run as
/// threads of one process use their number as the domain (numbers from 64 on share one). Allocation
/// and free each count in the domain of the thread that performs them: a block freed by another
/// thread stays in the live bytes of its own domain and is missing from the other's. Outside any
/// domain, memory_stats() sums all domains and adds up their peaks. All domains share the cache and
/// the system allocations.
class MemoryDomain {
 public:
  explicit MemoryDomain(int number);
  ~MemoryDomain();
  MemoryDomain(const MemoryDomain&) = delete;

 private:
  int previous_;
};

}  // namespace weft
