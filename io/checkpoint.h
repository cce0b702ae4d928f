#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/safetensors.h"

namespace weft::io {

/// The content of one save. `state` is JSON text: data position, schedule, random state, ...
struct CheckpointContent {
  StateDict model;
  StateDict optimizer;
  std::string state = "{}";
};

/// Writes OUT/checkpoints/step_00000100/{model-r000.safetensors, optim-r000.safetensors,
/// state.json}. All files are written and fsynced in a temporary folder, which is then renamed;
/// renaming the new OUT/checkpoints/latest.json into place makes it the checkpoint to resume from.
/// If the process is killed, the disk fills up or power fails at any point, the previous checkpoint
/// remains. Afterwards only the `keep` newest steps are kept (0: all), and the remains of
/// interrupted saves are removed; log_line() reports what cannot be removed. Only one process at a
/// time may save in OUT: see io::FolderLock.
/// Throws Error when writing fails.
void save_checkpoint(const std::string& out_dir, std::int64_t step,
                     const CheckpointContent& content, int keep = 0);

// The same in steps, for several processes that share a file system and write one file each.

/// A file of a checkpoint, with its entry in the manifest.
struct CheckpointFile {
  std::string name;
  FileSummary summary;
};
/// "model-r003.safetensors".
std::string shard_name(std::string_view kind, int rank);
/// The folder of a checkpoint: the temporary one during the save, or the final one.
std::string checkpoint_folder(const std::string& out_dir, std::int64_t step, bool complete = false);
/// Creates the empty folder for the files of a save and returns its path; removes the remains of
/// interrupted saves. One process calls it before the others write.
std::string begin_checkpoint(const std::string& out_dir, std::int64_t step);
/// Adds state.json and the manifest to the written files and makes the folder the checkpoint to
/// resume from, as in save_checkpoint(). One process calls it after all others have written.
void commit_checkpoint(const std::string& out_dir, std::int64_t step,
                       std::vector<CheckpointFile> files, const std::string& state, int keep = 0);
/// Removes the folder that begin_checkpoint() created.
void abandon_checkpoint(const std::string& out_dir, std::int64_t step);

/// A checkpoint whose files all match the sizes and checksums of its manifest.
struct Checkpoint {
  std::int64_t step = 0;
  std::string folder;
  std::vector<std::string> files;  ///< file names, in the manifest's order
  /// Paths of the files of one kind, "model" or "optim": one per rank that wrote.
  std::vector<std::string> shards(std::string_view kind) const;
  std::string state() const { return read_file(folder + "/state.json"); }
};

/// Lists the files of a folder by its manifest (JSON text) and verifies a share of them: each of
/// the `ranks` calling processes reads different files, of about equal total size.
/// Throws Error (Fault::system) naming the first missing or damaged file of this share.
Checkpoint verify_checkpoint(const std::string& folder, const std::string& manifest, int rank = 0,
                             int ranks = 1);

/// Returns the damage of a checkpoint, or "": verify_checkpoint() by one or several processes.
/// Throws errors that do not concern the checkpoint, such as a FileError for a file that exists.
using Verify = std::function<std::string(const std::string& folder, const std::string& manifest)>;

/// All checkpoints of a folder are damaged.
class DamagedCheckpoints : public Error {
  using Error::Error;
};

/// The newest checkpoint that verifies: the one named by latest.json, else the newest older step
/// folder (each has its own manifest.json), which log_line() reports. nullopt when there is no
/// checkpoint.
/// Throws DamagedCheckpoints (Fault::system) naming file and fault when all are, and Error when one
/// cannot be read now, since going back would lose the newer one.
std::optional<Checkpoint> find_checkpoint(const std::string& out_dir);
std::optional<Checkpoint> find_checkpoint(const std::string& out_dir, const Verify& verify);

/// The same for a step folder given by the user.
/// Throws Error when a file is missing or damaged.
Checkpoint open_checkpoint(const std::string& folder);

/// What save_checkpoint() wrote last, from the newest checkpoint that verifies:
///   model.load_state_dict(load_checkpoint(out).model);
/// Throws Error when there is no checkpoint, when several ranks wrote it, and where
/// find_checkpoint() does.
CheckpointContent load_checkpoint(const std::string& out_dir);

}  // namespace weft::io
