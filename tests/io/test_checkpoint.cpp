#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/values.h"
#include "weft/core/error.h"
#include "weft/io/checkpoint.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::checkpoint_test {
using test::error_of;

namespace {

Tensor filled(float value) {
  const std::vector<float> v(6, value);
  return Tensor::from<float>(v, {2, 3});
}

io::CheckpointContent content(float value) {
  return {.model = {{"w", filled(value)}},
          .optimizer = {{"w.m", filled(10 * value)}, {"w.v", filled(100 * value)}},
          .state = "{\"value\":" + std::to_string(static_cast<int>(value)) + "}"};
}

/// Reads a checkpoint back, checks that all parts agree, and returns the value it was made with.
int value_of(const io::Checkpoint& c) {
  const auto first = [](const std::string& path, const char* name) {
    return io::SafetensorsFile::open(path).tensor(name).data<float>()[0];
  };
  const float value = first(c.shards("model").at(0), "w");
  CHECK(first(c.shards("optim").at(0), "w.m") == 10 * value);
  CHECK(first(c.shards("optim").at(0), "w.v") == 100 * value);
  CHECK(c.state() == "{\"value\":" + std::to_string(static_cast<int>(value)) + "}");
  return static_cast<int>(value);
}

void damage(const std::string& path) {
  std::string bytes = io::read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  io::write_file(path, bytes);
}

std::string checksum(const std::string& path) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", io::summarize(path).crc32c);
  return text;
}

std::vector<std::string> logged;
struct LogCapture {
  LogCapture() {
    logged.clear();
    set_log_handler([](std::string_view line) { logged.emplace_back(line); });
  }
  ~LogCapture() { set_log_handler(nullptr); }
};

}  // namespace

TEST_CASE("checkpoint: save, find, replace and prune") {
  const test::TempFolder out;
  const std::string root = out / "checkpoints";
  CHECK_FALSE(io::find_checkpoint(out.path()));
  CHECK_FALSE(io::find_checkpoint(out / "nowhere"));

  io::save_checkpoint(out.path(), 100, content(1));
  CHECK(io::list_directory(root) == std::vector<std::string>{"latest.json", "step_00000100"});
  CHECK(io::list_directory(root + "/step_00000100") ==
        std::vector<std::string>{"manifest.json", "model-r000.safetensors",
                                 "optim-r000.safetensors", "state.json"});
  CHECK(io::read_file(root + "/latest.json") ==
        io::read_file(root + "/step_00000100/manifest.json"));
  auto found = io::find_checkpoint(out.path());
  REQUIRE(found);
  CHECK(found->step == 100);
  CHECK(found->folder == root + "/step_00000100");
  CHECK(value_of(*found) == 1);

  for (int i = 2; i <= 4; ++i) io::save_checkpoint(out.path(), 100 * i, content(float(i)), 2);
  CHECK(io::list_directory(root) ==
        std::vector<std::string>{"latest.json", "step_00000300", "step_00000400"});
  CHECK(value_of(*io::find_checkpoint(out.path())) == 4);

  io::save_checkpoint(out.path(), 400, content(5), 2);  // the same step again
  CHECK(io::list_directory(root) ==
        std::vector<std::string>{"latest.json", "step_00000300", "step_00000400"});
  CHECK(value_of(*io::find_checkpoint(out.path())) == 5);

  io::save_checkpoint(out.path(), 350, content(6), 2);  // a run that was rewound
  CHECK(io::list_directory(root) ==
        std::vector<std::string>{"latest.json", "step_00000300", "step_00000350"});
  CHECK(io::find_checkpoint(out.path())->step == 350);
}

TEST_CASE("checkpoint: load returns what was saved last") {
  const test::TempFolder out;
  CHECK(error_of([&] { io::load_checkpoint(out.path()); }) ==
        "load_checkpoint: '" + out.path() + "' has no checkpoint");
  const Tensor w = Tensor::of({1, 2});
  io::save_checkpoint(out.path(), 1, {{{"w", w}}, {{"w.m", w * 2}}, "{\"epoch\":1}"});
  io::save_checkpoint(out.path(), 2, {{{"w", w * 3}}, {{"w.m", w * 4}}, "{\"epoch\":2}"});
  const io::CheckpointContent last = io::load_checkpoint(out.path());
  CHECK(equal(last.model.at("w"), w * 3));
  CHECK(equal(last.optimizer.at("w.m"), w * 4));
  CHECK(last.state == "{\"epoch\":2}");

  const std::string folder = io::begin_checkpoint(out.path(), 3);
  std::vector<io::CheckpointFile> files;
  for (const char* kind : {"model", "optim"})
    for (const int rank : {0, 1}) {
      const std::string name = io::shard_name(kind, rank);
      files.push_back({name, io::save_safetensors(folder + "/" + name, {{"w", w}})});
    }
  io::commit_checkpoint(out.path(), 3, files, "{}");
  CHECK(error_of([&] { io::load_checkpoint(out.path()); }) ==
        "load_checkpoint: '" + out / "checkpoints/step_00000003" +
            "' must have 1 model file, got 2");
}

TEST_CASE("checkpoint: the manifest lists size and checksum of every file") {
  const test::TempFolder out;
  io::save_checkpoint(out.path(), 7, {});
  const std::string folder = out / "checkpoints/step_00000007";
  const auto line = [&](const char* name) {
    const std::string path = folder + "/" + name;
    return "{\"name\":\"" + std::string(name) +
           "\",\"bytes\":" + std::to_string(io::file_size(path)) + ",\"crc32c\":\"" +
           checksum(path) + "\"}";
  };
  CHECK(io::read_file(folder + "/manifest.json") ==
        "{\"step\":7,\"folder\":\"step_00000007\",\"files\":[" + line("model-r000.safetensors") +
            "," + line("optim-r000.safetensors") + "," + line("state.json") + "]}\n");
}

TEST_CASE("checkpoint: a damaged newest checkpoint is reported and the previous one is used") {
  const test::TempFolder out;
  const LogCapture capture;
  io::save_checkpoint(out.path(), 1, content(1));
  io::save_checkpoint(out.path(), 2, content(2));
  const std::string folder = out / "checkpoints/step_00000002";
  const std::string file = folder + "/model-r000.safetensors";

  SUBCASE("a changed byte") {
    const std::string want = checksum(file);
    damage(file);
    const std::string got = checksum(file);
    CHECK(io::find_checkpoint(out.path())->step == 1);
    CHECK(logged == std::vector<std::string>{"checkpoint: '" + file + "' must have CRC-32C " +
                                             want + ", got " + got + "; going back to step 1"});
  }
  SUBCASE("a short file") {
    const auto size = io::file_size(file);
    io::write_file(file, "x");
    CHECK(io::find_checkpoint(out.path())->step == 1);
    CHECK(logged ==
          std::vector<std::string>{"checkpoint: '" + file + "' must have " + std::to_string(size) +
                                   " bytes, got 1; going back to step 1"});
  }
  SUBCASE("a missing file") {
    io::remove_all(file);
    CHECK(io::find_checkpoint(out.path())->step == 1);
    CHECK(logged ==
          std::vector<std::string>{"checkpoint: '" + file + "' is missing; going back to step 1"});
  }
  SUBCASE("with a truncated latest.json the newest complete folder counts") {
    io::write_file(out / "checkpoints/latest.json", "{\"step\":");
    CHECK(io::find_checkpoint(out.path())->step == 2);
    CHECK(logged == std::vector<std::string>{"checkpoint: '" + out / "checkpoints/latest.json" +
                                             "': unexpected end at byte 8; going back to step 2"});
  }
  SUBCASE("all damaged") {
    damage(out / "checkpoints/step_00000001/state.json");
    io::remove_all(file);
    CHECK(error_of([&] { io::find_checkpoint(out.path()); }) ==
          "checkpoint: '" + file + "' is missing; no earlier checkpoint in '" +
              out / "checkpoints" + "' is intact");
  }
  SUBCASE("a manifest that omits a file") {
    io::write_file(folder + "/manifest.json", R"({"step":2,"files":[]})");
    CHECK(error_of([&] { io::open_checkpoint(folder); }) ==
          "checkpoint: the manifest of '" + folder + "' does not list model-r000.safetensors");
  }
  SUBCASE("a folder that is not a checkpoint") {
    CHECK(error_of([&] { io::open_checkpoint(out.path()); }) ==
          "checkpoint: '" + out / "manifest.json" + "' is missing");
  }
}

TEST_CASE("checkpoint: a full disk at any byte keeps the previous one and the next save works") {
  int refused = 0;
  for (std::int64_t room = 0;; room += 41) {
    const test::TempFolder out;
    io::save_checkpoint(out.path(), 1, content(1), 1);
    io::testing::fail_writes_after(room);
    const std::string text = error_of([&] { io::save_checkpoint(out.path(), 2, content(2), 1); });
    io::testing::fail_writes_after(-1);
    if (text == "no error") break;
    ++refused;
    CHECK(text.starts_with("write: cannot write '" + out / "checkpoints/"));
    CHECK(text.ends_with("': No space left on device"));
    CHECK(value_of(*io::find_checkpoint(out.path())) == 1);
    for (const std::string& name : io::list_directory(out / "checkpoints"))
      CHECK_FALSE(name.ends_with(".tmp"));
    io::save_checkpoint(out.path(), 3, content(3), 1);
    CHECK(value_of(*io::find_checkpoint(out.path())) == 3);
  }
  CHECK(refused > 10);
}

TEST_CASE("checkpoint: after a kill at any step of a save a complete one is found") {
  const LogCapture capture;
  for (const bool exchange : {true, false})
    for (const int second : {2, 1}) {  // a new step, and the same step again
      test::refuse_exchange(!exchange);
      int crashes = 0, old_found = 0;
      for (std::int64_t operations = 0;; ++operations) {
        const test::TempFolder out;
        io::save_checkpoint(out.path(), 1, content(1), 1);
        io::testing::crash_after(operations);
        const std::string text =
            error_of([&] { io::save_checkpoint(out.path(), second, content(2), 1); });
        const bool crashed = io::testing::crashed();
        io::testing::crash_after(-1);
        if (!crashed) break;
        ++crashes;
        CAPTURE(operations);
        // Once everything is written, a failed removal is not an error.
        CHECK((text == "no error" || text.ends_with("Input/output error")));
        const auto found = io::find_checkpoint(out.path());
        REQUIRE(found);
        const int value = value_of(*found);
        CHECK((value == 1 || value == 2));
        if (text == "no error") CHECK(value == 2);
        old_found += value == 1;
        io::save_checkpoint(out.path(), 3, content(3), 1);
        CHECK(value_of(*io::find_checkpoint(out.path())) == 3);
        CHECK(io::list_directory(out / "checkpoints") ==
              std::vector<std::string>{"latest.json", "step_00000003"});
      }
      CHECK(crashes > 15);
      CHECK(old_found > 10);
      CHECK(old_found < crashes);
    }
  test::refuse_exchange(false);
}

TEST_CASE("power cut: a complete checkpoint survives any step of a save") {
  const LogCapture capture;
  for (const bool exchange : {true, false})
    for (const int second : {2, 1}) {
      test::refuse_exchange(!exchange);
      bool crashed = true;
      for (std::int64_t operations = 0; crashed && operations < 100; ++operations)
        for (const std::uint64_t seed : {0, 1, 2}) {
          const test::TempFolder out;
          test::PowerCut disk(out.path());
          io::save_checkpoint(out.path(), 1, content(1), 1);
          io::testing::crash_after(operations);
          const std::string text =
              error_of([&] { io::save_checkpoint(out.path(), second, content(2), 1); });
          crashed = io::testing::crashed();
          io::testing::crash_after(-1);
          disk.cut(seed);
          CAPTURE(exchange);
          CAPTURE(second);
          CAPTURE(operations);
          CAPTURE(seed);
          const auto found = io::find_checkpoint(out.path());
          REQUIRE(found);
          const int value = value_of(*found);
          CHECK((value == 2 || (value == 1 && text != "no error")));
          // A later interrupted save does not remove the checkpoint that was found.
          io::testing::crash_after(3);
          error_of([&] { io::save_checkpoint(out.path(), 3, content(3), 1); });
          io::testing::crash_after(-1);
          disk.cut(seed);
          CHECK(value_of(*io::find_checkpoint(out.path())) == value);
          io::save_checkpoint(out.path(), 3, content(3), 1);
          disk.cut();
          CHECK(value_of(*io::find_checkpoint(out.path())) == 3);
        }
      CHECK_FALSE(crashed);
    }
  test::refuse_exchange(false);
}

TEST_CASE("power cut: a first save into new folders is durable") {
  const test::TempFolder folder;
  test::PowerCut disk(folder.path());
  io::save_checkpoint(folder / "runs/a", 1, content(1));
  disk.cut();
  CHECK(value_of(*io::find_checkpoint(folder / "runs/a")) == 1);
}

TEST_CASE("checkpoint: a read error is not damage and does not fall back") {
  const test::TempFolder out;
  const LogCapture capture;
  io::save_checkpoint(out.path(), 1, content(1));
  io::save_checkpoint(out.path(), 2, content(2));
  const auto refused = [&](const std::string& reason) {
    const std::string text = error_of([&] { io::find_checkpoint(out.path()); });
    CAPTURE(text);
    CHECK(text.starts_with("read: cannot "));
    CHECK(text.ends_with(reason));
    CHECK(logged.empty());
  };
  // Each of these reads one of its files: latest.json, model, optimizer, state.
  for (const int error : {EIO, ESTALE})
    for (const int after : {0, 1, 2, 3}) {
      test::fail_reads(error, after);
      refused(error == EIO ? "Input/output error" : "Stale file handle");
      test::fail_reads(0);
    }
  rlimit all{};
  getrlimit(RLIMIT_NOFILE, &all);
  rlimit none = all;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  refused("Too many open files");
  setrlimit(RLIMIT_NOFILE, &all);
  const std::string root = out / "checkpoints", latest = root + "/latest.json";
  std::filesystem::rename(latest, latest + "x");
  std::filesystem::create_symlink(latest, latest);
  refused("Too many levels of symbolic links");
  std::filesystem::rename(latest + "x", latest);
  CHECK(io::find_checkpoint(out.path())->step == 2);
}

TEST_CASE("checkpoint: a failed removal is reported once and saves continue") {
  const test::TempFolder out;
  const LogCapture capture;
  const std::string stuck = out / "checkpoints/step_00000001";
  io::save_checkpoint(out.path(), 1, content(1), 1);
  io::write_file(stuck + "/busy", "");
  test::refuse_removal(true);
  for (const int step : {2, 3}) {
    io::save_checkpoint(out.path(), step, content(static_cast<float>(step)), 1);
    CHECK(io::find_checkpoint(out.path())->step == step);
  }
  test::refuse_removal(false);
  CHECK(logged == std::vector<std::string>{"write: cannot remove '" + stuck +
                                           "': Device or resource busy; it stays"});
  io::save_checkpoint(out.path(), 4, content(4), 1);
  CHECK(io::list_directory(out / "checkpoints") ==
        std::vector<std::string>{"latest.json", "step_00000004"});
}

TEST_CASE("checkpoint: a killed first save leaves an empty start") {
  for (std::int64_t operations = 0;; ++operations) {
    const test::TempFolder out;
    io::testing::crash_after(operations);
    const std::string text = error_of([&] { io::save_checkpoint(out.path(), 1, content(1)); });
    io::testing::crash_after(-1);
    if (text == "no error") break;
    const auto found = io::find_checkpoint(out.path());
    if (found) CHECK(value_of(*found) == 1);
    io::save_checkpoint(out.path(), 2, content(2));
    CHECK(value_of(*io::find_checkpoint(out.path())) == 2);
  }
}

TEST_CASE("checkpoint: errors name the rule") {
  const test::TempFolder out;
  CHECK(error_of([&] { io::save_checkpoint(out.path(), -1, {}); }) ==
        "save_checkpoint: step must be at least 0, got -1");
  CHECK(error_of([&] { io::save_checkpoint(out.path(), 1, {}, -2); }) ==
        "save_checkpoint: keep must be at least 0, got -2");
  io::write_file(out / "file", "");
  CHECK(error_of([&] { io::save_checkpoint(out / "file", 1, {}); }) ==
        "write: cannot create folder '" + out / "file" + "': Not a directory");
}

}  // namespace weft::checkpoint_test
