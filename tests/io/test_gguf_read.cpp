// Headers of GGUF files, written by hand.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/gguf.h"
#include "weft/tests/temp_folder.h"

namespace weft::gguf_read_test {
namespace {

using io::GgufFile;

template <class T>
std::string le(T v) {
  std::string out(sizeof v, '\0');
  std::memcpy(out.data(), &v, sizeof v);
  return out;
}
std::string text(const std::string& t) { return le(std::uint64_t{t.size()}) + t; }

std::string header(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
  return "GGUF" + le(version) + le(tensors) + le(entries);
}
std::string tensor(const std::string& name, std::vector<std::uint64_t> dims, std::uint32_t type,
                   std::uint64_t offset) {
  std::string out = text(name) + le(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t d : dims) out += le(d);
  return out + le(type) + le(offset);
}

struct Files {
  test::TempFolder folder;
  std::string path = folder / "x.gguf";

  GgufFile open(const std::string& content, std::size_t data = 0) {
    io::write_file(path, content);
    // Zeros that take no space on the disk.
    if (data > 0) std::filesystem::resize_file(path, (content.size() + 31) / 32 * 32 + data);
    return GgufFile::open(path);
  }
  void refuse(const std::string& content, const std::string& rule, std::size_t data = 0) {
    CAPTURE(rule);
    CHECK_THROWS_WITH_AS(open(content, data), ("gguf: '" + path + "': " + rule).c_str(), Error);
  }
};

}  // namespace

TEST_CASE("gguf: values of every type, arrays and tensors of other programs") {
  Files f;
  const std::string entries =
      text("a") + le(0U) + "\x07" + text("b") + le(1U) + "\xFF" + text("c") + le(3U) +
      le(std::int16_t{-5}) + text("d") + le(10U) + le(std::uint64_t{1} << 40) + text("e") +
      le(12U) + le(0.25) + text("f") + le(9U) + le(8U) + le(std::uint64_t{2}) + text("x") +
      text("yz") + text("g") + le(9U) + le(2U) + le(std::uint64_t{3}) + std::string(6, '\1');
  const GgufFile file = f.open(
      header(2, 7, 2) + entries + tensor("q", {256, 2}, 12, 0) + tensor("s", {}, 0, 288), 288 + 4);
  CHECK(file.version() == 2);
  CHECK(std::get<std::int64_t>(file.find("a")->value) == 7);
  CHECK(std::get<std::int64_t>(file.find("b")->value) == -1);
  CHECK(std::get<std::int64_t>(file.find("c")->value) == -5);
  CHECK(std::get<std::int64_t>(file.find("d")->value) == std::int64_t{1} << 40);
  CHECK(std::get<double>(file.find("e")->value) == 0.25);
  CHECK(file.strings(*file.find("f")) == std::vector<std::string>{"x", "yz"});
  CHECK(file.find("g")->type == "u16 array");
  CHECK(file.find("g")->count == 3);
  CHECK(file.find("h") == nullptr);
  CHECK(io::gguf_type_name(file.tensors()[0].type) == "q4_k");
  CHECK(file.tensors()[0].shape == Shape{2, 256});
  CHECK(file.tensors()[0].bytes == 288);
  CHECK(file.tensors()[1].bytes == 4);
  CHECK_THROWS_WITH_AS(
      file.strings(*file.find("g")),
      ("gguf: '" + f.path + "': \"g\" must be an array of strings, got u16 array").c_str(), Error);
}

TEST_CASE("gguf: hostile headers") {
  Files f;
  const auto big = ~std::uint64_t{0};
  f.refuse("GGUF", "must begin with \"GGUF\"");
  f.refuse("FUGG" + std::string(40, '\0'), "must begin with \"GGUF\"");
  f.refuse(header(0, 0, 1), "the version must be 2 or 3, got 1");
  f.refuse(header(big, 0), "at most 0 tensors fit into the file, got 18446744073709551615");
  f.refuse(header(0, 5) + std::string(24, '\0'),
           "at most 2 metadata values fit into the file, got 5");
  f.refuse(header(0, 1) + le(big) + "abcdefgh",
           "a text of 18446744073709551615 bytes at byte 32 ends outside of the file");
  const std::string two = text("k") + le(7U) + "\1";
  f.refuse(header(0, 2) + two + two, "two values are called \"k\"");
  f.refuse(header(0, 1) + text("k") + le(13U) + "x",
           "\"k\": a value must have type 0 to 12, got 13");
  f.refuse(header(0, 1) + text("k") + le(9U) + le(9U) + le(big),
           "\"k\": an array of arrays is not supported");
  f.refuse(header(0, 1) + text("k") + le(9U) + le(8U) + le(std::uint64_t{16'000'001}),
           "\"k\": an array must have at most 16000000 strings, got 16000001", 128'000'100);
  f.refuse(header(0, 1) + text("k") + le(9U) + le(12U) + le(big / 8 + 2),
           "\"k\": an array of 2305843009213693953 values does not fit into the file");
  f.refuse(header(1, 0) + tensor("t", {4, 4, 4, 4, 4}, 0, 0),
           "tensor \"t\" must have at most 4 axes, got 5");
  f.refuse(header(1, 0) + tensor("t", {32}, 31, 0), "tensor \"t\" has type 31, which is not known");
  f.refuse(header(1, 0) + tensor("t", {32}, 99, 0), "tensor \"t\" has type 99, which is not known");
  f.refuse(header(1, 0) + tensor("t", {33}, 8, 0),
           "tensor \"t\" must have rows of whole blocks and a size below 2^63 bytes");
  f.refuse(header(1, 0) + tensor("t", {1ULL << 32, 1ULL << 31}, 0, 0),
           "tensor \"t\" must have rows of whole blocks and a size below 2^63 bytes");
  f.refuse(header(1, 0) + tensor("t", {5, 0, 1ULL << 40, 1ULL << 40}, 0, 0),
           "tensor \"t\" must have rows of whole blocks and a size below 2^63 bytes");
  f.refuse(header(1, 0) + tensor("t", {8}, 0, 1),
           "tensor \"t\" must begin at a multiple of 32, got 1");
  f.refuse(header(1, 0) + tensor("t", {8}, 0, 32), "tensor \"t\" ends outside of the file", 32);
  f.refuse(header(2, 0) + tensor("t", {16}, 0, 0) + tensor("u", {8}, 0, 32),
           "tensors \"t\" and \"u\" overlap", 128);
  f.refuse(header(0, 1) + text("general.alignment") + le(4U) + le(0U),
           "general.alignment must be a multiple of 8 up to 1048576");
}

}  // namespace weft::gguf_read_test
