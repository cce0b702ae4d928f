#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "weft/distributed/shard_files.h"
#include "weft/distributed/world.h"
#include "weft/io/checkpoint.h"

namespace weft::distributed {

/// What one rank puts into a checkpoint.
struct CheckpointPart {
  std::int64_t step = 0;
  SliceSources model = {}, optimizer = {};
  std::string state = "{}";                      ///< rank 0's
  std::map<std::string, std::string> more = {};  ///< rank 0's: further files by name
};

struct SaveOptions {
  int keep = 0;             ///< see io::save_checkpoint()
  bool background = false;  ///< write from a copy on the host, on a thread of its own
  /// The world that moves the tensors, if that is another one. If it has failed on a rank, tensors
  /// may be wrong and are not saved.
  const World* devices = nullptr;
};

/// io::save_checkpoint() by all ranks of the world, which make all calls together and share the
/// file system. Rank r writes model-r and optim-r with its slices. Every element must be in a slice
/// of some rank; replicas need not be written twice. The manifest is written last, when all files
/// exist: if a rank dies earlier, the previous checkpoint stays valid.
///
/// In the background, the constructor copies this rank's tensors to memory of the host that no
/// allocator counts, and returns; if a rank has no room for a copy, or one fails, it writes at once
/// and all ranks wait for it.
/// Threads only write files; that all ranks have written theirs is agreed in advance(), so that no
/// collective runs beside those of training.
///
/// A rank may write for longer than a collective may take: the others ask it again and again, and
/// rank 0 logs a line each time as long as WorldOptions::timeout_s passes. A rank that is lost or
/// stopped meanwhile ends the job as in any collective.
///
///   CheckpointSave save(world, out, part, {.background = true});
///   do step(); while (!save.advance());
class CheckpointSave {
 public:
  /// Throws the same Error on every rank when the folder cannot be made.
  CheckpointSave(World& world, const std::string& out_dir, CheckpointPart part,
                 const SaveOptions& options);
  /// One rank completes the checkpoint, whose errors then are lost. Several cannot agree any more:
  /// they stop writing.
  ~CheckpointSave();
  CheckpointSave(const CheckpointSave&) = delete;

  /// True once the checkpoint is complete; then do not call it again. Throws the same Error on
  /// every rank when one cannot write.
  bool advance();
  /// Waits until it is complete. Throws Error as advance().
  void finish();

 private:
  /// What a rank has written: outcome, then size and checksum of its model and optimizer files.
  using Written = std::array<std::int64_t, 5>;

  bool all_have_written();
  void write();
  void write_at_once();
  void wait_for_writes();
  void check_devices();
  Written written() const;
  /// On rank 0 only.
  void commit();
  void abandon();
  [[noreturn]] void fail(const std::string& why);
  void start(const std::function<void()>& work);
  void join();

  World& world_;
  const std::string out_dir_;
  CheckpointPart part_;
  const SaveOptions options_;
  io::FileSummary files_[2];                 ///< of model and optimizer
  std::vector<Written> all_;                 ///< of all ranks, once they have written
  std::string not_written_, not_committed_;  ///< why, on this rank
  bool commits_ = false, has_committed_ = false;
  int writes_ = 0;           ///< a rank that wrote at the last collective
  int failed_ = -1;          ///< the first rank that could not write, or -1
  std::exception_ptr lost_;  ///< what wait_for_writes() met
  std::thread thread_;
  std::stop_source stop_;
  std::atomic<bool> busy_{false};  ///< this rank writes
};

/// A CheckpointSave at once. `state` and `more` are rank 0's.
void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const SlicedTensors& model, const SlicedTensors& optimizer,
                     const std::string& state, int keep = 0,
                     const std::map<std::string, std::string>& more = {},
                     const World* devices = nullptr);

/// The bytes of memory that the copies of a CheckpointSave take.
std::int64_t bytes_of_copies(const SliceSources& slices);

/// io::find_checkpoint() by rank 0; each rank verifies a share of the files, for which it may take
/// longer than a collective may. Throws the same Error on every rank where io::find_checkpoint()
/// does.
std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir);

}  // namespace weft::distributed
