#include "weft/distributed/checkpoint.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr std::int64_t kWell = 0, kFailed = -2, kVerify = 1;

// What rank 0 says.
std::int64_t from_first(World& world, std::int64_t value) {
  const Tensor t = Tensor::zeros({1}, DType::i64);
  t.data<std::int64_t>()[0] = value;
  world.all().broadcast(t, 0).wait();
  return t.data<std::int64_t>()[0];
}

// What rank `from` says, on all of them.
std::string text_from(World& world, int from, const std::string& own) {
  const Tensor size = Tensor::full({1}, static_cast<double>(own.size()), DType::i64);
  world.all().broadcast(size, from).wait();
  std::string text = own;
  text.resize(static_cast<std::size_t>(size.item_int()));
  const Tensor bytes = Tensor::empty({size.item_int()}, DType::u8);
  std::copy(text.begin(), text.end(), bytes.data<std::uint8_t>());
  world.all().broadcast(bytes, from).wait();
  std::copy_n(bytes.data<std::uint8_t>(), text.size(), text.begin());
  return text;
}

// Throws what rank 0 has to say, if anything, on all of them: a job has one reason to stop.
void fail_as_first(World& world, const std::string& failure) {
  if (from_first(world, failure.empty() ? kWell : kFailed) == kFailed)
    throw Error(text_from(world, 0, failure), Fault::system);
}

// What every rank says, in their order.
template <std::size_t N>
std::vector<std::array<std::int64_t, N>> from_all(World& world,
                                                  const std::array<std::int64_t, N>& own) {
  const Tensor in = Tensor::from(std::span<const std::int64_t>(own), {1, std::int64_t{N}});
  const Tensor out = Tensor::empty({world.size(), std::int64_t{N}}, DType::i64);
  world.all().all_gather(out, in).wait();
  std::vector<std::array<std::int64_t, N>> all(static_cast<std::size_t>(world.size()));
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t i = 0; i < N; ++i) all[r][i] = out.data<std::int64_t>()[r * N + i];
  return all;
}

// The text of what f throws, or "".
template <class F>
std::string failure_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// What one rank has written; the checksums are of its model and its optimizer file.
using Written = std::array<std::int64_t, 5>;

}  // namespace

void save_checkpoint(World& world, const std::string& out_dir, std::int64_t step,
                     const Pieces& model, const Pieces& optimizer, const std::string& state,
                     int keep) {
  check(keep >= 0, "save_checkpoint: keep must be at least 0, got {}", keep);
  const std::string folder = io::checkpoint_folder(out_dir, step);
  std::string failure;
  if (world.rank() == 0) failure = failure_of([&] { io::begin_checkpoint(out_dir, step); });
  fail_as_first(world, failure);

  io::FileSummary files[2];
  const std::string names[2] = {io::shard_name("model", world.rank()),
                                io::shard_name("optim", world.rank())};
  failure = failure_of([&] {
    const io::Metadata metadata = {{"step", std::to_string(step)}};
    files[0] = save_pieces(folder + "/" + names[0], model, metadata);
    files[1] = save_pieces(folder + "/" + names[1], optimizer, metadata);
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
  if (world.rank() == 0) {
    if (failure.empty())
      failure =
          failure_of([&] { io::commit_checkpoint(out_dir, step, std::move(list), state, keep); });
    // Make room again; the error that led here is the one to report.
    if (!failure.empty()) failure_of([&] { io::abandon_checkpoint(out_dir, step); });
  }
  fail_as_first(world, failure);
}

std::optional<io::Checkpoint> find_checkpoint(World& world, const std::string& out_dir) {
  // All end with the manifest that rank 0 has read: another copy of it may be damaged.
  std::optional<io::Checkpoint> found;
  const auto verify_together = [&](const std::string& folder, const std::string& manifest) {
    const std::string fault = failure_of(
        [&] { found = io::verify_checkpoint(folder, manifest, world.rank(), world.size()); });
    const auto all = from_all(world, std::array{fault.empty() ? kWell : kFailed});
    const auto failed = std::find(all.begin(), all.end(), std::array{kFailed});
    return failed == all.end() ? ""
                               : text_from(world, static_cast<int>(failed - all.begin()), fault);
  };
  std::string failure;
  if (world.rank() == 0) {
    failure = failure_of([&] {
      io::find_checkpoint(out_dir, [&](const std::string& folder, const std::string& manifest) {
        from_first(world, kVerify);
        text_from(world, 0, folder);
        text_from(world, 0, manifest);
        return verify_together(folder, manifest);
      });
    });
    from_first(world, kWell);
  } else {
    while (from_first(world, kWell) == kVerify) {
      const std::string folder = text_from(world, 0, "");
      verify_together(folder, text_from(world, 0, ""));
    }
  }
  fail_as_first(world, failure);
  return found;
}

}  // namespace weft::distributed
