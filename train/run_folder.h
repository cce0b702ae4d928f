#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/distributed/checkpoint.h"
#include "weft/io/folder_lock.h"
#include "weft/io/json.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// The position of a run after a step: what state.json holds besides the tensors.
struct RunState {
  std::int64_t step = 0;
  std::int64_t targets = 0;  ///< targets trained on so far
  io::Json loader;
  /// The step's row of metrics.jsonl, as it will be after the save and the evaluation, if one
  /// follows. A run that ends before writing it does so when it resumes.
  io::Json row;
  bool evaluates = false;
};

/// The folder of a run: config.toml, metrics.jsonl, loss.svg and checkpoints/. It is locked for
/// other runs while this object exists.
class RunFolder {
 public:
  /// Opens or creates the folder on the first rank; all ranks must call it.
  /// Throws Error, the same on all ranks, if another run holds it, or if it contains a run and
  /// `resume` is off (Fault::user), or it cannot be written, or some ranks do not
  /// see it (Fault::user).
  RunFolder(const std::string& path, bool resume, const Ranks& ranks);

  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string plot() const { return path_ + "/loss.svg"; }
  std::string profile() const { return path_ + "/profile.svg"; }
  void write_config(const std::string& toml) const;
  /// The settings in which a resumed run differs from the config.toml of the previous one:
  /// "--lr 0.001 -> 0.0001". Called on the first rank.
  /// `reads_weights`: the checkpoint has only what is trained, and --weights the rest.
  /// Throws Error (Fault::user) if the optimizer differs, since the checkpoint lacks its state, or
  /// weights that nothing would read.
  std::vector<std::string> changes(const std::string& toml, bool reads_weights) const;

  /// Loads the last valid checkpoint, written with any layout of ranks; empty if there is none.
  /// Throws Error if the checkpoint is of another model.
  std::optional<RunState> restore(TrainStep& step, const Task& task) const;
  using Save = std::unique_ptr<distributed::CheckpointSave>;
  /// Begins to write a checkpoint, in the background if asked to; deletes older ones only when it
  /// is complete.
  Save save(TrainStep& step, const Task& task, const RunState& state, std::int64_t keep,
            bool background) const;
  /// The same for one that replaces the checkpoint in the folder `best`.
  Save save_best(TrainStep& step, const Task& task, const RunState& state, bool background) const;
  /// The validation loss of the checkpoint in `best`; infinity if there is none.
  double best_loss() const;

 private:
  Save save_into(const std::string& folder, TrainStep& step, const Task& task,
                 const RunState& state, const distributed::SaveOptions& options) const;
  std::string best() const { return path_ + "/best"; }

  std::string path_;
  const Ranks& ranks_;
  std::optional<io::FolderLock> lock_;  ///< on the first rank
};

}  // namespace weft::train
