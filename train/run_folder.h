#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/io/checkpoint.h"
#include "weft/io/folder_lock.h"
#include "weft/io/json.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// Where a run stands after a step: what state.json holds beside the tensors.
struct RunState {
  std::int64_t step = 0;
  std::int64_t targets = 0;  ///< trained on so far
  io::Json loader;
  /// What metrics.jsonl says of this step when the save, and an evaluation if one follows it, are
  /// done: a run that ends before makes it up when it is resumed.
  io::Json row;
  bool evaluates = false;
};

/// The folder of a run: config.toml, metrics.jsonl, loss.svg and checkpoints/. One run at a time
/// has it: as long as this lives, no other run can.
class RunFolder {
 public:
  /// Opens or creates it: the first rank does, and all come together.
  /// Throws Error, the same on all of them, when another run has it, or when it holds a run and
  /// `resume` is off (Fault::user), or cannot be written.
  RunFolder(const std::string& path, bool resume, const Ranks& ranks);

  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string plot() const { return path_ + "/loss.svg"; }
  void write_config(const std::string& toml) const;
  /// Each setting that a resumed run has other than the run before, by its config.toml: "--lr 0.001
  /// -> 0.0001". Called on the first rank.
  /// Throws Error (Fault::user) on another optimizer, whose state the checkpoint does not have.
  std::vector<std::string> changes(const std::string& toml) const;

  /// Loads the last good checkpoint, whatever ranks have written it; empty when there is none.
  /// Throws Error when the checkpoint is of another model.
  std::optional<RunState> restore(TrainStep& step, const Task& task) const;
  /// Writes a checkpoint; earlier ones stay until it is complete.
  void save(TrainStep& step, const Task& task, const RunState& state, std::int64_t keep) const;
  /// Writes a checkpoint in place of the one in the folder `best`.
  void save_best(TrainStep& step, const Task& task, const RunState& state) const;
  /// The validation loss of that one; infinity when there is none.
  double best_loss() const;

 private:
  void save_into(const std::string& folder, TrainStep& step, const Task& task,
                 const RunState& state, std::int64_t keep) const;
  std::string best() const { return path_ + "/best"; }

  std::string path_;
  const Ranks& ranks_;
  std::optional<io::FolderLock> lock_;  ///< of the first rank
};

}  // namespace weft::train
