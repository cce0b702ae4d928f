#pragma once
#include <cstdint>

#include "weft/train/train_step.h"

// Faults that environment variables inject into a trainer, for its tests: docs/training.md.
namespace weft::train {

/// WEFT_TEST_INJECT_NAN=N puts a NaN into the first parameter before step N.
void inject_nan(TrainStep& train_step, std::int64_t step);

/// WEFT_TEST_KILL=RANK:STEP:PHASE ends this rank's process by SIGKILL when that phase of the step
/// first begins: forward, backward or update, in which gradients are in transit. A rank that is a
/// thread throws there instead.
/// WEFT_TEST_KILL=RANK:STEP:gather:N ends it where the N-th gather of a unit of FSDP after the
/// step's start, from 0, would begin.
void kill_in_step(TrainStep& train_step, const Ranks& ranks, std::int64_t step);

/// WEFT_TEST_KILL=RANK:STEP:save:N kills it while an instance exists, in place of the rank's file
/// system change number N, from 0; a thread throws in place of the whole save.
class KillInSave {
 public:
  KillInSave(const Ranks& ranks, std::int64_t step);
  ~KillInSave();
  KillInSave(const KillInSave&) = delete;

 private:
  bool armed_ = false;
};

}  // namespace weft::train
