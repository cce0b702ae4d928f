// Damaged and crafted files: each is read or refused with an Error, with memory and steps
// proportional to its size. Steps are counted as allocations; no test here measures time.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/shard_files.h"
#include "weft/io/checkpoint.h"
#include "weft/io/json.h"
#include "weft/io/npy.h"
#include "weft/io/safetensors.h"
#include "weft/tests/damaged.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::hostile_files_test {
using test::error_of;
using test::heap_use;
using test::HeapUse;
using test::put;
using test::survives;

namespace {

std::string with_header(const std::string& header, std::size_t data = 0) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data, '\0');
}

std::string repeated(std::size_t n, const std::function<std::string(std::size_t)>& text) {
  std::string all;
  for (std::size_t i = 0; i < n; ++i) all += (i ? "," : "") + text(i);
  return all;
}

// A tensor without elements, in as few bytes as possible.
std::string smallest(std::size_t i) {
  return "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
}

}  // namespace

TEST_CASE("hostile files: damaged JSON") {
  survives(R"({"a":[1,2.5,-3e4,true,null,"x\u00e9\"y"],"b":{"c":{},"d":[[],[0]]},"n":18014398509})",
           [](const std::string& text) { io::Json::parse(text); });
}

TEST_CASE("hostile files: damaged safetensors and pieces of tensors") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  const Tensor values = Tensor::arange(0, 6, 1, DType::f32);
  io::save_safetensors(path, {{"w", values.view({2, 3})}, {"b", values.narrow(0, 0, 2)}},
                       {{"step", "3"}});
  survives(io::read_file(path), [&](const std::string& bytes) {
    put(path, bytes);
    io::load_safetensors(path);
  });
  const nn::ShardSpec rows{{4, 3}, {{0, {{0, 1}, {3, 4}}}}}, columns{{2, 6}, {{1, {{2, 5}}}}};
  distributed::save_slices(path, {{"r", {values.view({2, 3}), distributed::ShardSlice::of(rows)}},
                                  {"c", {values.narrow(0, 0, 3), {columns, 2, 5}}}});
  survives(io::read_file(path), [&](const std::string& bytes) {
    put(path, bytes);
    const distributed::ShardFiles files({path});
    for (const std::string& name : files.names()) error_of([&] { files.whole(name); });
  });
}

TEST_CASE("hostile files: damaged NumPy files") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  io::save_npy(path, Tensor::arange(0, 12, 1, DType::f32).view({3, 4}));
  survives(io::read_file(path), [&](const std::string& bytes) {
    put(path, bytes);
    io::load_npy(path);
  });
}

TEST_CASE("hostile files: damaged manifests") {
  const test::TempFolder folder;
  io::save_checkpoint(folder.path(), 7, {{{"w", Tensor::zeros({3})}}, {{"m", Tensor::zeros({3})}}});
  const std::string latest = folder / "checkpoints/latest.json";
  const std::string own = folder / "checkpoints/step_00000007/manifest.json";
  survives(io::read_file(latest), [&](const std::string& bytes) {
    put(latest, bytes);
    put(own, bytes);
    io::find_checkpoint(folder.path());
  });
}

TEST_CASE("hostile files: a manifest's sizes must not overflow and it lists each file once") {
  const test::TempFolder folder;
  io::save_checkpoint(folder.path(), 7, {{{"w", Tensor::zeros({3})}}, {{"m", Tensor::zeros({3})}}});
  const std::string step = folder / "checkpoints/step_00000007";
  std::string list;
  for (const char* name : {"model-r000.safetensors", "optim-r000.safetensors", "state.json"})
    list += std::string(list.empty() ? "" : ",") + R"({"name":")" + name +
            R"(","bytes":9223372036854775807,"crc32c":"00000000"})";
  const auto manifest = [&](const std::string& files) {
    return R"({"step":7,"files":[)" + files + "]}";
  };
  const std::string start = "checkpoint: the manifest of '" + step + "' must ";
  // With two ranks, the third file goes to the rank that already has the first.
  CHECK(error_of([&] {
          io::verify_checkpoint(step, manifest(list), 1, 2);
        }).find("must have 9223372036854775807 bytes") != std::string::npos);
  CHECK(error_of([&] {
          io::verify_checkpoint(step, manifest(list + R"(,{"name":"x","bytes":-1})"), 3, 4);
        }) == start + "have sizes that can be added, got -1");
  CHECK(error_of([&] {
          io::verify_checkpoint(step, manifest(list + R"(,{"name":"state.json","bytes":1})"));
        }) == start + "list state.json once");
}

TEST_CASE("hostile files: many tiny values take proportional memory") {
  const std::size_t n = 1'000'000;
  const std::string text = "[" + repeated(n, [](std::size_t) { return "[]"; }) + "]";
  HeapUse use = heap_use([&] {
    CHECK(error_of([&] { io::Json::parse(text); }).starts_with("json: too many values"));
  });
  CHECK(use.peak < 60'000'000);
  const std::string keys =
      "{" + repeated(200'000, [](std::size_t i) { return "\"" + std::to_string(i) + "\":1"; }) +
      "}";
  use = heap_use([&] { CHECK(io::Json::parse(keys).members().size() == 200'000); });
  CHECK(use.peak < 60'000'000);

  const test::TempFolder folder;
  const std::string path = folder / "x";
  put(path, with_header(R"({"a":)" + text + "}"));
  use = heap_use([&] {
    CHECK(error_of([&] { io::SafetensorsFile::open(path); }).find("too many values") !=
          std::string::npos);
  });
  CHECK(use.peak < 60'000'000);
}

TEST_CASE(
    "hostile files: thousands of tensors and pieces take memory and steps linear in the file") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  const auto opens = [&](std::size_t n, bool pieces) {
    std::string header = repeated(n, smallest);
    if (pieces)
      header +=
          R"(,"__metadata__":{"pieces":"{)" +
          repeated(n,
                   [](std::size_t i) {
                     return R"(\")" + std::to_string(i) +
                            R"(\":{\"whole\":[9,0],\"cuts\":[{\"axis\":0,\"ranges\":[[1,2]]}],)" +
                            R"(\"begin\":0,\"end\":0})";
                   }) +
          R"(}"})";
    put(path, with_header("{" + header + "}"));
    const HeapUse use = heap_use([&] {
      const distributed::ShardFiles files({path});
      CHECK(files.names().size() == n);
      CHECK(files.shape("7") == (pieces ? Shape{9, 0} : Shape{0}));
    });
    CHECK(use.peak < 3 * static_cast<long>(header.size()));
    return use.news;
  };
  for (const bool pieces : {false, true}) {
    const long few = opens(5'000, pieces), many = opens(20'000, pieces);
    CHECK(many < 5 * few);
    CHECK(few < 5'000 * 60);
  }
}

TEST_CASE("hostile files: huge pieces described by a few bytes are checked against the file") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  const auto reading = [&](const std::string& whole, const std::string& cuts, std::int64_t end) {
    const Tensor values = Tensor::zeros({end}, DType::u8);
    io::save_safetensors(path, {{"w", values}},
                         {{"pieces", R"({"w":{"whole":)" + whole + R"(,"cuts":)" + cuts +
                                         R"(,"begin":0,"end":)" + std::to_string(end) + "}}"}});
    std::string error;
    const std::int64_t before = memory_stats(kCpu).live_bytes;
    reset_peak(kCpu);
    const HeapUse use =
        heap_use([&] { error = error_of([&] { distributed::ShardFiles({path}).whole("w"); }); });
    CHECK(use.peak < 1'000'000);
    CHECK(memory_stats(kCpu).peak_bytes - before < 1'000'000);
    return error;
  };
  // Regression: 2^50 empty rows were visited one by one.
  CHECK(reading("[1125899906842624,0]", R"([{"axis":1,"ranges":[]}])", 0) == "no error");
  CHECK(reading("[1125899906842624,2]", R"([{"axis":1,"ranges":[[0,1]]}])", 1) ==
        "checkpoint: element 1 of w [1125899906842624, 2] is in none of the files");
  CHECK(reading("[1125899906842624]", "[]", 3) ==
        "checkpoint: element 3 of w [1125899906842624] is in none of the files");
  CHECK(reading("[0,4611686018427387904,4611686018427387904]", "[]", 0)
            .ends_with("their product a number, got 4611686018427387904"));
  CHECK(reading("[4,4]", R"([{"axis":4294967296,"ranges":[[0,1]]}])", 4)
            .ends_with("a cut must be along an axis of [4, 4], got axis 4294967296"));
  CHECK(reading("[4,4]", R"([{"axis":0,"ranges":[[0,1]]},{"axis":0,"ranges":[[0,1]]}])", 4)
            .ends_with("an axis must be cut once, got two cuts of axis 0"));
}

}  // namespace weft::hostile_files_test
