#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/device.h"

namespace weft {

struct Storage;

/// Live bytes by category.
struct LiveBytes {
  std::int64_t by_category[kCategories] = {};

  std::int64_t total() const;
  bool operator==(const LiveBytes&) const = default;
};

/// Records the blocks that this thread allocates and frees on some devices, to tell what is live
/// when. Blocks from before are not part of it. Without a trace an allocation reads the flag that
/// it reads anyway for the debug mode, and a free reads that flag too. Use and destroy it on one
/// thread, which has at most one.
///
///   MemoryTrace trace({kMeta});
///   const std::int64_t begin = trace.events();
///   train_step(rows);
///   const MemoryTrace::Peak peak = trace.peak(begin);
class MemoryTrace {
 public:
  /// A block, with the size class of its request.
  struct Block {
    std::int64_t bytes;
    Category category;
    /// The ProfileScope of the thread that allocated it: see scopes_of(). 0 without a Profiler.
    std::int32_t scope;
  };

  /// Throws Error if this thread has a trace already.
  explicit MemoryTrace(std::vector<Device> devices);
  ~MemoryTrace();
  MemoryTrace(const MemoryTrace&) = delete;

  /// The number of allocations and frees so far.
  std::int64_t events() const;
  /// All blocks so far, in the order of their allocation.
  const std::vector<Block>& blocks() const;
  /// The live bytes after each event from event number `begin` on, and before the first of them.
  std::vector<LiveBytes> course(std::int64_t begin = 0) const;
  struct Peak {
    std::int64_t event = 0;  ///< it is reached by the event before this number
    LiveBytes live;
    std::vector<Block> blocks;  ///< that are live then
  };
  /// The first moment from event number `begin` on with the most live bytes.
  Peak peak(std::int64_t begin = 0) const;
  /// The names of the scopes in which a block was allocated, outermost first.
  static std::vector<std::string> scopes_of(const Block& block);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Until the end of the scope, this thread's trace ignores new blocks: numbers on the host that a
/// step on the meta device makes up, and a real one reads where they are.
class UntracedScope {
 public:
  UntracedScope();
  ~UntracedScope();
  UntracedScope(const UntracedScope&) = delete;

 private:
  bool previous_;
};

namespace detail {

/// 0: blocks need no attention. 1: debug mode; 2 for each thread with a MemoryTrace.
extern std::atomic<int> block_watchers;
inline constexpr int kDebugBlocks = 1, kTracedBlocks = 2;
inline bool tracing_blocks() {
  return block_watchers.load(std::memory_order_relaxed) >= kTracedBlocks;
}
void trace_allocated(const Storage& s);
void trace_freed(const Storage& s);

}  // namespace detail
}  // namespace weft
