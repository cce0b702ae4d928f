// Finds the rank that a hanging collective waits for: NCCL does not say which one it is.
#include <algorithm>

#include "weft/distributed/nccl_job.h"

#if WEFT_WITH_CUDA

namespace weft::distributed {
namespace {

// A question names a collective; the answer begins with one of these.
constexpr char kCame = '+', kMissing = '-';

std::string question_about(const FlightEntry& e) { return message("{} {}", e.sequence, e.group); }

}  // namespace

std::string NcclJob::answer(const std::string& question) const {
  std::vector<FlightEntry> entries;
  {
    const std::lock_guard lock(mutex_);
    if (recorder_) entries = recorder_->entries();
  }
  for (const FlightEntry& e : entries)
    if (!is_message(e.kind) && question_about(e) == question) return kCame + e.text_with_shape();
  if (entries.empty()) return kMissing + std::string("it has called no collective");
  return kMissing + message("it has called nothing since {}", entries.back().text_with_shape());
}

std::string NcclJob::diagnosis(const FlightEntry& hanging) const {
  const std::string own = hanging.text_with_shape();
  std::string text;
  const auto add = [&](int rank, const std::string& what) {
    text += message("{}rank {} {}", text.empty() ? "" : "; ", rank, what);
  };
  if (!is_message(hanging.kind)) {
    std::vector<int> ranks;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = groups_.find(hanging.group); found != groups_.end())
        ranks = found->second;
    }
    const std::vector<std::string> answers = bootstrap_.ask(question_about(hanging));
    for (const int r : ranks) {
      if (r == rank_ || static_cast<std::size_t>(r) >= answers.size()) continue;
      const std::string& a = answers[static_cast<std::size_t>(r)];
      if (a.empty())
        add(r, "does not answer, so it was stopped or has died");
      else if (a[0] != kCame)
        add(r, "did not come: " + a.substr(a[0] == kMissing ? 1 : 0));
      else if (a.substr(1) != own)
        add(r, "called " + a.substr(1));
    }
    if (text.empty()) text = "every rank came";
  } else {
    text = "a rank did not come";
  }
  return message("{} did not end within {} s on rank {}: {}", own, timeout_, rank_, text);
}

}  // namespace weft::distributed

#endif
