#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/world.h"

namespace weft::distributed {

/// Which communicators a backend makes that has to connect the ranks of a group: none for lists of
/// one rank each, one for all groups of a queue with equal lists. All ranks ask in the same order
/// and decide alike, since each knows the lists of all. The fake world follows it too, so start-up
/// can be counted without ranks.
class CommunicatorPlan {
 public:
  static constexpr int kNone = -1;
  /// The communicator of these lists in this queue: kNone, one from an earlier call, or a new one,
  /// whose index is the size() before the call. The first one is the world's, of any size.
  int use(const std::shared_ptr<const RankLists>& lists, int queue) {
    for (std::size_t i = 0; i < made_.size(); ++i)
      if (made_[i].queue == queue && (made_[i].lists == lists || *made_[i].lists == *lists))
        return static_cast<int>(i);
    bool several = made_.empty();
    for (const std::vector<int>& ranks : *lists) several = several || ranks.size() > 1;
    if (!several) return kNone;
    made_.push_back({lists, queue});
    return static_cast<int>(made_.size()) - 1;
  }
  /// Whether every rank of the world will reach a collective of these lists that needs the
  /// communicator, which can then be made by it. Otherwise all ranks make it when the groups are.
  static bool can_wait(const RankLists& lists, int world_size) {
    std::size_t ranks = 0;
    for (const std::vector<int>& list : lists) ranks += list.size() > 1 ? list.size() : 0;
    return ranks == static_cast<std::size_t>(world_size);
  }
  int size() const { return static_cast<int>(made_.size()); }

 private:
  struct Made {
    std::shared_ptr<const RankLists> lists;
    int queue;
  };
  std::vector<Made> made_;
};

}  // namespace weft::distributed
