#include "weft/bench/start_up.h"

#include <bit>

#include "weft/examples/common/gpt_task.h"
#include "weft/train/train_step.h"

namespace weft::bench {

StartUp start_up(const examples::GptOptions& options, const ConnectCost& cost) {
  const int size = train::ranks_of(options);
  const auto world = distributed::fake_world(static_cast<int>(options.parallel.rank), size,
                                             {.lanes = static_cast<int>(options.parallel.lanes)});
  const train::Ranks ranks(*world, options);
  examples::GptTask gpt(options);
  train::TrainStep step(gpt.task(), options, ranks);
  const Tensor ids = Tensor::empty({ranks.rows(), options.model.seq}, DType::i32, kMeta);
  step(1, {ids, ids});
  step.optimizer().wait();
  const double levels = std::bit_width(static_cast<unsigned>(size - 1));  // of the tree
  const double each_ms = cost.base_ms + size * cost.rank_ms + levels * cost.hop_us * 1e-3;
  const int made = world->communicators();
  return {.communicators = made, .one_by_one = made, .seconds = 1e-3 * made * each_ms};
}

StartUp eager_start_up(int world_size, const distributed::Degrees& degrees,
                       const ConnectCost& cost) {
  StartUp s;
  for (const std::string& name : distributed::mesh_group_names()) {
    // The fourteen names that there were; the axes of dp and edp came later.
    if (name.find("_shard") != name.npos || name.find("_replicate") != name.npos) continue;
    ++s.communicators;
    for (const std::vector<int>& ranks : distributed::rank_lists(world_size, degrees, name)) {
      ++s.one_by_one;
      s.seconds += 1e-3 * (cost.base_ms + static_cast<double>(ranks.size()) * cost.rank_ms) +
                   1e-6 * (world_size - 1) * cost.hop_us;
    }
  }
  return s;
}

}  // namespace weft::bench
