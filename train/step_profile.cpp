#include "weft/train/step_profile.h"

#include <cstdio>

#include "weft/core/profile_table.h"
#include "weft/io/flame.h"
#include "weft/train/terminal.h"

namespace weft::train {

StepProfile::StepProfile(TrainStep& step, const Options& options, const Ranks& ranks)
    : step_(step),
      options_(options),
      profiles_(options.run.profile && ranks.is_first()),
      device_(ranks.device()) {
  if (profiles_) step_.on_phase([this](Phase phase) { profiler_.phase(name_of(phase)); });
}

StepResult StepProfile::run(std::int64_t number, const data::Batch& rows) {
  if (!profiles_ || ++steps_ <= TrainStep::kEagerSteps) return step_(number, rows);
  profiler_.start(name_of(Phase::forward));
  try {
    StepResult result = step_(number, rows);
    profiler_.stop();
    return result;
  } catch (...) {
    profiler_.discard();
    throw;
  }
}

void StepProfile::report(const std::string& svg_path) const {
  if (!profiles_) return;
  const bool prints = !options_.quiet;
  if (profiler_.spans() == 0) {
    if (prints)
      print_fact("profile",
                 message("none: the first {} steps are not timed", TrainStep::kEagerSteps));
    return;
  }
  if (prints)
    std::printf(
        "\nMean of %lld steps; the floor takes the rates of a large product and of copies\n%s\n",
        static_cast<long long>(profiler_.spans()),
        profile_table(profiler_, measure_rates(device_, options_.machine.model_dtype())).c_str());
  io::write_flame_svg(profiler_.entries(), svg_path,
                      message("Time of {} steps of {}", profiler_.spans(), options_.out));
  if (prints) print_fact("profile", svg_path);
}

}  // namespace weft::train
