#include "weft/train/run_folder.h"

#include "weft/core/error.h"
#include "weft/distributed/checkpoint.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

// A counter that will still be increased, so it must leave room.
std::int64_t count_of(const io::Json& state, const std::string& key) {
  const std::int64_t n = state.at(key).as_int();
  check_system(0 <= n && n <= INT64_MAX / 2, "state.json: {} must be in [0, {}], got {}", key,
               INT64_MAX / 2, n);
  return n;
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
}

void RunFolder::write_config(const std::string& toml) const {
  io::write_file(path_ + "/config.toml", toml);
}

std::optional<RunState> RunFolder::restore(TrainStep& step, const Task& task) const {
  const std::optional<io::Checkpoint> found = distributed::find_checkpoint(ranks_.host(), path_);
  if (!found) return std::nullopt;
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  if (task.check_state) task.check_state(state);
  step.load(distributed::PieceFiles(found->shards("model")),
            distributed::PieceFiles(found->shards("optim")));
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

void RunFolder::save(TrainStep& step, const Task& task, const RunState& run,
                     std::int64_t keep) const {
  io::Json state = io::Json::object();
  state.set("step", run.step).set(task.unit, run.targets).set("loader", run.loader);
  for (const io::JsonMember& m : task.state.members()) state.set(m.key, m.value);
  state.set("row", run.row).set("evaluates", run.evaluates);
  distributed::save_checkpoint(ranks_.host(), path_, run.step, step.model_pieces(),
                               step.optimizer_pieces(), state.dump(), static_cast<int>(keep));
}

}  // namespace weft::train
