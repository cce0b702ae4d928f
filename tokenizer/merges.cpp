#include "weft/tokenizer/merges.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace weft::tokenizer {

MergeTable::MergeTable(std::size_t expected) {
  std::size_t slots = 16;
  while (slots < 2 * expected) slots *= 2;
  slots_.resize(slots);
  mask_ = slots - 1;
}

void MergeTable::add(std::int32_t left, std::int32_t right, std::uint32_t rank,
                     std::int32_t token) {
  if (2 * (size_ + 1) > slots_.size()) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    mask_ = slots_.size() - 1;
    for (const Slot& s : old) {
      if (s.key == kEmpty) continue;
      std::size_t i = place(s.key);
      while (slots_[i].key != kEmpty) i = (i + 1) & mask_;
      slots_[i] = s;
    }
  }
  const std::uint64_t key = key_of(left, right);
  std::size_t i = place(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  if (slots_[i].key == kEmpty) ++size_;
  slots_[i] = {key, {rank, token}};
}

std::vector<MergeTable::Entry> MergeTable::entries() const {
  std::vector<Entry> all;
  all.reserve(size_);
  for (const Slot& s : slots_)
    if (s.key != kEmpty)
      all.push_back(
          {static_cast<std::int32_t>(s.key >> 32), static_cast<std::int32_t>(s.key), s.merge});
  return all;
}

void MergeTable::apply(std::vector<std::int32_t>& tokens) const {
  constexpr std::size_t kShort = 64;
  if (tokens.size() <= kShort)
    apply_short(tokens);
  else
    apply_long(tokens);
}

// Quadratic, without memory of its own: most pieces are a word.
void MergeTable::apply_short(std::vector<std::int32_t>& tokens) const {
  Merge merges[64];  // of tokens i and i + 1
  std::size_t n = tokens.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = find(tokens[i], tokens[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == kNone) break;
    tokens[best] = merges[best].token;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      tokens[i] = tokens[i + 1];
      merges[i] = merges[i + 1];
    }
    --n;
    if (best > 0) merges[best - 1] = find(tokens[best - 1], tokens[best]);
    if (best + 1 < n) merges[best] = find(tokens[best], tokens[best + 1]);
  }
  tokens.resize(n);
}

// A linked list of tokens and a heap of merges, where outdated entries are skipped.
void MergeTable::apply_long(std::vector<std::int32_t>& tokens) const {
  constexpr std::uint32_t kEnd = UINT32_MAX;
  struct Node {
    std::uint32_t before, after;
    Merge merge;  // with the node after; rank kNone: none, or this node is gone
  };
  const auto n = static_cast<std::uint32_t>(tokens.size());
  std::vector<Node> nodes(n);
  std::vector<std::uint64_t> first;  // rank << 32 | place
  for (std::uint32_t i = 0; i < n; ++i) {
    nodes[i] = {i - 1, i + 1 < n ? i + 1 : kEnd,
                i + 1 < n ? find(tokens[i], tokens[i + 1]) : Merge()};
    if (nodes[i].merge.rank != kNone) first.push_back(std::uint64_t{nodes[i].merge.rank} << 32 | i);
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(
      std::greater<>(), std::move(first));
  const auto renew = [&](std::uint32_t i) {
    const std::uint32_t after = nodes[i].after;
    nodes[i].merge = after == kEnd ? Merge() : find(tokens[i], tokens[after]);
    if (nodes[i].merge.rank != kNone) heap.push(std::uint64_t{nodes[i].merge.rank} << 32 | i);
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(top);
    if (nodes[i].merge.rank != static_cast<std::uint32_t>(top >> 32)) continue;
    const std::uint32_t gone = nodes[i].after;
    tokens[i] = nodes[i].merge.token;
    nodes[i].after = nodes[gone].after;
    nodes[gone].merge = {};
    if (nodes[i].after != kEnd) nodes[nodes[i].after].before = i;
    renew(i);
    if (i > 0) renew(nodes[i].before);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != kEnd; i = nodes[i].after) tokens[kept++] = tokens[i];
  tokens.resize(kept);
}

}  // namespace weft::tokenizer
