#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
/// Killed, out of disk or without power at any point, the one before stays. Afterwards only the
/// `keep` newest steps are kept (0: all), and what an interrupted save left is removed; what cannot
/// be removed is told by log_line(). One process at a time may save in OUT: see io::FolderLock.
/// Throws Error when writing fails.
void save_checkpoint(const std::string& out_dir, std::int64_t step,
                     const CheckpointContent& content, int keep = 0);

// The same in steps, for several processes that share a file system and write one file each.

/// A file of a checkpoint, and what its manifest says of it.
struct CheckpointFile {
  std::string name;
  FileSummary summary;
};
/// "model-r003.safetensors".
std::string shard_name(std::string_view kind, int rank);
/// The folder of a checkpoint: the one in which it is being written, or the one it then has.
std::string checkpoint_folder(const std::string& out_dir, std::int64_t step, bool complete = false);
/// Makes the empty folder in which the files of a save are written, and returns its path; what an
/// interrupted save left is removed. Called by one process, before all others write.
std::string begin_checkpoint(const std::string& out_dir, std::int64_t step);
/// Adds state.json and the manifest to the files that are in it, and makes it the checkpoint to
/// resume from, as save_checkpoint() does. Called by one process, when all others have written.
void commit_checkpoint(const std::string& out_dir, std::int64_t step,
                       std::vector<CheckpointFile> files, const std::string& state, int keep = 0);
/// Removes what begin_checkpoint() made.
void abandon_checkpoint(const std::string& out_dir, std::int64_t step);

/// A checkpoint whose files all have the size and checksum of its manifest.
struct Checkpoint {
  std::int64_t step = 0;
  std::string folder;
  std::vector<std::string> files;  ///< names in it, in the manifest's order
  /// Paths of the files of one kind, "model" or "optim": one for each rank that wrote.
  std::vector<std::string> shards(std::string_view kind) const;
  std::string state() const { return read_file(folder + "/state.json"); }
};

/// The files of a folder that a manifest (JSON text) lists, after a look at a share of them: of
/// `ranks` processes that call this, each reads other files, about as many bytes as the others.
/// Throws Error (Fault::system) naming the first of these that is missing or damaged.
Checkpoint verify_checkpoint(const std::string& folder, const std::string& manifest, int rank = 0,
                             int ranks = 1);

/// What is damaged in a checkpoint, or "": verify_checkpoint(), by one process or several. Throws
/// what says nothing about the checkpoint, as FileError does of a file that is there.
using Verify = std::function<std::string(const std::string& folder, const std::string& manifest)>;

/// The newest checkpoint that verifies: the one that latest.json names, else the newest step folder
/// before it (each carries its own manifest.json), which log_line() tells. None when there never
/// was a checkpoint. Throws Error (Fault::system) naming file and fault when there are checkpoints
/// and all are damaged, or when one cannot be read now: going back would cost the newer one.
std::optional<Checkpoint> find_checkpoint(const std::string& out_dir);
std::optional<Checkpoint> find_checkpoint(const std::string& out_dir, const Verify& verify);

/// The same for a step folder that the user names.
/// Throws Error when a file is missing or damaged.
Checkpoint open_checkpoint(const std::string& folder);

}  // namespace weft::io
