#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>

#include "weft/core/error.h"
#include "weft/io/crc32c.h"
#include "weft/io/file.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::file_test {
using test::error_of;

TEST_CASE("crc32c: gives the published values on both paths") {
  std::string rising(32, '\0'), falling(32, '\0');
  for (int i = 0; i < 32; ++i) {
    rising[static_cast<std::size_t>(i)] = static_cast<char>(i);
    falling[static_cast<std::size_t>(i)] = static_cast<char>(31 - i);
  }
  // RFC 3720 appendix B.4, and the check value of the CRC catalogue.
  const std::pair<std::string, std::uint32_t> vectors[] = {{std::string(32, '\0'), 0x8A9136AA},
                                                           {std::string(32, '\xFF'), 0x62A8AB43},
                                                           {rising, 0x46DD794E},
                                                           {falling, 0x113FDB5C},
                                                           {"123456789", 0xE3069283},
                                                           {"", 0}};
  for (const auto& [text, want] : vectors) {
    CHECK(io::crc32c(text.data(), text.size()) == want);
    CHECK(io::crc32c_table(text.data(), text.size()) == want);
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      const std::uint32_t first = io::crc32c(text.data(), cut);
      CHECK(io::crc32c(text.data() + cut, text.size() - cut, first) == want);
      CHECK(io::crc32c_table(text.data() + cut, text.size() - cut, first) == want);
    }
  }
}

TEST_CASE("file: written text reads back") {
  const test::TempFolder folder;
  const std::string path = folder / "x", text("one\0two\n", 8);
  const io::FileSummary summary = io::write_file(path, text);
  CHECK(io::read_file(path) == text);
  CHECK(summary == io::FileSummary{8, io::crc32c(text.data(), 8)});
  CHECK(io::summarize(path) == summary);
  CHECK(io::file_size(path) == 8);
  io::append_file(path, "!");
  CHECK(io::read_file(path) == text + "!");
  io::write_file(path, "");
  CHECK(io::read_file(path).empty());
  CHECK(io::InputFile(path).size() == 0);
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"x"});
}

TEST_CASE("file: a file larger than one chunk has the checksum of its bytes") {
  const test::TempFolder folder;
  std::string text(3'000'001, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
  const io::FileSummary written = io::write_file(folder / "x", text);
  CHECK(written.crc32c == io::crc32c_table(text.data(), text.size()));
  CHECK(io::summarize(folder / "x") == written);
  CHECK(io::read_file(folder / "x") == text);
}

TEST_CASE("file: a sample of a large file sees changes of its pieces and of its size") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  std::string text(2'000'000, 'a');
  const io::FileSummary whole = io::write_file(path, text), first = io::sample(path);
  CHECK(first.bytes == whole.bytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{31'492}, text.size() - 1}) {
    text[at] = 'b';
    io::write_file(path, text);
    CHECK_FALSE(io::sample(path) == first);
    text[at] = 'a';
  }
  io::write_file(path, text + "a");
  CHECK_FALSE(io::sample(path) == first);
  const io::FileSummary small = io::write_file(path, "small");
  CHECK(io::sample(path) == small);
}

TEST_CASE("file: a file that is not committed leaves nothing") {
  const test::TempFolder folder;
  {
    io::AtomicFile file(folder / "x");
    file.write("half");
    CHECK(io::exists(folder / "x.tmp"));
  }
  CHECK(io::list_directory(folder.path()).empty());
}

TEST_CASE("file: short writes continue on a full disk, then the error names the file") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  io::write_file(path, "old");
  io::testing::fail_writes_after(3);
  const std::string text = error_of([&] { io::write_file(path, "new text"); });
  io::testing::fail_writes_after(-1);
  CHECK(text == "write: cannot write '" + path + "': No space left on device");
  CHECK(io::read_file(path) == "old");
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"x"});
}

TEST_CASE("file: folders are created, listed, renamed and removed") {
  const test::TempFolder folder;
  io::make_directories(folder / "a/b/c");
  CHECK(io::is_directory(folder / "a/b/c"));
  io::make_directories(folder / "a/b/c");
  io::write_file(folder / "a/b/c/1", "1");
  io::make_directories(folder / "d");
  io::rename_synced(folder / "a", folder / "d");  // both exist: they are exchanged
  CHECK(io::exists(folder / "d/b/c/1"));
  CHECK(io::list_directory(folder / "a").empty());
  io::rename_synced(folder / "d", folder / "e");
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"a", "e"});
  io::remove_all(folder / "e");
  io::remove_all(folder / "e");
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"a"});
}

TEST_CASE("power cut: what is not synced is lost") {
  const test::TempFolder folder;
  io::write_file(folder / "old", "old");
  test::PowerCut disk(folder.path());
  io::append_file(folder / "x", "x");
  io::append_file(folder / "old", " and more");
  disk.cut();
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"old"});
  CHECK(io::read_file(folder / "old") == "old");
}

TEST_CASE("power cut: a written file and its parent folders are durable") {
  const test::TempFolder folder;
  test::PowerCut disk(folder.path());
  io::make_directories(folder / "a/b/c");
  disk.cut();
  REQUIRE(io::is_directory(folder / "a/b/c"));
  io::write_file(folder / "a/b/c/x", "one");
  disk.cut();
  CHECK(io::read_file(folder / "a/b/c/x") == "one");
  for (std::int64_t operations = 0; operations < 20; ++operations) {
    io::testing::crash_after(operations);
    const std::string text = error_of([&] { io::write_file(folder / "a/b/c/x", "two"); });
    io::testing::crash_after(-1);
    disk.cut(static_cast<std::uint64_t>(operations));
    if (text == "no error") break;
    const std::string found = io::read_file(folder / "a/b/c/x");
    CHECK((found == "one" || found == "two"));
  }
  CHECK(io::read_file(folder / "a/b/c/x") == "two");
}

TEST_CASE("power cut: appended lines are durable once the file is synced") {
  const test::TempFolder folder;
  test::PowerCut disk(folder.path());
  io::append_file(folder / "x", "1\n2\n");
  io::sync_file(folder / "x");
  io::append_file(folder / "x", "3\n");
  disk.cut();
  CHECK(io::read_file(folder / "x") == "1\n2\n");
}

TEST_CASE("power cut: replacing a folder with and without exchange") {
  for (const bool exchange : {true, false}) {
    test::refuse_exchange(!exchange);
    bool done = false;
    for (std::int64_t operations = 0; !done && operations < 20; ++operations)
      for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const test::TempFolder folder;
        for (const char* name : {"old", "new"}) {
          io::make_directories(folder / name);
          io::write_file(folder / name + "/x", name);
        }
        test::PowerCut disk(folder.path());
        io::testing::crash_after(operations);
        done = error_of([&] { io::rename_synced(folder / "new", folder / "old"); }) == "no error";
        io::testing::crash_after(-1);
        disk.cut(seed);
        CAPTURE(exchange);
        CAPTURE(operations);
        // At any time one of the two has the name or, for a moment, the temporary name.
        const std::string place =
            io::exists(folder / "old") ? folder / "old" : io::aside_of(folder / "old");
        REQUIRE(io::exists(place + "/x"));
        const std::string found = io::read_file(place + "/x");
        CHECK((found == "new" || (found == "old" && !done)));
        if (done) {
          const std::string before = exchange ? "new" : "old.old";
          CHECK(io::list_directory(folder.path()) ==
                std::vector<std::string>{std::min(before, std::string("old")),
                                         std::max(before, std::string("old"))});
          CHECK(io::read_file(folder / before + "/x") == "old");
        }
      }
    CHECK(done);
  }
  test::refuse_exchange(false);
}

TEST_CASE("power cut: a rename is durable when it returns") {
  const test::TempFolder folder;
  io::make_directories(folder / "a");
  test::PowerCut disk(folder.path());
  io::rename_synced(folder / "a", folder / "b");
  disk.cut();
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"b"});
}

TEST_CASE("file: a path that cannot be examined is not reported as missing") {
  const test::TempFolder folder;
  const std::string loop = folder / "loop";
  std::filesystem::create_symlink(loop, loop);
  const std::string want = "read: cannot open '" + loop + "': Too many levels of symbolic links";
  CHECK(error_of([&] { io::exists(loop); }) == want);
  CHECK(error_of([&] { io::is_directory(loop); }) == want);
  CHECK_FALSE(io::exists(folder / "none"));
  io::write_file(folder / "x", "");
  CHECK_FALSE(io::exists(folder / "x/y"));
}

TEST_CASE("file: errors name the path and the system's reason") {
  const test::TempFolder folder;
  const std::string none = folder / "none";
  const std::string no_such = "No such file or directory";
  CHECK(error_of([&] { io::read_file(none); }) == "read: cannot open '" + none + "': " + no_such);
  CHECK(error_of([&] { io::file_size(none); }) == "read: cannot open '" + none + "': " + no_such);
  CHECK(error_of([&] { io::InputFile file(none); }) ==
        "read: cannot open '" + none + "': " + no_such);
  CHECK(error_of([&] { io::list_directory(none); }) ==
        "read: cannot list '" + none + "': " + no_such);
  CHECK(error_of([&] { io::write_file(none + "/x", ""); }) ==
        "write: cannot create '" + none + "/x': " + no_such);
  CHECK(error_of([&] { io::append_file(none + "/x", ""); }) ==
        "write: cannot open '" + none + "/x': " + no_such);
  CHECK(error_of([&] { io::rename_synced(none, folder / "y"); }) ==
        "write: cannot rename to '" + folder / "y" + "': " + no_such);
  io::write_file(none, "a file");
  CHECK(error_of([&] { io::make_directories(none + "/x"); }) ==
        "write: cannot create folder '" + none + "': Not a directory");
  const io::InputFile file(none);
  char bytes[8];
  CHECK(error_of([&] { file.read(4, bytes, 8); }) ==
        "read: '" + none + "' ends at byte 6, 6 more were expected");
  try {
    io::read_file(folder / "nothing");
  } catch (const Error& e) {
    CHECK(e.fault() == Fault::system);
  }
}

TEST_CASE("file: a path that is not a file is refused without waiting") {
  const test::TempFolder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  io::write_file(folder / "file", "1");
  CHECK(io::path_kind(fifo) == io::PathKind::pipe);
  CHECK(io::path_kind(folder / "file") == io::PathKind::file);
  CHECK(io::path_kind(folder.path()) == io::PathKind::folder);
  CHECK(io::path_kind("/dev/zero") == io::PathKind::other);
  CHECK(io::path_kind(folder / "none") == io::PathKind::none);
  const auto refused = [](const std::string& path, const std::string& why) {
    const std::string want = "read: cannot open '" + path + "': " + why;
    CHECK(error_of([&] { io::InputFile file(path); }) == want);
    CHECK(error_of([&] { io::read_file(path); }) == want);
    CHECK(error_of([&] { io::summarize(path); }) == want);
  };
  refused(fifo, "it must be a file, got a pipe");
  refused("/dev/zero", "it must be a file, got a device");
  refused(folder.path(), "Is a directory");
}

TEST_CASE("file: a pipe is read to its end within limits") {
  const test::TempFolder folder;
  const std::string fifo = folder / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(io::read_pipe(fifo, {.writer_s = 0.01}).empty());  // no writer
  std::string text(300'000, 'x');
  text.back() = '\n';
  // Opens both ends at once, so that neither open() blocks.
  int ends = ::open(fifo.c_str(), O_RDWR);
  std::thread writer([&] {  // more than a pipe's capacity
    for (std::size_t at = 0; at < text.size();)
      at += static_cast<std::size_t>(::write(ends, text.data() + at, text.size() - at));
    ::close(ends);
  });
  CHECK(io::read_pipe(fifo) == text);
  writer.join();
  ends = ::open(fifo.c_str(), O_RDWR);
  CHECK(::write(ends, text.data(), 1001) == 1001);
  CHECK(error_of([&] { io::read_pipe(fifo, {.bytes = 1000}); }) ==
        "read: pipe '" + fifo + "' must carry at most 1000 bytes; write a file instead");
  CHECK(error_of([&] { io::read_pipe(fifo, {.silence_s = 0.01}); }) ==
        "read: pipe '" + fifo + "' must not be silent for 0.01 s");
  ::close(ends);
}

TEST_CASE("file: changed() reports a write to the open file") {
  const test::TempFolder folder;
  io::write_file(folder / "x", "abc");
  const io::InputFile file(folder / "x");
  CHECK(!file.changed());
  io::write_file(folder / "x", "another file of that name");
  CHECK(!file.changed());  // the open file is unchanged
  io::append_file(folder / "y", "abc");
  const io::InputFile grows(folder / "y");
  io::append_file(folder / "y", "d");
  CHECK(grows.changed());
}

}  // namespace weft::file_test
