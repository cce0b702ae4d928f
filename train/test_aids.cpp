#include "weft/train/test_aids.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "weft/distributed/fsdp.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

struct Kill {
  std::string phase;  ///< empty: none
  std::int64_t operations = 0;
};

// The kill requested for this rank and step.
Kill kill_of(int rank, std::int64_t step) {
  static const char* const text = std::getenv("WEFT_TEST_KILL");
  int at_rank = 0;
  long long at_step = 0, operations = 0;
  char phase[16] = "";
  if (!text ||
      std::sscanf(text, "%d:%lld:%15[a-z]:%lld", &at_rank, &at_step, phase, &operations) < 3)
    return {};
  return at_rank == rank && at_step == step ? Kill{phase, operations} : Kill{};
}

}  // namespace

void inject_nan(TrainStep& train_step, std::int64_t step) {
  static const char* const at = std::getenv("WEFT_TEST_INJECT_NAN");
  if (!at || std::atoll(at) != step) return;
  train_step.model().parameters().front().flatten().narrow(0, 0, 1).fill_(
      std::numeric_limits<double>::quiet_NaN());
}

void kill_in_step(TrainStep& train_step, int rank, std::int64_t step) {
  const Kill kill = kill_of(rank, step);
  if (kill.phase.empty() || kill.phase == "save") return;
  if (kill.phase == "gather") return distributed::testing::kill_in_gather(kill.operations);
  train_step.on_phase([phase = kill.phase](Phase begins) {
    if (phase == name_of(begins)) std::raise(SIGKILL);
  });
}

KillInSave::KillInSave(int rank, std::int64_t step) {
  const Kill kill = kill_of(rank, step);
  armed_ = kill.phase == "save";
  if (armed_) io::testing::kill_after(kill.operations);
}

KillInSave::~KillInSave() {
  if (armed_) io::testing::kill_after(-1);
}

}  // namespace weft::train
