#include "weft/train/agreement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/distributed/agree.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

// A network file system may show a new file to another machine only after a while.
constexpr int kLooks = 30;
constexpr std::chrono::milliseconds kPause{100};

bool sees(const std::string& file, const std::string& text) {
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kPause);
    try {
      if (io::exists(file) && io::read_file(file) == text) return true;
    } catch (const Error&) {  // it cannot be read, or not yet
    }
  }
  return false;
}

// "rank 2" or "ranks 1, 3".
std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += message("{}{}", i ? ", " : "", ranks[i]);
  return text;
}

std::vector<int> unlike_rank_0(distributed::World& world, std::int64_t own) {
  std::vector<int> others;
  // The collectives of a planned world move nothing, and the sums keep their values.
  const Tensor low = Tensor::full({1}, 0, DType::i64), high = Tensor::full({1}, 0, DType::i64);
  *low.data<std::int64_t>() = *high.data<std::int64_t>() = own;
  world.all().all_reduce(low, distributed::Reduce::min).wait();
  world.all().all_reduce(high, distributed::Reduce::max).wait();
  if (*low.data<std::int64_t>() == *high.data<std::int64_t>()) return others;
  const auto all = distributed::from_all(world, std::array{own});
  for (int r = 1; r < world.size(); ++r)
    if (all[static_cast<std::size_t>(r)] != all[0]) others.push_back(r);
  return others;
}

}  // namespace

void check_shared_folder(distributed::World& world, const std::string& path) {
  std::string text, file;
  distributed::on_rank_0(world, [&] {
    std::random_device random;
    text = message("{}-{}", random(), random());
    file = path + "/.shared-" + text;
    io::write_file(file, text);
  });
  text = distributed::text_from(world, 0, text);
  file = path + "/.shared-" + text;
  const auto seen =
      distributed::from_all(world, std::array{std::int64_t{world.rank() == 0 || sees(file, text)}});
  distributed::on_rank_0(world, [&] { io::remove_all(file); });
  std::vector<int> blind;
  for (int r = 0; r < world.size(); ++r)
    if (seen[static_cast<std::size_t>(r)][0] == 0) blind.push_back(r);
  check(blind.empty(),
        "--out: '{}' must be a folder that all ranks share, and {} not see what rank 0 writes "
        "there; name one on a shared file system",
        path, listed(blind) + (blind.size() == 1 ? " does" : " do"));
}

void check_same_settings(distributed::World& world, std::int64_t settings) {
  const std::vector<int> others = unlike_rank_0(world, settings);
  check(
      others.empty(),
      "ranks must be started with the same flags and config, and those of {} differ from rank 0's",
      listed(others));
}

void check_same_weights(distributed::World& world, const std::string& path,
                        const distributed::ShardFiles& files) {
  const std::vector<int> others = unlike_rank_0(world, files.fingerprint());
  check(others.empty(),
        "'{}': all ranks must read the same weights, and the files of {} differ from rank 0's",
        path, listed(others));
}

void check_same_data(distributed::World& world, const data::Dataset& data,
                     const std::string& what) {
  const std::int64_t size = data.size();
  const auto all =
      distributed::from_all(world, std::array{size, std::int64_t{data::fingerprint(data)}});
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const auto& a) { return a != all[0]; });
  if (other == all.end()) return;
  const auto rank = other - all.begin();
  check((*other)[0] == all[0][0],
        "{}: all ranks must read the same, and rank {} has {} rows where rank 0 has {}", what, rank,
        (*other)[0], all[0][0]);
  check(false,
        "{}: all ranks must read the same, and rank {}'s {} rows have other contents than rank 0's",
        what, rank, size);
}

}  // namespace weft::train
