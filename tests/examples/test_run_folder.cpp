// What a run leaves in its folder when it is killed, loses power, or shares the folder.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/examples/common/gpt_program.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/folder_lock.h"
#include "weft/io/metrics.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/flags.h"

namespace weft::examples::run_folder_test {
namespace {

using test::error_of;

// Three steps of the smallest model, each saved and evaluated.
struct SmallRun {
  test::TempFolder folder;
  GptOptions options;

  SmallRun() {
    io::write_file(folder / "text", std::string(500, 'a') + std::string(500, 'b'));
    options.data.files = {folder / "text"};
    options.out = folder / "out";
    options.model.layers = options.model.heads = options.batch = 1;
    options.model.dim = options.model.seq = 8;
    options.machine.threads = 1;
    options.steps = 3;
    options.run.save_every = options.run.eval_every = 1;
    options.run.log_every = 1000;
    options.data.val_fraction = 0.05;
  }

  int train(bool resume = false) {
    const test::Silence silence;
    options.run.resume = resume;
    return train_gpt(options);
  }

  // The metrics without the values that may differ between equal runs.
  std::vector<std::string> rows() const {
    std::vector<std::string> rows;
    for (const io::Json& row : io::read_metrics(options.out + "/metrics.jsonl")) {
      io::Json same;
      for (const io::JsonMember& m : row.members())
        if (m.key != "tokens_per_s" && m.key != "step_ms" && m.key != "system_allocs" &&
            m.key != "joules" && m.key != "tokens_per_joule" && m.key != "mfu" &&
            m.key != "peak_tflops")
          same.set(m.key, m.value);
      rows.push_back(same.dump());
    }
    return rows;
  }
  std::string weights() const {
    const io::Checkpoint last = *io::find_checkpoint(options.out);
    return io::read_file(last.shards("model").at(0)) + io::read_file(last.shards("optim").at(0));
  }
  std::string plot() const { return io::read_file(options.out + "/loss.svg"); }
};

}  // namespace

TEST_CASE("run folder: a run killed or cut from power at any write resumes with the same results") {
  set_log_handler([](std::string_view) {});
  SmallRun whole;
  REQUIRE(whole.train() == 0);
  const std::vector<std::string> rows = whole.rows();
  REQUIRE(rows.size() == 3);
  for (const std::string& row : rows) CHECK(row.find("val_loss") != std::string::npos);
  int crashes = 0;
  bool crashed = true;
  // With a sanitizer every fifth: without one the test is run for all.
  const int each = test::sanitized ? 5 : 1;
  for (std::int64_t operations = 0; crashed && operations < 400; operations += each) {
    SmallRun run;
    test::PowerCut disk(run.folder.path());
    io::testing::crash_after(operations);
    error_of([&] { run.train(); });
    crashed = io::testing::crashed();
    io::testing::crash_after(-1);
    if (!crashed) break;
    ++crashes;
    CAPTURE(operations);
    // Every third run is only killed; of the others, half lose everything that a disk may lose.
    if (operations % 3 != 0)
      disk.cut(operations % 3 == 1 ? 0 : static_cast<std::uint64_t>(operations));
    REQUIRE(run.train(true) == 0);
    CHECK(run.rows() == rows);
    CHECK(run.weights() == whole.weights());
    CHECK(run.plot() == whole.plot());
  }
  CHECK_FALSE(crashed);
  CHECK(crashes > 80 / each);
  set_log_handler(nullptr);
}

TEST_CASE("run folder: a missing evaluation is repeated on one and several ranks") {
  for (const int ranks : {0, 2}) {
    SmallRun whole, run;
    for (SmallRun* r : {&whole, &run}) {
      r->options.parallel.ranks = ranks;
      r->options.batch = 2;
      REQUIRE(r->train() == 0);
    }
    // As if the last run had been killed: with the row of its step and without.
    const std::string path = run.options.out + "/metrics.jsonl";
    for (const bool written : {true, false}) {
      io::Json last = io::read_metrics(path).back(), without;
      for (const io::JsonMember& m : last.members())
        if (m.key != "val_loss") without.set(m.key, m.value);
      io::truncate_to_step(path, 2);
      if (written) io::MetricsWriter(path).write(without);
      io::remove_all(run.options.out + "/loss.svg");
      REQUIRE(run.train(true) == 0);
      CHECK(run.rows() == whole.rows());
      CHECK(run.plot() == whole.plot());
    }
    const std::string before = io::read_file(path);
    REQUIRE(run.train(true) == 0);  // no evaluation is missing
    CHECK(io::read_file(path) == before);
  }
}

TEST_CASE("run folder: a damaged metrics.jsonl does not prevent a resume") {
  set_log_handler([](std::string_view) {});
  SmallRun whole, run;
  REQUIRE(whole.train() == 0);
  run.options.steps = 2;
  run.options.optimizer.schedule = whole.options.optimizer.schedule =
      optim::Schedule::Kind::constant;
  REQUIRE(run.train() == 0);
  const std::string path = run.options.out + "/metrics.jsonl", text = io::read_file(path);
  for (const char* damage : {"\n", "zero\n", "{\"step\":1,\"lo{}\n", "{\"a\":\"\xff\"}\n"}) {
    io::write_file(path, damage + text);
    REQUIRE(run.train(true) == 0);
    CHECK(run.rows().size() == 2);
  }
  io::write_file(path, text + std::string(3, '\0') + "\n");
  run.options.steps = 3;
  REQUIRE(run.train(true) == 0);
  CHECK(run.rows().size() == 3);
  CHECK(io::read_file(path + ".damaged.4") == text + std::string(3, '\0') + "\n");
  set_log_handler(nullptr);
}

TEST_CASE("run folder: a second run in the folder is refused on all ranks") {
  SmallRun run;
  io::make_directories(run.options.out);
  for (const int ranks : {0, 2}) {
    run.options.parallel.ranks = ranks;
    run.options.batch = 2;
    for (const bool resume : {false, true}) {
      const io::FolderLock other(run.options.out);
      try {
        run.train(resume);
        FAIL("two runs in one folder");
      } catch (const Error& e) {
        CHECK(e.fault() == Fault::user);
        // Among ranks that are threads, whichever fails first reports the error.
        CHECK(
            std::string(e.what()).ends_with("--out: '" + run.options.out + "' is in use by " +
                                            io::FolderLock(run.options.out).holder() +
                                            "; wait until that run ends, or name another folder"));
      }
      CHECK(io::list_directory(run.options.out) == std::vector<std::string>{"lock"});
    }
  }
  REQUIRE(run.train() == 0);
  CHECK(error_of([&] { run.train(); }).find("already holds a run") != std::string::npos);
}

TEST_CASE("run folder: config.toml stores any UTF-8 text exactly") {
  const test::TempFolder folder;
  const std::string config = folder / "config.toml";
  const auto reread = [&](const GptOptions& o) {
    io::write_file(config, train::to_toml(o));
    std::string program = "train_gpt", flag = "--config=" + config;
    char* argv[] = {program.data(), flag.data(), nullptr};
    GptOptions back;
    REQUIRE(parse(back, 2, argv));
    return back;
  };
  std::string all;
  for (char c = 1; c > 0; ++c) all += c;  // up to 0x7f
  GptOptions o;
  for (const std::string& text :
       {all, "/a\rb" + std::string("\x01\x1f\x7f"), std::string("\\u0041\"'\t\n"),
        std::string("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82")}) {
    o.out = text;
    o.data.files = {text, "b" + text};
    const GptOptions back = reread(o);
    CHECK(back.out == text);
    CHECK(back.data.files == o.data.files);
  }
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::string text = "x";
    for (std::uint64_t j = 0; j < 120; ++j) {
      const std::uint64_t bits = stream_of(std::to_string(i) + "," + std::to_string(j));
      text += static_cast<char>(1 + bits % 0x7f);
      if (bits >> 60 == 0) text += "\xc3\xbc";
    }
    o.out = text;
    o.data.files = {text, text + "y"};
    const GptOptions back = reread(o);
    REQUIRE(back.out == text);
    REQUIRE(back.data.files == o.data.files);
  }
  std::string program = "train_gpt", flag = "--out=/a\xff";
  char* argv[] = {program.data(), flag.data(), nullptr};
  CHECK(error_of([&] { parse(o, 2, argv); }) == "--out: must be UTF-8, got '/a\xff'");
}

}  // namespace weft::examples::run_folder_test
