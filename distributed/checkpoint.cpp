#include "weft/distributed/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/agree.h"

namespace weft::distributed {
namespace {

// The outcome on one rank.
constexpr std::int64_t kWell = 0, kVerify = 1, kFailed = 2, kUnreadable = 3;

// The message of the Error that f throws, or "".
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// What one rank has written: outcome, then size and checksum of its model and optimizer files.
using Written = std::array<std::int64_t, 5>;

}  // namespace

void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const SlicedTensors& model, const SlicedTensors& optimizer,
                     const std::string& state, int keep,
                     const std::map<std::string, std::string>& more, const World* devices) {
  check(keep >= 0, "save_checkpoint: keep must be at least 0, got {}", keep);
  const std::string folder = io::checkpoint_folder(out_dir, step);
  on_rank_0(world, [&] { io::begin_checkpoint(out_dir, step); });

  io::FileSummary files[2];
  const std::string names[2] = {io::shard_name("model", world.rank()),
                                io::shard_name("optim", world.rank())};
  std::string failure = failure_of([&] {
    const io::Metadata metadata = {{"step", std::to_string(step)}};
    files[0] = save_slices(folder + "/" + names[0], model, metadata);
    files[1] = save_slices(folder + "/" + names[1], optimizer, metadata);
    // Last: a rank that aborted a collective knows it before any rank reads a wrong value.
    if (devices) devices->check_well();
  });
  const std::vector<Written> all = from_all(
      world, Written{failure.empty() ? kWell : kFailed, files[0].bytes,
                     std::int64_t{files[0].crc32c}, files[1].bytes, std::int64_t{files[1].crc32c}});
  const auto failed =
      std::find_if(all.begin(), all.end(), [](const Written& w) { return w[0] == kFailed; });
  if (failed != all.end()) {
    const int rank = static_cast<int>(failed - all.begin());
    failure = message("save_checkpoint: rank {}: {}", rank, text_from(world, rank, failure));
  }
  std::vector<io::CheckpointFile> list;
  for (int r = 0; r < world.size(); ++r) {
    const Written& w = all[static_cast<std::size_t>(r)];
    list.push_back({io::shard_name("model", r), {w[1], static_cast<std::uint32_t>(w[2])}});
    list.push_back({io::shard_name("optim", r), {w[3], static_cast<std::uint32_t>(w[4])}});
  }
  on_rank_0(world, [&] {
    try {
      check_system(failure.empty(), "{}", failure);
      for (const auto& [name, text] : more)
        list.push_back({name, io::write_file(folder + "/" + name, text)});
      io::commit_checkpoint(out_dir, step, std::move(list), state, keep);
    } catch (const Error&) {
      // Free the disk space; report the error that led here.
      failure_of([&] { io::abandon_checkpoint(out_dir, step); });
      throw;
    }
  });
}

std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir) {
  // All ranks use the manifest that rank 0 has read: another copy may be damaged.
  std::optional<io::Checkpoint> found;
  // The first read error of a rank, else the first damage, else "".
  const auto verify_together = [&](const std::string& folder, const std::string& manifest) {
    std::array<std::int64_t, 1> own{kWell};
    std::string text;
    try {
      found = io::verify_checkpoint(folder, manifest, world.rank(), world.size());
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
