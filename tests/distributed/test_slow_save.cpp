// A rank that takes longer to write its part of a checkpoint than a collective may take.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/checkpoint.h"
#include "weft/io/file.h"
#include "weft/tests/log_lines.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::slow_save_test {
namespace {

using test::error_of;
using test::LogLines;

constexpr double kTimeout = 1.5, kSlow = 4;

void sleep() { std::this_thread::sleep_for(std::chrono::duration<double>(kSlow)); }

// A part of one tensor, whose reads call `before`.
CheckpointPart part_of(const World& w, std::int64_t step, std::int64_t size,
                       std::function<void()> before) {
  const std::string name = message("w{}", w.rank());
  CheckpointPart part{
      .step = step,
      .model = sources_of(
          {{name, {Tensor::full({size}, static_cast<double>(step)), ShardSlice::of({size})}}})};
  TensorSource& values = part.model.at(name).values;
  values.read = [read = values.read, before = std::move(before)] {
    before();
    return read();
  };
  return part;
}

// Saves on three ranks, of which one is slow and has more to write; returns their errors.
std::vector<std::string> save(const std::string& out, std::int64_t step, int slow, bool background,
                              const std::function<void(World&, int reads)>& read,
                              const std::function<void(World&)>& then = {}) {
  std::vector<std::string> texts(3);
  run_ranks(3,
            [&](World& w) {
              int reads = 0;
              texts[static_cast<std::size_t>(w.rank())] = error_of([&] {
                CheckpointSave own(w, out,
                                   part_of(w, step, w.rank() == slow ? 2000 : 3,
                                           [&] {
                                             if (w.rank() == slow) read(w, ++reads);
                                           }),
                                   {.background = background});
                if (then) then(w);
                own.finish();
              });
            },
            {.timeout_s = kTimeout});
  return texts;
}

const std::vector<std::string> kWell(3, "no error");

}  // namespace

TEST_CASE("slow save: the others wait for a slow disk as long as it takes") {
  const test::TempFolder out;
  const LogLines logged;
  for (const int slow : {0, 1}) {
    CHECK(save(out.path(), 1 + slow, slow, false, [](World&, int) { sleep(); }) == kWell);
    CHECK(io::find_checkpoint(out.path())->step == 1 + slow);
    const std::vector<std::string> lines = logged.taken();
    REQUIRE(lines.size() >= 2);  // each time that a collective would have ended the job
    CHECK(lines[0].find("save_checkpoint: ranks have waited ") == 0);
    CHECK(lines[0].find(message(" s for rank {} to write", slow)) != std::string::npos);
  }
}

// The slow one, of a lower number, is told to stop and fails too.
TEST_CASE("slow save: the rank that cannot write is the one that is named") {
  const test::TempFolder out;
  std::vector<std::string> texts(3);
  run_ranks(3,
            [&](World& w) {
              texts[static_cast<std::size_t>(w.rank())] = error_of([&] {
                CheckpointSave own(w, out.path(),
                                   part_of(w, 1, 8,
                                           [&] {
                                             check(w.rank() != 1, "no room");
                                             if (w.rank() == 0) sleep();
                                           }),
                                   {});
                own.finish();
              });
            },
            {.timeout_s = kTimeout});
  CHECK(texts == std::vector<std::string>(3, "save_checkpoint: rank 1: no room"));
  CHECK(!io::find_checkpoint(out.path()));
}

// Rank 0 waits for it while its own thread writes.
TEST_CASE("slow save: a rank lost when a background save begins ends the job with an error") {
  struct Lost {};
  const test::TempFolder out;
  CHECK_THROWS(run_ranks(2,
                         [&](World& w) {
                           CheckpointSave own(w, out.path(),
                                              part_of(w, 1, 8,
                                                      [&] {
                                                        if (w.rank() == 1) throw Lost{};
                                                      }),
                                              {.background = true});
                           own.finish();
                         },
                         {.timeout_s = kTimeout}));
  CHECK(!io::find_checkpoint(out.path()));
}

TEST_CASE("slow save: in the background, for the rank that has no memory for copies") {
  const test::TempFolder out;
  const LogLines logged;
  const auto read = [](World&, int reads) {
    if (reads == 1) throw std::bad_alloc();
    sleep();
  };
  // The next collective of training, which may not wait so long.
  const auto train = [](World& w) { w.all().barrier().wait(); };
  CHECK(save(out.path(), 1, 2, true, read, train) == kWell);
  CHECK(io::find_checkpoint(out.path())->step == 1);
}

TEST_CASE("slow save: in the background, at the end") {
  const test::TempFolder out;
  const LogLines logged;
  io::testing::slow_writes(2000);
  CHECK(save(out.path(), 1, 1, true, [](World&, int) {}) == kWell);
  io::testing::slow_writes(0);
  CHECK(io::find_checkpoint(out.path())->step == 1);
}

TEST_CASE("slow save: an error of the slow rank comes to all") {
  const test::TempFolder out;
  const LogLines logged;
  const auto read = [](World&, int) {
    sleep();
    throw Error("gone", Fault::system);
  };
  CHECK(save(out.path(), 1, 1, false, read) ==
        std::vector<std::string>(3, "save_checkpoint: rank 1: gone"));
  CHECK(!io::find_checkpoint(out.path()));
}

}  // namespace weft::distributed::slow_save_test
