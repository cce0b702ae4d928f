#pragma once
// Storage for recorded ops, reused from tape to tape.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft {

/// Bump allocator for nodes and their lambdas. Chunks are kept from tape to tape.
class TapeArena {
 public:
  void* take(std::size_t bytes) {
    bytes = (bytes + 15) & ~std::size_t{15};
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
      ++chunk_;
      used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
      const std::size_t size = std::max(bytes, kChunk);
      chunks_.push_back(
          {std::make_unique<std::max_align_t[]>(size / sizeof(std::max_align_t) + 1), size});
      used_ = 0;
    }
    char* p = reinterpret_cast<char*>(chunks_[chunk_].memory.get()) + used_;
    used_ += bytes;
    return p;
  }
  void reset() { chunk_ = used_ = 0; }

 private:
  static constexpr std::size_t kChunk = 1 << 16;
  struct Chunk {
    std::unique_ptr<std::max_align_t[]> memory;
    std::size_t size;
  };
  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0, used_ = 0;
};

/// Numbers nonzero keys in order of insertion: 0, 1, 2, ... Open addressing; clear() keeps memory.
class NumberTable {
 public:
  /// -1 for a key that was not added.
  std::int32_t find(std::uint64_t key) const {
    return used_ == 0 ? -1 : entries_[place(key)].number;
  }
  /// The number of a key; adds the key if it is new.
  std::int32_t add(std::uint64_t key) {
    if (2 * (static_cast<std::size_t>(used_) + 1) > entries_.size()) grow();
    Entry& e = entries_[place(key)];
    if (e.key == 0) e = {key, used_++};
    return e.number;
  }
  void clear() {
    if (used_ != 0) std::fill(entries_.begin(), entries_.end(), Entry{});
    used_ = 0;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::int32_t number = -1;
  };
  std::size_t place(std::uint64_t key) const {
    std::size_t i = key * 0x9e3779b97f4a7c15u >> 32 & (entries_.size() - 1);
    while (entries_[i].key != 0 && entries_[i].key != key) i = (i + 1) & (entries_.size() - 1);
    return i;
  }
  void grow() {
    std::vector<Entry> old(std::max<std::size_t>(16, 2 * entries_.size()));
    entries_.swap(old);
    for (const Entry& e : old)
      if (e.key != 0) entries_[place(e.key)] = e;
  }
  std::vector<Entry> entries_;
  std::int32_t used_ = 0;
};

}  // namespace weft
