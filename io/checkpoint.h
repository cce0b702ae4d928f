#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "weft/io/safetensors.h"

namespace weft::io {

/// What one save holds. `state` is JSON text: position in the data, schedule, random state, ...
struct CheckpointContent {
  StateDict model;
  StateDict optimizer;
  std::string state = "{}";
};

/// Writes OUT/checkpoints/step_00000100/{model-r000.safetensors, optim-r000.safetensors,
/// state.json}. All of it is written and fsynced in a folder beside, which then gets its name;
/// renaming the new OUT/checkpoints/latest.json into place makes it the checkpoint to resume from.
/// Killed or out of disk at any point, the one before stays. Afterwards only the `keep` newest
/// steps are kept (0: all), and what an interrupted save left is removed. Throws Error when writing
/// fails.
void save_checkpoint(const std::string& out_dir, std::int64_t step,
                     const CheckpointContent& content, int keep = 0);

/// A checkpoint whose files all have the size and checksum of its manifest.
struct Checkpoint {
  std::int64_t step = 0;
  std::string folder;
  std::string model_path() const { return folder + "/model-r000.safetensors"; }
  std::string optimizer_path() const { return folder + "/optim-r000.safetensors"; }
  std::string state() const { return read_file(folder + "/state.json"); }
};

/// The newest checkpoint that verifies: the one that latest.json names, else the newest step folder
/// before it (each carries its own manifest.json), which log_line() tells. None when there never
/// was a checkpoint. Throws Error (Fault::system) naming file and fault when there are checkpoints
/// and all are damaged.
std::optional<Checkpoint> find_checkpoint(const std::string& out_dir);

/// The same for a step folder that the user names.
/// Throws Error when a file is missing or damaged.
Checkpoint open_checkpoint(const std::string& folder);

}  // namespace weft::io
