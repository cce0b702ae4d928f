#include "weft/train/test_aids.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "weft/core/error.h"
#include "weft/distributed/fsdp.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

const char* kill_text() {
  static const char* const text = std::getenv("WEFT_TEST_KILL");
  return text;
}

struct Kill {
  std::string phase;  ///< empty: none
  std::int64_t operations = 0;
};

// The kill requested for this rank and step.
Kill kill_of(int rank, std::int64_t step) {
  const char* const text = kill_text();
  int at_rank = 0;
  long long at_step = 0, operations = 0;
  char phase[16] = "";
  if (!text ||
      std::sscanf(text, "%d:%lld:%15[a-z]:%lld", &at_rank, &at_step, phase, &operations) < 3)
    return {};
  return at_rank == rank && at_step == step ? Kill{phase, operations} : Kill{};
}

bool are_threads(const Ranks& ranks) { return ranks.host().backend() == std::string("thread"); }

// Among ranks as threads only this one ends.
void end(const Ranks& ranks) {
  check_system(!are_threads(ranks), "WEFT_TEST_KILL={}", kill_text());
  std::raise(SIGKILL);
}

}  // namespace

void inject_nan(TrainStep& train_step, std::int64_t step) {
  static const char* const at = std::getenv("WEFT_TEST_INJECT_NAN");
  if (!at || std::atoll(at) != step) return;
  train_step.model().parameters().front().flatten().narrow(0, 0, 1).fill_(
      std::numeric_limits<double>::quiet_NaN());
}

void kill_in_step(TrainStep& train_step, const Ranks& ranks, std::int64_t step) {
  const Kill kill = kill_of(ranks.rank(), step);
  if (kill.phase.empty() || kill.phase == "save") return;
  if (kill.phase == "gather")
    return distributed::testing::at_gather(kill.operations, [&ranks] { end(ranks); });
  train_step.on_phase([phase = kill.phase, &ranks](Phase begins) {
    if (phase == name_of(begins)) end(ranks);
  });
}

KillInSave::KillInSave(const Ranks& ranks, std::int64_t step) {
  const Kill kill = kill_of(ranks.rank(), step);
  armed_ = kill.phase == "save";
  if (armed_ && are_threads(ranks)) end(ranks);
  if (armed_) io::testing::kill_after(kill.operations);
}

KillInSave::~KillInSave() {
  if (armed_) io::testing::kill_after(-1);
}

}  // namespace weft::train
