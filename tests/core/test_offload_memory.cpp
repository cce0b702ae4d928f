#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/offload_memory.h"
#include "weft/core/restorer.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::offload_memory_test {
namespace {

using test::error_of;

std::vector<std::string> lines;

std::int64_t live() { return memory_stats().live_bytes; }

}  // namespace

TEST_CASE("offload memory: contents come back, and places are used again") {
  const test::TempFolder folder;
  OffloadMemory memory(kCpu, folder.path());
  CHECK(std::filesystem::is_empty(folder.path()));  // the file has no name
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{3'000'001}}) {
    const Tensor want = test::random({n}, 5, DType::f32), t = want.clone();
    OffloadMemory::Place* const place = memory.take(4 * n);
    REQUIRE(place != nullptr);
    memory.store(place, *t.storage());
    const std::int64_t before = live();
    empty_storage(t.storage());
    CHECK(live() == before - size_class_bytes(4 * n));
    memory.expect(place, 4 * n, Category::activation);
    CHECK(live() == before - size_class_bytes(4 * n));
    memory.load(place, *t.storage(), Category::activation);
    CHECK(live() == before);
    CHECK(test::different_bits(t, want) == "");
    memory.give_back(place);
    const std::int64_t reserved = memory.bytes();
    memory.give_back(memory.take(4 * n));
    CHECK(memory.bytes() == reserved);
  }
}

TEST_CASE("offload memory: a folder that is missing or closed") {
  CHECK(error_of([] { OffloadMemory(kCpu, "/nowhere/at/all"); }) ==
        "offload: the folder must exist, got '/nowhere/at/all'");
  const test::TempFolder folder;
  CHECK(error_of([&] { OffloadMemory(kCpu, folder / "x"); }) ==
        "offload: the folder must exist, got '" + folder.path() + "/x'");
}

// A limit of the process stands for a full disk: both refuse the same request.
TEST_CASE("offload memory: a full disk is one line in the log") {
  const test::TempFolder folder;
  OffloadMemory memory(kCpu, folder.path());
  REQUIRE(memory.take(1 << 16) != nullptr);
  lines.clear();
  set_log_handler([](std::string_view s) { lines.emplace_back(s); });
  const auto old_signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 16, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (int i = 0; i < 3; ++i) CHECK(memory.take(1 << 16) == nullptr);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_signal);
  set_log_handler(nullptr);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "offload: no room for more than 65536 bytes in '" + folder.path() +
                        "': File too large; the rest stays in memory");
}

TEST_CASE("offload memory: the meta device stores nothing and counts as the CPU") {
  OffloadMemory memory(kMeta, "");
  const Tensor t = Tensor::empty({5000}, DType::f32, kMeta);
  const std::int64_t before = memory_stats(kMeta).live_bytes;
  OffloadMemory::Place* const place = memory.take(20000);
  memory.store(place, *t.storage());
  empty_storage(t.storage());
  CHECK(memory_stats(kMeta).live_bytes == before - size_class_bytes(20000));
  memory.load(place, *t.storage(), Category::other);
  CHECK(memory_stats(kMeta).live_bytes == before);
}

}  // namespace weft::offload_memory_test
