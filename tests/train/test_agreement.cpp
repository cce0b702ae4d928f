// What ranks must see alike before they train: the run's folder, flags, weights and data.
#include <doctest/doctest.h>

#include "weft/io/file.h"
#include "weft/io/safetensors.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/agreement.h"

namespace weft::train::agreement_test {
namespace {

using distributed::run_ranks;
using distributed::World;
using test::error_of;

// The error of every rank.
template <class F>
std::vector<std::string> errors(int ranks, F f) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks,
            [&](World& w) { all[static_cast<std::size_t>(w.rank())] = error_of([&] { f(w); }); });
  return all;
}

std::vector<std::string> same(int ranks, const std::string& text) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), text);
}

data::TensorDataset numbers(std::int64_t rows, double last, DType dtype = DType::f32) {
  const Tensor x = Tensor::arange(0, static_cast<double>(rows), 1, dtype).view({rows, 1});
  x.narrow(0, rows - 1, 1).fill_(last);
  return {x, Tensor::zeros({rows}, DType::i32)};
}

}  // namespace

TEST_CASE("agreement: a folder that some ranks do not see is refused on all") {
  const test::TempFolder shared, other;
  CHECK(errors(3, [&](World& w) { check_shared_folder(w, shared.path()); }) == same(3, "no error"));
  CHECK(io::list_directory(shared.path()).empty());
  const auto refused = [&](const char* who) {
    return same(4, message("--out: '{}' must be a folder that all ranks share, and {} not see what "
                           "rank 0 writes there; name one on a shared file system",
                           shared.path(), who));
  };
  const auto apart = [&](auto is_apart) {
    auto all = errors(4, [&](World& w) {
      check_shared_folder(w, is_apart(w.rank()) ? other / "none" : shared.path());
    });
    // Each names the folder as it was given to it.
    for (std::string& text : all)
      if (const auto at = text.find(other / "none"); at != std::string::npos)
        text.replace(at, (other / "none").size(), shared.path());
    return all;
  };
  CHECK(apart([](int rank) { return rank == 2; }) == refused("rank 2 does"));
  CHECK(apart([](int rank) { return rank % 2 == 1; }) == refused("ranks 1, 3 do"));
  CHECK(io::list_directory(shared.path()).empty());
  CHECK(errors(2, [&](World& w) { check_shared_folder(w, other / "none"); })[1].starts_with(
      "write: cannot create '"));
}

TEST_CASE("agreement: data that differ between ranks are refused on all") {
  const auto check_data = [](auto dataset_of) {
    return errors(3, [&](World& w) { check_same_data(w, dataset_of(w.rank()), "training data"); });
  };
  for (const std::int64_t rows : {1, 2, 63, 64, 1000})
    CHECK(check_data([&](int) { return numbers(rows, 7); }) == same(3, "no error"));
  CHECK(check_data([](int rank) { return numbers(rank == 1 ? 9 : 10, 7); }) ==
        same(3,
             "training data: all ranks must read the same, and rank 1 has 9 rows where rank 0 has "
             "10"));
  const std::string other =
      "training data: all ranks must read the same, and rank 2's 1000 rows have other contents "
      "than rank 0's";
  CHECK(check_data([](int rank) { return numbers(1000, rank == 2 ? 8 : 7); }) == same(3, other));
  CHECK(check_data([](int rank) {
          return numbers(1000, 7, rank == 2 ? DType::i32 : DType::f32);
        }) == same(3, other));
}

TEST_CASE("agreement: weights and settings that differ name the ranks") {
  const auto settings = [](auto of_rank) {
    return errors(4, [&](World& w) { check_same_settings(w, of_rank(w.rank())); });
  };
  CHECK(settings([](int) { return std::int64_t{-1}; }) == same(4, "no error"));
  CHECK(settings([](int rank) { return std::int64_t{rank % 2}; }) ==
        same(4,
             "ranks must be started with the same flags and config, and those of ranks 1, 3 differ "
             "from rank 0's"));
  const test::TempFolder folder;
  const auto file = [&](double value) {
    const std::string path = folder / message("{}.safetensors", value);
    io::save_safetensors(path, {{"w", Tensor::full({3}, value)}});
    return std::vector<std::string>{path};
  };
  const std::vector<std::string> files[] = {file(1), file(2)};
  const auto weights = [&](auto of_rank) {
    return errors(3, [&](World& w) {
      const int which = of_rank(w.rank());
      check_same_weights(w, "w.safetensors", distributed::ShardFiles(files[which]));
    });
  };
  CHECK(weights([](int) { return 1; }) == same(3, "no error"));
  CHECK(weights([](int rank) { return rank == 2 ? 1 : 0; }) ==
        same(3,
             "'w.safetensors': all ranks must read the same weights, and the files of rank 2 "
             "differ from "
             "rank 0's"));
}

}  // namespace weft::train::agreement_test
