#include <doctest/doctest.h>
#include <sys/resource.h>

#include <vector>

#include "weft/distributed/shard_files.h"
#include "weft/io/file.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::shard_files_test {
namespace {

using test::error_of;
using Cut = nn::ShardSpec::Cut;

// Element i of a whole tensor is i.
Tensor counting(const Shape& shape, DType dtype = DType::f32) {
  return Tensor::arange(0, static_cast<double>(shape.numel()), 1, dtype).view(shape);
}

SlicedTensor whole_tensor(const Tensor& t) { return {t, ShardSlice::of(t.shape())}; }

// A whole (6, 4): one file has rows 0, 1 and 4, the other has the remaining rows in two slices.
struct Files {
  test::TempFolder folder;
  std::vector<std::string> paths;
  const nn::ShardSpec upper{{6, 4}, {Cut{0, {{0, 2}, {4, 5}}}}},
      lower{{6, 4}, {Cut{0, {{2, 4}, {5, 6}}}}};

  explicit Files(bool complete = true) {
    const Tensor w = counting({6, 4}, DType::f64);
    const Tensor above = Tensor::of({0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19}, {3, 4}, DType::f64);
    write({{"w", {above, ShardSlice::of(upper)}}, {"norm", whole_tensor(counting({3}))}});
    write({{"w", {Tensor::of({8, 9, 10, 11, 12}, {5}, DType::f64), {lower, 0, 5}}}});
    if (complete)
      write({{"w", {Tensor::of({13, 14, 15, 20, 21, 22, 23}, {7}, DType::f64), {lower, 5, 12}}},
             {"empty", whole_tensor(Tensor::zeros({0, 4}))}});
  }
  void write(const SlicedTensors& slices) {
    paths.push_back(folder / "shard" + std::to_string(paths.size()));
    save_slices(paths.back(), slices);
  }
};

}  // namespace

TEST_CASE("shard files: ranges of rows and of elements form the whole tensor") {
  const Files f;
  const ShardFiles files(f.paths);
  CHECK(files.names() == std::vector<std::string>{"empty", "norm", "w"});
  CHECK(files.shape("w") == Shape{6, 4});
  CHECK(files.dtype("w") == DType::f64);
  CHECK(test::different_bits(files.whole("w"), counting({6, 4}, DType::f64)) == "");
  CHECK(test::different_bits(files.whole("norm"), counting({3})) == "");
  CHECK(files.whole("empty").shape() == Shape{0, 4});
}

TEST_CASE("shard files: more files than a process may open") {
  const test::TempFolder folder;
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) {
    const nn::ShardSpec row{{40, 2}, {Cut{0, {{i, i + 1}}}}};
    paths.push_back(folder / std::to_string(i));
    save_slices(paths.back(), {{"w", {Tensor::full({1, 2}, i), ShardSlice::of(row)}}});
  }
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const auto used = static_cast<rlim_t>(io::list_directory("/proc/self/fd").size());
  const rlimit few{used + 12, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const std::string failure = error_of([&] {
    const ShardFiles files(paths);
    const Tensor w = files.whole("w");
    for (int i = 0; i < 40; ++i) CHECK(w.select(0, i).select(0, 1).item() == i);
  });
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(failure == "no error");
}

TEST_CASE("shard files: rank 0 reads the headers for all ranks") {
  const Files f;
  run_ranks(2, [&](World& w) {
    std::vector<std::string> paths = f.paths;
    if (w.rank() == 1)
      for (std::size_t i = 1; i < paths.size(); ++i) paths[i] = "/nowhere/" + std::to_string(i);
    const ShardFiles files(w, paths);
    CHECK(files.names() == std::vector<std::string>{"empty", "norm", "w"});
    CHECK(files.shape("w") == Shape{6, 4});
    CHECK(test::different_bits(files.whole("norm"), counting({3})) == "");
    if (w.rank() == 1)
      CHECK(error_of([&] { files.whole("w"); }) ==
            "read: cannot open '/nowhere/1': No such file or directory");
  });
  std::string heard;
  CHECK(error_of([&] {
          run_ranks(2, [&](World& w) {
            const std::vector<std::string> paths{w.rank() == 0 ? "/nowhere/0" : f.paths[0]};
            const std::string own = error_of([&] { ShardFiles(w, paths); });
            if (w.rank() == 1) heard = own;
          });
        }) == "no error");
  CHECK(heard == "read: cannot open '/nowhere/0': No such file or directory");
}

TEST_CASE("shard files: a file of another size than when it was listed is refused") {
  Files f;
  const ShardFiles files(f.paths);
  save_slices(f.paths[0], {{"norm", whole_tensor(counting({30}))}});
  CHECK(error_of([&] {
          files.whole("norm");
        }).starts_with("safetensors: '" + f.paths[0] + "' must have "));
}

TEST_CASE("shard files: any other sharding reads its own part") {
  const Files f;
  const ShardFiles files(f.paths);
  const Tensor w = counting({6, 4}, DType::f64);
  const auto read = [&](const ShardSlice& slice, const Shape& shape, DType dtype = DType::f64) {
    const Tensor out = Tensor::full(shape, -1, dtype);
    files.read_into("w", slice, out);
    return out;
  };
  const nn::ShardSpec columns{{6, 4}, {Cut{1, {{1, 3}}}}};
  CHECK(test::different_bits(read(ShardSlice::of(columns), {6, 2}), w.narrow(1, 1, 2)) == "");
  const nn::ShardSpec corner{{6, 4}, {Cut{0, {{1, 2}, {3, 6}}}, Cut{1, {{0, 1}, {3, 4}}}}};
  CHECK(test::different_bits(read(ShardSlice::of(corner), {4, 2}),
                             Tensor::of({4, 7, 12, 15, 16, 19, 20, 23}, {4, 2}, DType::f64)) == "");
  CHECK(test::different_bits(read({corner, 3, 6}, {3}),
                             Tensor::of({15, 16, 19}, {3}, DType::f64)) == "");
  // Exactly one slice of a file, and a read into another dtype.
  CHECK(test::different_bits(read({f.lower, 0, 5}, {5}),
                             Tensor::of({8, 9, 10, 11, 12}, {5}, DType::f64)) == "");
  CHECK(test::different_bits(read(ShardSlice::of({6, 4}), {6, 4}, DType::f32), counting({6, 4})) ==
        "");
  CHECK(read({columns, 4, 4}, {0}).numel() == 0);
}

TEST_CASE("shard files: a reader of another layout reads the bytes of its slices and no more") {
  const test::TempFolder folder;
  const std::int64_t rows = 48, columns = 4096, width = 4;
  const Tensor w = counting({rows, columns});
  std::vector<std::string> paths;
  for (std::int64_t r = 0; r < 4; ++r) {  // four writers, each of a fourth of the elements
    paths.push_back(folder / std::to_string(r));
    const std::int64_t n = rows * columns / 4;
    save_slices(paths.back(), {{"w",
                                {w.view({-1}).narrow(0, r * n, n),
                                 {nn::ShardSpec{{rows, columns}, {}}, r * n, (r + 1) * n}}}});
  }
  const ShardFiles files(paths);
  const auto read = [&](const ShardSlice& slice, const Tensor& want, DType dtype = DType::f32) {
    const Tensor out = Tensor::full(want.shape(), -1, dtype);
    const std::int64_t before = test::bytes_read();
    files.read_into("w", slice, out);
    CHECK(test::different_bits(out, want.to(dtype)) == "");
    return test::bytes_read() - before;
  };
  for (const int readers : {2, 3, 8})
    for (std::int64_t r = 0; r < readers; ++r) {
      CAPTURE(readers);
      const std::int64_t n = rows * columns / readers;  // of elements, as of an optimizer's state
      CHECK(read({nn::ShardSpec{{rows, columns}, {}}, r * n, (r + 1) * n},
                 w.view({-1}).narrow(0, r * n, n)) == n * width);
      const nn::ShardSpec of_rows{{rows, columns},
                                  {Cut{0, {{r * rows / readers, (r + 1) * rows / readers}}}}};
      CHECK(read(ShardSlice::of(of_rows), w.narrow(0, r * rows / readers, rows / readers),
                 DType::f64) == n * width);
    }
  // Half of the columns leave gaps of two pages.
  CHECK(read(ShardSlice::of(nn::ShardSpec{{rows, columns}, {Cut{1, {{2048, 4096}}}}}),
             w.narrow(1, 2048, 2048).contiguous()) == rows * columns * width / 2);
  // Gaps of less than a page are read, of what lies between: here all but one gap a file.
  CHECK(read(ShardSlice::of(nn::ShardSpec{{rows, columns}, {Cut{1, {{0, 3584}}}}}),
             w.narrow(1, 0, 3584).contiguous()) == (rows * columns - 4 * 512) * width);
}

TEST_CASE("shard files: an element that a slice needs and no file has is an error") {
  const Files f(false);
  const ShardFiles files(f.paths);
  const nn::ShardSpec there{{6, 4}, {Cut{0, {{0, 2}}}}}, missing{{6, 4}, {Cut{0, {{3, 6}}}}};
  const Tensor out = Tensor::empty({2, 4}, DType::f64);
  files.read_into("w", ShardSlice::of(there), out);
  CHECK(test::different_bits(out, counting({2, 4}, DType::f64)) == "");
  CHECK(error_of([&] {
          files.read_into("w", ShardSlice::of(missing), Tensor::empty({3, 4}, DType::f64));
        }) == "checkpoint: element 13 of w [6, 4] is in none of the files");
}

TEST_CASE("shard files: a tensor without elements may be in no file") {
  const Files files;
  const ShardFiles all(files.paths);
  const StateDict read =
      all.like({{"norm", Tensor::zeros({3})}, {"nothing", Tensor::zeros({0, 3})}});
  CHECK(read.at("nothing").shape() == Shape{0, 3});
  CHECK(!all.like({{"norm", Tensor::zeros({3})}, {"more", Tensor::zeros({1})}}).contains("more"));
}

TEST_CASE("shard files: errors name the problem") {
  SUBCASE("an element in none of the files") {
    const Files f(false);
    const ShardFiles files(f.paths);
    CHECK(error_of([&] { files.whole("w"); }) ==
          "checkpoint: element 13 of w [6, 4] is in none of the files");
    CHECK(error_of([&] { files.whole("v"); }) == "checkpoint: there is no tensor 'v'");
    CHECK(error_of([&] {
            files.read_into("w", ShardSlice::of({6, 5}), Tensor::zeros({6, 5}));
          }) == "checkpoint: w must have shape [6, 5], got [6, 4]");
    CHECK(error_of([&] {
            files.read_into("w", ShardSlice::of({6, 4}), Tensor::zeros({5}));
          }) == "checkpoint: w needs room for 24 values, got 5");
  }
  SUBCASE("files that disagree") {
    Files f;
    f.write({{"norm", whole_tensor(counting({4}))}});
    CHECK(error_of([&] { ShardFiles files(f.paths); }) ==
          "'" + f.paths[3] + "': norm must be f32 [3] as in the other files, got f32 [4]");
  }
  SUBCASE("invalid metadata") {
    const test::TempFolder folder;
    const auto opening = [&](const std::string& slices) {
      io::save_safetensors(folder / "f", {{"w", counting({4})}}, {{"pieces", slices}});
      const std::string text = error_of([&] { ShardFiles files({folder / "f"}); });
      const std::string start = "'" + (folder / "f") + "': ";
      REQUIRE(text.starts_with(start));
      return text.substr(start.size());
    };
    const auto slice = [](const std::string& cuts, const std::string& end) {
      return R"({"w":{"whole":[6,4],"cuts":[)" + cuts + R"(],"begin":0,"end":)" + end + "}}";
    };
    CHECK(opening(slice("", "5")) == "w must have 5 values, got 4");
    CHECK(opening(slice("", "25")) ==
          "slice of w: begin and end must be among 24 elements, got 0 and 25");
    CHECK(opening(slice(R"({"axis":2,"ranges":[]})", "4")) ==
          "slice of w: shard_spec: a cut must be along an axis of [6, 4], got axis 2");
    CHECK(opening(slice(R"({"axis":0,"ranges":[[1]]})", "4")) ==
          "slice of w: a range must have two ends");
    CHECK(
        opening(slice(R"({"axis":0,"ranges":[[4,9]]})", "4")) ==
        "slice of w: shard_spec: the ranges of axis 0 of [6, 4] must ascend inside it, got [4, 9) "
        "after 0");
    CHECK(opening(R"({"w":{"whole":[4611686018427387904,4]}})") ==
          "slice of w: sizes must be at least 0 and their product a number, got 4");
    CHECK(opening("{").starts_with("pieces: "));
  }
  SUBCASE("values that do not match the slice") {
    CHECK(error_of([&] {
            save_slices("nowhere", {{"w", {counting({3}), ShardSlice::of({4})}}});
          }) == "save_slices: w must have 4 values, got 3");
  }
}

}  // namespace weft::distributed::shard_files_test
