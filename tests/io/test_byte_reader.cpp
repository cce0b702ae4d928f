#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/byte_reader.h"
#include "weft/io/file.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::byte_reader_test {
using test::error_of;

namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

// "one\ntwo\n" and "three\n", each compressed by itself: gzip and zstd 1.5.
const std::string kGz = from_hex(
    "1f8b0800000000000203cbcf4be52a29cfe70200e60bba1208000000"
    "1f8b08000000000002032bc9284a4de50200d8c546ff06000000");
const std::string kZst = from_hex(
    "28b52ffd04584100006f6e650a74776f0ae6a60e40"
    "28b52ffd045831000074687265650ad706fd28");
const std::string kText = "one\ntwo\nthree\n";

// A build without the library refuses its files; everything else is then tested with the other.
bool is_missing(const std::string& path) {
  return error_of([&] { io::ByteReader reader(path); }).find("needs a build with") !=
         std::string::npos;
}

}  // namespace

TEST_CASE("byte reader: plain, gzip and zstd files give their text in pieces of any size") {
  const test::TempFolder folder;
  io::write_file(folder / "plain", kText);
  io::write_file(folder / "a.gz", kGz);
  io::write_file(folder / "a.zst", kZst);
  io::write_file(folder / "empty", "");
  for (const char* name : {"plain", "a.gz", "a.zst"}) {
    CAPTURE(name);
    if (is_missing(folder / name)) continue;
    for (const std::size_t bytes : {1, 3, 5, 100}) {
      io::ByteReader reader(folder / name);
      std::string all, piece(bytes, '\0');
      for (std::size_t n = bytes; n == bytes;) {
        n = reader.read(piece.data(), bytes);
        all.append(piece, 0, n);
      }
      CHECK(all == kText);
      CHECK(reader.file_bytes_read() == reader.file_bytes());
      CHECK(reader.read(piece.data(), bytes) == 0);
    }
    CHECK(io::read_decompressed(folder / name, 14) == kText);
    CHECK(error_of([&] { io::read_decompressed(folder / name, 13); }) ==
          "read: '" + folder / name + "' must have at most 13 bytes when it is decompressed");
  }
  CHECK(io::read_decompressed(folder / "empty", 0).empty());
}

TEST_CASE("byte reader: a frame that zstd skips, and files of other programs") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  io::write_file(path, from_hex("5a2a4d1803000000abcdef") + kZst);
  if (!is_missing(path)) CHECK(io::read_decompressed(path, 100) == kText);
  const auto opens = [&](const std::string& content) {
    io::write_file(path, content);
    return error_of([&] { io::ByteReader reader(path); });
  };
  const std::string refusal = "read: '" + path + "' is compressed by ";
  const std::string advice = "; use gzip or zstd, or decompress it";
  CHECK(opens(from_hex("fd377a585a000004")) == refusal + "xz" + advice);
  CHECK(opens(from_hex("04224d186440a7")) == refusal + "lz4" + advice);
  for (const char* level : {"1", "9"})
    CHECK(opens("BZh" + std::string(level) + "1AY&SY....") == refusal + "bzip2" + advice);
  CHECK(opens("BZh91AY") == "no error");
  CHECK(opens("Z*M") == "no error");
}

TEST_CASE("byte reader: cut and damaged files are refused, never read in part") {
  const test::TempFolder folder;
  const std::string path = folder / "x";
  for (const std::string& whole : {kGz, kZst}) {
    io::write_file(path, whole);
    if (is_missing(path)) continue;
    const std::size_t first = whole == kGz ? 28 : 21;  // bytes of "one\ntwo\n"
    for (std::size_t size = 4; size < whole.size(); ++size) {
      io::write_file(path, whole.substr(0, size));
      const std::string problem = error_of([&] { io::read_decompressed(path, 100); });
      CAPTURE(size);
      if (size == first)
        CHECK(problem == "no error");
      else
        CHECK(problem == "read: '" + path + "' ends in the middle of its compressed data");
    }
    for (std::size_t at = 4; at < whole.size(); ++at) {  // must not crash; some bytes do not matter
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      io::write_file(path, damaged);
      const std::string problem = error_of([&] { io::read_decompressed(path, 1 << 20); });
      CHECK((problem == "no error" || problem.starts_with("read: '" + path + "' ")));
    }
  }
}

}  // namespace weft::byte_reader_test
