#pragma once
#include <cstdint>
#include <vector>

namespace weft::tokenizer {

/// The merges of a byte-pair encoding: two neighbours become one token, lowest rank first.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNone;
    std::int32_t token = 0;
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  explicit MergeTable(std::size_t expected = 0);
  /// A later merge of the same two tokens replaces the earlier one.
  void add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t token);
  /// rank is kNone for two tokens that do not merge.
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = place(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kEmpty) return {};
    }
  }
  std::size_t size() const { return size_; }
  struct Entry {
    std::int32_t left, right;
    Merge merge;
  };
  /// All merges, in no order.
  std::vector<Entry> entries() const;

  /// Merges `tokens` in place until no two neighbours merge; of equal ranks the leftmost first.
  /// Takes n log n steps for n tokens.
  void apply(std::vector<std::int32_t>& tokens) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E37'79B9'7F4A'7C15U) >> 32) & mask_;
  }
  void apply_short(std::vector<std::int32_t>& tokens) const;
  void apply_long(std::vector<std::int32_t>& tokens) const;

  std::vector<Slot> slots_;
  std::size_t mask_ = 0, size_ = 0;
};

}  // namespace weft::tokenizer
