#include "weft/tokenizer/merge_scores.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

constexpr std::int64_t kUnreached = INT32_MAX;  // below every merge of the list

/// By id, the first merge of the list that gives a token.
std::vector<std::int64_t> first_ranks(const BpeParts& p) {
  std::vector<std::int64_t> ranks(p.text.size(), kUnreached);
  for (const MergeTable::Entry& e : p.merges.entries()) {
    std::int64_t& rank = ranks[static_cast<std::size_t>(e.merge.token)];
    rank = std::min<std::int64_t>(rank, e.merge.rank);
  }
  return ranks;
}

std::string name_of(const BpeParts& p, std::int32_t id) {
  for (const auto& [text, i] : p.ids)
    if (i == id) return shown(text);
  return shown(p.text[static_cast<std::size_t>(id)]);
}

/// A pair that llama.cpp merges and the list does not have.
std::string missing_pair(const BpeParts& p, const MergeTable& by_score) {
  std::int32_t least = INT32_MAX;
  for (const MergeTable::Entry& e : by_score.entries())
    if (p.merges.find(e.left, e.right).rank == MergeTable::kNone)
      least = std::min(least, e.merge.token);
  return least == INT32_MAX
             ? ""
             : message("the list of merges has not every pair that gives '{}'", name_of(p, least));
}

/// A merge of one token that stands between those of another.
std::string mixed_order(const BpeParts& p) {
  std::vector<MergeTable::Entry> all = p.merges.entries();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.merge.rank < b.merge.rank; });
  std::vector<bool> seen(p.text.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int32_t token = all[i].merge.token;
    if (i > 0 && all[i - 1].merge.token == token) continue;
    if (seen[static_cast<std::size_t>(token)])
      return message("the merges that give '{}' do not follow each other", name_of(p, token));
    seen[static_cast<std::size_t>(token)] = true;
  }
  return "";
}

}  // namespace

MergeScores scores_of(const BpeParts& p) {
  const std::vector<std::int64_t> ranks = first_ranks(p);
  MergeScores out;
  for (const std::int64_t rank : ranks)
    out.scores.push_back(rank == kUnreached ? -1e9F : -static_cast<float>(rank));
  BpeParts scored;
  scored.ids = p.ids;
  scored.characters = true;
  scored.merges = MergeTable(p.merges.size());
  scored.merge_by_rank(ranks, "tokenizer");
  out.differs = missing_pair(p, scored.merges);
  if (out.differs.empty()) out.differs = mixed_order(p);
  return out;
}

}  // namespace weft::tokenizer
