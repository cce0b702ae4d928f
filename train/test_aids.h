#pragma once
#include <cstdint>

#include "weft/train/train_step.h"

// What environment variables make a trainer go through, for its tests: docs/training.md.
namespace weft::train {

/// WEFT_TEST_INJECT_NAN=N puts a NaN into the first parameter before step N.
void inject_nan(TrainStep& train_step, std::int64_t step);

/// WEFT_TEST_KILL=RANK:STEP:PHASE ends this rank's process by SIGKILL where the first such phase of
/// that step begins: forward, backward or update, in which gradients are on their way.
void kill_in_step(TrainStep& train_step, int rank, std::int64_t step);

/// WEFT_TEST_KILL=RANK:STEP:save:N does it while one of these lives, in the place of the rank's
/// change N of the file system, from 0.
class KillInSave {
 public:
  KillInSave(int rank, std::int64_t step);
  ~KillInSave();
  KillInSave(const KillInSave&) = delete;

 private:
  bool armed_ = false;
};

}  // namespace weft::train
