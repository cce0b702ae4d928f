#include "weft/distributed/checkpoint.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/storage.h"
#include "weft/distributed/agree.h"
#include "weft/distributed/long_work.h"

namespace weft::distributed {
namespace {

// The outcome on one rank.
constexpr std::int64_t kWell = 0, kVerify = 1, kFailed = 2, kUnreadable = 3, kBusy = 4;

// The message of the exception that f throws, or "".
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "stopped by an exception that is no std::exception";
  }
  return "";
}

// A tensor that peak_bytes does not contain, since how long a copy stays depends on the disk. Fresh
// pages cost more than the copy itself, and the step waits for it: the memory of the last save
// serves again.
Tensor uncounted(const Shape& shape, DType dtype) {
  std::unique_ptr<Storage, decltype(&give_back_uncounted)> block(
      take_uncounted(shape.numel() * static_cast<std::int64_t>(size_of(dtype))),
      give_back_uncounted);
  if (!block) throw std::bad_alloc();
  const Tensor tensor = Tensor::wrap(
      block->data, shape, dtype, [](void* b) { give_back_uncounted(static_cast<Storage*>(b)); },
      block.get());
  block.release();
  return tensor;
}

// False, and no copy stays, if a value cannot be read or there is no memory for them all. Writing
// needs one at a time: it may still succeed, and else says what is wrong.
bool copy_to_host(CheckpointPart& part) {
  const NoGradGuard off;
  std::vector<std::pair<TensorSource*, Tensor>> copies;
  try {
    for (SliceSources* const slices : {&part.model, &part.optimizer})
      for (auto& [name, slice] : *slices) {
        TensorSource& source = slice.values;
        copies.emplace_back(&source, uncounted(source.shape, source.dtype));
        copies.back().second.copy_(source.read().detach());
      }
  } catch (const std::exception&) {
    return false;
  }
  for (const auto& [source, copy] : copies) source->read = [copy = copy] { return copy; };
  return true;
}

bool all_are(World& world, bool own) {
  const auto all = from_all(world, std::array{std::int64_t{own}});
  return std::all_of(all.begin(), all.end(), [](const auto& one) { return one[0] != 0; });
}

Pauses pauses_of(const World& world) { return {world, "save_checkpoint", "write"}; }

}  // namespace

CheckpointSave::CheckpointSave(World& world, const std::string& out_dir, CheckpointPart part,
                               const SaveOptions& options)
    : world_(world), out_dir_(out_dir), part_(std::move(part)), options_(options) {
  check(options.keep >= 0, "save_checkpoint: keep must be at least 0, got {}", options.keep);
  std::exception_ptr failed;
  take_time(world, "save_checkpoint", "make the folder", [&] {
    try {
      if (world.rank() == 0) io::begin_checkpoint(out_dir, part_.step);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  on_rank_0(world, [&] {
    if (failed) std::rethrow_exception(failed);
  });
  const bool copied = options.background && copy_to_host(part_);
  if (copied) {
    check_devices();
    if (not_written_.empty())
      start([this] {
        write();
        if (world_.size() > 1 || !not_written_.empty()) return;
        all_ = {written()};
        commit();
      });
  }
  // The others would wait for a rank without room in their next collective of training.
  try {
    if (options.background && all_are(world, copied)) return;
  } catch (...) {  // without a destructor the thread would end the process
    stop_.request_stop();
    join();
    if (world.rank() == 0) abandon();
    throw;
  }
  copied ? wait_for_writes() : write_at_once();
}

CheckpointSave::~CheckpointSave() {
  if (world_.size() > 1) stop_.request_stop();
  join();
  if (world_.rank() == 0 && !(has_committed_ && not_committed_.empty())) abandon();
}

// Frees the disk space. The error that led here is the one to report.
void CheckpointSave::abandon() {
  failure_of([&] { io::abandon_checkpoint(out_dir_, part_.step); });
}

void CheckpointSave::start(const std::function<void()>& work) {
  busy_ = true;
  thread_ = rank_thread(world_.rank(), "save_checkpoint", "the files", [this, work] {
    work();
    busy_ = false;
  });
}

// This thread reads the tensors; another one takes part in the collectives meanwhile.
void CheckpointSave::write_at_once() {
  busy_ = true;
  std::thread waits;
  if (world_.size() > 1)
    waits = rank_thread(world_.rank(), "save_checkpoint", "the other ranks' questions",
                        [this] { wait_for_writes(); });
  write();
  check_devices();
  busy_ = false;
  if (waits.joinable()) waits.join();
}

// In many short collectives: a disk may take longer than one of them may, but a rank that is lost,
// or does not answer any more, ends the job as in any collective. The caller sees an error in
// advance().
void CheckpointSave::wait_for_writes() {
  try {
    for (Pauses pauses = pauses_of(world_); !all_have_written(); pauses.next(writes_)) continue;
  } catch (...) {
    lost_ = std::current_exception();
    stop_.request_stop();
  }
}

// After the last value is read: a rank that aborted a collective knows it before any rank reads a
// wrong value.
void CheckpointSave::check_devices() {
  if (options_.devices && not_written_.empty())
    not_written_ = failure_of([&] { options_.devices->check_well(); });
}

void CheckpointSave::join() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointSave::write() {
  not_written_ = failure_of([&] {
    const std::string folder = io::checkpoint_folder(out_dir_, part_.step);
    const io::Metadata metadata = {{"step", std::to_string(part_.step)}};
    const auto save = [&](const char* kind, const SliceSources& slices) {
      return save_slices(folder + "/" + io::shard_name(kind, world_.rank()), slices, metadata,
                         stop_.get_token());
    };
    files_[0] = save("model", part_.model);
    files_[1] = save("optim", part_.optimizer);
  });
}

void CheckpointSave::commit() {
  has_committed_ = true;
  not_committed_ = failure_of([&] {
    const std::string folder = io::checkpoint_folder(out_dir_, part_.step);
    std::vector<io::CheckpointFile> list;
    for (int r = 0; r < world_.size(); ++r) {
      const Written& w = all_[static_cast<std::size_t>(r)];
      list.push_back({io::shard_name("model", r), {w[1], static_cast<std::uint32_t>(w[2])}});
      list.push_back({io::shard_name("optim", r), {w[3], static_cast<std::uint32_t>(w[4])}});
    }
    for (const auto& [name, text] : part_.more)
      list.push_back({name, io::write_file(folder + "/" + name, text)});
    io::commit_checkpoint(out_dir_, part_.step, std::move(list), part_.state, options_.keep);
  });
}

CheckpointSave::Written CheckpointSave::written() const {
  return {not_written_.empty() ? kWell : kFailed, files_[0].bytes, std::int64_t{files_[0].crc32c},
          files_[1].bytes, std::int64_t{files_[1].crc32c}};
}

void CheckpointSave::fail(const std::string& why) {
  if (world_.rank() == 0) abandon();
  throw Error(why, Fault::system);
}

// False while a rank is still writing.
bool CheckpointSave::all_have_written() {
  if (world_.size() > 1 && !all_.empty()) return true;  // of one rank, the thread may be writing it
  std::vector<Written> all = from_all(world_, busy_ ? Written{kBusy} : written());
  const auto first = [&](std::int64_t outcome) {
    return std::find_if(all.begin(), all.end(), [=](const Written& w) { return w[0] == outcome; });
  };
  // The others need not finish; they then fail too.
  if (const auto failed = first(kFailed); failed != all.end() && failed_ < 0) {
    failed_ = static_cast<int>(failed - all.begin());
    stop_.request_stop();
  }
  if (const auto busy = first(kBusy); busy != all.end()) {
    writes_ = static_cast<int>(busy - all.begin());
    return false;
  }
  join();
  if (failed_ >= 0)
    fail(
        message("save_checkpoint: rank {}: {}", failed_, text_from(world_, failed_, not_written_)));
  all_ = std::move(all);
  return true;
}

bool CheckpointSave::advance() {
  if (lost_) std::rethrow_exception(lost_);
  if (!commits_) {
    if (!all_have_written()) return false;
    commits_ = true;
    writes_ = 0;
    if (world_.rank() == 0 && !has_committed_) start([this] { commit(); });
  }
  const std::int64_t outcome = from_rank_0(world_, busy_                    ? kBusy
                                                   : not_committed_.empty() ? kWell
                                                                            : kFailed);
  if (outcome == kBusy) return false;
  join();
  if (outcome == kFailed) fail(text_from(world_, 0, not_committed_));
  return true;
}

void CheckpointSave::finish() {
  if (world_.size() == 1) join();
  for (Pauses pauses = pauses_of(world_); !advance(); pauses.next(writes_)) continue;
}

void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const SlicedTensors& model, const SlicedTensors& optimizer,
                     const std::string& state, int keep,
                     const std::map<std::string, std::string>& more, const World* devices) {
  CheckpointSave(world, out_dir,
                 {.step = step,
                  .model = sources_of(model),
                  .optimizer = sources_of(optimizer),
                  .state = state,
                  .more = more},
                 {.keep = keep, .devices = devices})
      .finish();
}

std::int64_t bytes_of_copies(const SliceSources& slices) {
  std::int64_t bytes = 0;
  for (const auto& [name, s] : slices)
    bytes += size_class_bytes(s.values.shape.numel() *
                              static_cast<std::int64_t>(size_of(s.values.dtype)));
  return bytes;
}

std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir) {
  // All ranks use the manifest that rank 0 has read: another copy may be damaged.
  std::optional<io::Checkpoint> found;
  // The first read error of a rank, else the first damage, else "".
  const auto verify_together = [&](const std::string& folder, const std::string& manifest) {
    std::array<std::int64_t, 1> own{kWell};
    std::string text;
    try {
      take_time(world, "find_checkpoint", "verify its files", [&] {
        found = io::verify_checkpoint(folder, manifest, world.rank(), world.size());
      });
    } catch (const Error& e) {
      const auto* const file = dynamic_cast<const io::FileError*>(&e);
      own = {file && !file->is_missing() ? kUnreadable : kFailed};
      text = e.what();
    }
    const auto all = from_all(world, own);
    const auto worst = std::max_element(all.begin(), all.end());
    if (*worst == std::array{kWell}) return std::string();
    text = text_from(world, static_cast<int>(worst - all.begin()), text);
    check_system(world.rank() != 0 || *worst != std::array{kUnreadable}, "{}", text);
    return text;
  };
  if (world.rank() != 0)
    while (from_rank_0(world, kWell) == kVerify) {
      const std::string folder = text_from(world, 0, "");
      verify_together(folder, text_from(world, 0, ""));
    }
  on_rank_0(world, [&] {
    const auto verify = [&](const std::string& folder, const std::string& manifest) {
      from_rank_0(world, kVerify);
      text_from(world, 0, folder);
      text_from(world, 0, manifest);
      return verify_together(folder, manifest);
    };
    try {
      io::find_checkpoint(out_dir, verify);
    } catch (const Error&) {
      from_rank_0(world, kWell);
      throw;
    }
    from_rank_0(world, kWell);
  });
  return found;
}

}  // namespace weft::distributed
