#include "weft/train/run_folder.h"

#include <limits>
#include <map>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/train/agreement.h"
#include "weft/train/config_file.h"

namespace weft::train {
namespace {

// A counter that will still be increased, so it must leave room.
std::int64_t count_of(const io::Json& state, const std::string& key) {
  const std::int64_t n = state.at(key).as_int();
  check_system(0 <= n && n <= INT64_MAX / 2, "state.json: {} must be in [0, {}], got {}", key,
               INT64_MAX / 2, n);
  return n;
}

// Whether changing this setting changes the learning rate of the remaining steps.
bool moves_the_rate(const std::string& name, const std::map<std::string, std::string>& now) {
  const auto schedule = now.find("schedule"), warmup = now.find("warmup");
  // The default of --warmup is a fraction of --steps.
  if (name == "steps")
    return schedule == now.end() || schedule->second != "constant" || warmup == now.end() ||
           warmup->second.rfind('-', 0) == 0;
  return name == "lr" || name == "min-lr" || name == "warmup" || name == "schedule";
}

bool is_damaged(const std::string& folder) {
  try {
    io::find_checkpoint(folder);
  } catch (const io::DamagedCheckpoints&) {
    return true;
  } catch (const Error&) {
  }
  return false;
}

}  // namespace

RunFolder::RunFolder(const std::string& path, bool resume, const Ranks& ranks)
    : path_(path), ranks_(ranks) {
  ranks.on_first([&] {
    io::make_directories(path);
    lock_.emplace(path);
    check(lock_->holder().empty(),
          "--out: '{}' is in use by {}; wait until that run ends, or name another folder", path,
          lock_->holder());
    check(resume || !(io::exists(metrics()) || io::exists(path + "/checkpoints")),
          "--out: '{}' already holds a run; add --resume to go on with it, or name another folder",
          path);
  });
  if (ranks.size() > 1 && !ranks.device().is_meta()) check_shared_folder(ranks.host(), path);
}

void RunFolder::write_config(const std::string& toml) const {
  io::write_file(path_ + "/config.toml", toml);
}

std::vector<std::string> RunFolder::changes(const std::string& toml, bool reads_weights) const {
  const std::string path = path_ + "/config.toml";
  if (io::path_kind(path) != io::PathKind::file || !io::exists(path_ + "/checkpoints")) return {};
  const auto before = settings_of(io::read_file(path)), now = settings_of(toml);
  std::vector<std::string> out;
  for (const auto& [name, value] : now) {
    const auto old = before.find(name);
    // Older versions lack some settings. --resume and --out do not change a run.
    if (old == before.end() || old->second == value || name == "resume" || name == "out") continue;
    check(name != "optimizer",
          "--optimizer: must be {} as in the run that '{}' holds, got {}; leave the flag out, or "
          "start a new run with --weights",
          old->second, path_, value);
    if (name == "weights" && !reads_weights) {
      check(value.empty(),
            "--weights: a resumed run has its weights already, got '{}'; remove the flag", value);
      continue;  // a command line that names no weights again
    }
    const auto shown = [](const std::string& text) { return text.empty() ? "''" : text; };
    out.push_back(message("--{} {} -> {}{}", name, shown(old->second), shown(value),
                          moves_the_rate(name, now) ? " (moves the learning rate)" : ""));
  }
  return out;
}

std::optional<RunState> RunFolder::restore(TrainStep& step, const Task& task) const {
  const std::optional<io::Checkpoint> found = distributed::find_checkpoint(ranks_.host(), path_);
  if (!found) return std::nullopt;
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  if (task.check_state) task.check_state(state);
  step.load(distributed::ShardFiles(ranks_.host(), found->shards("model")),
            distributed::ShardFiles(ranks_.host(), found->shards("optim")));
  // A run that had no loss scale begins with the first.
  const io::Json* const scale = state.find("loss_scale");
  if (scale && step.loss_scale())
    step.loss_scale()->load({scale->at("scale").as_double(), scale->at("good_steps").as_double(),
                             scale->at("skipped_steps").as_double()});
  RunState run;
  run.step = count_of(state, "step");
  run.targets = count_of(state, task.unit);
  run.loader = state.at("loader");
  // Older checkpoints do not have them.
  if (const io::Json* row = state.find("row")) {
    run.row = *row;
    run.evaluates = state.at("evaluates").as_bool();
  }
  return run;
}

RunFolder::Save RunFolder::save(TrainStep& step, const Task& task, const RunState& run,
                                std::int64_t keep, bool background) const {
  return save_into(path_, step, task, run,
                   {.keep = static_cast<int>(keep), .background = background});
}

RunFolder::Save RunFolder::save_best(TrainStep& step, const Task& task, const RunState& run,
                                     bool background) const {
  ranks_.on_first([&] { io::make_directories(best()); });
  return save_into(best(), step, task, run, {.keep = 1, .background = background});
}

double RunFolder::best_loss() const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::optional<io::Checkpoint> found;
  try {
    found = distributed::find_checkpoint(ranks_.host(), best());
  } catch (const Error& e) {
    // The run goes on without a damaged one. One that cannot be read now may be the best still.
    if (!ranks_.of_first(ranks_.is_first() && is_damaged(best()))) throw;
    if (ranks_.is_first())
      log_line(message("{}; the next evaluation replaces it", std::string(e.what())));
  }
  if (!found) return kNone;
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  const io::Json* const row = state.find("row");
  const io::Json* const loss = row ? row->find("val_loss") : nullptr;
  return loss && loss->is_number() ? loss->as_double() : kNone;
}

RunFolder::Save RunFolder::save_into(const std::string& folder, TrainStep& step, const Task& task,
                                     const RunState& run,
                                     const distributed::SaveOptions& options) const {
  io::Json state = io::Json::object();
  state.set("step", run.step).set(task.unit, run.targets).set("loader", run.loader);
  for (const io::JsonMember& m : task.state.members()) state.set(m.key, m.value);
  state.set("row", run.row).set("evaluates", run.evaluates);
  if (const LossScale* const scale = step.loss_scale()) {
    const auto [factor, good_steps, skipped_steps] = scale->state();
    state.set("loss_scale", io::Json::object()
                                .set("scale", factor)
                                .set("good_steps", good_steps)
                                .set("skipped_steps", skipped_steps));
  }
  distributed::SaveOptions own = options;
  own.devices = &ranks_.world();
  return std::make_unique<distributed::CheckpointSave>(
      ranks_.host(), folder,
      distributed::CheckpointPart{.step = run.step,
                                  .model = distributed::sources_of(step.model_slices()),
                                  .optimizer = step.optimizer_slices(),
                                  .state = state.dump(),
                                  .more = task.files},
      own);
}

}  // namespace weft::train
