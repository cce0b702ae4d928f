#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/loader.h"
#include "weft/data/packed_documents.h"
#include "weft/data/packing.h"
#include "weft/data/text.h"
#include "weft/data/token_file.h"
#include "weft/data/token_windows.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::data_test {
using namespace weft::data;
using test::count_to;
using test::error_of;
using test::Ints;
using test::ints;

namespace {

Ints all(const TokenStream& s) {
  Ints v(static_cast<std::size_t>(s.size()));
  s.read(0, v);
  return v;
}

std::string little_endian(std::initializer_list<std::int32_t> values) {
  std::string out;
  for (const std::int32_t v : values) out.append(reinterpret_cast<const char*>(&v), 4);
  return out;
}

}  // namespace

TEST_CASE("data: text files become one stream of bytes") {
  const test::TempFolder folder;
  io::write_file(folder / "a", "one");
  io::write_file(folder / "b", "two");
  io::write_file(folder / "empty", "");
  CHECK(read_text({folder / "a", folder / "b", folder / "a"}) == "onetwoone");
  CHECK(error_of([&] { read_text({}); }) == "data: name at least one text file");
  CHECK(error_of([&] { read_text({folder / "c"}); }) == "data: no file '" + folder / "c" + "'");
  CHECK(error_of([&] {
          read_text({folder / "a", folder / "empty"});
        }) == "data: '" + folder / "empty" + "' is empty");
  CHECK(error_of([&] { read_text({folder.path()}); }) ==
        "data: '" + folder.path() + "' is a folder; name the files in it");
}

TEST_CASE("data: a token stream gives the same tokens in every width and slice") {
  const TokenStream streams[] = {TokenStream::of(Ints{3, 1, 4, 1, 5}),
                                 TokenStream::of(std::vector<std::uint16_t>{3, 1, 4, 1, 5}),
                                 TokenStream::of_bytes("\3\1\4\1\5")};
  for (const TokenStream& s : streams) {
    CHECK(all(s) == Ints{3, 1, 4, 1, 5});
    CHECK(s.max_token() == 5);
    const TokenStream part = s.slice(1, 3).slice(1, 2);
    CHECK(all(part) == Ints{4, 1});
    CHECK(part.max_token() == 4);
    CHECK(error_of([&] { s.slice(3, 3); }) == "tokens: [3, 6) must lie in [0, 5)");
    Ints two(2);
    CHECK(error_of([&] { part.read(1, two); }) == "tokens: [1, 3) must lie in [0, 2)");
  }
  CHECK(TokenStream::of_bytes("\xFF").max_token() == 255);
  CHECK(TokenStream().max_token() == -1);
}

TEST_CASE("data: golden bytes of token files, raw files and vocabulary") {
  const test::TempFolder folder;
  const std::string path = folder / "train.bin";
  write_token_file(path, Ints{1, 65535, 258});
  std::string want = little_endian({20240520, 1, 3});
  want.resize(1024, '\0');
  want += std::string("\1\0\xFF\xFF\2\1", 6);
  CHECK(io::read_file(path) == want);
  CHECK(all(open_token_file(path)) == Ints{1, 65535, 258});

  io::write_file(folder / "raw.bin", std::string("\1\0\2\1", 4));
  const TokenStream raw = open_token_file(folder / "raw.bin");
  CHECK(all(raw) == Ints{1, 258});
  CHECK(error_of([&] { check_vocab(raw, 259); }) == "no error");
  CHECK(error_of([&] { check_vocab(raw, 258); }) ==
        "data: token 258 does not fit a vocabulary of 258; use --vocab 259 or more");
  CHECK(error_of([&] { write_token_file(path, Ints{65536}); }) ==
        "write_token_file: a token must be in [0, 65536), got 65536");
  CHECK(error_of([&] { write_token_file(path, Ints{-1}); }) ==
        "write_token_file: a token must be in [0, 65536), got -1");
  CHECK(io::read_file(path) == want);

  // llm.c's files of a Llama 3 tokenizer: uint32.
  std::string wide = little_endian({20240801, 7, 3});
  wide.resize(1024, '\0');
  io::write_file(path, wide + little_endian({128000, 7, 2147483647}));
  CHECK(all(open_token_file(path)) == Ints{128000, 7, 2147483647});
  io::write_file(path, wide + little_endian({128000, 7, -2}));
  CHECK(all(open_token_file(path).slice(0, 2)) == Ints{128000, 7});
  CHECK(error_of([&] { all(open_token_file(path)); }) ==
        "data: '" + path + "' must hold tokens of at least 0, got -2 at token 2");
}

TEST_CASE("data: invalid token files are refused") {
  const test::TempFolder folder;
  const std::string path = folder / "x.bin", named = "data: '" + path + "' ";
  const auto refusal = [&](std::string header, std::size_t size) {
    header.resize(size, '\0');
    io::write_file(path, header);
    return error_of([&] { open_token_file(path); });
  };
  CHECK(error_of([&] { open_token_file(path); }) == "data: no file '" + path + "'");
  CHECK(refusal("", 0) == named + "is empty");
  CHECK(refusal("abc", 3) == named + "must hold uint16 tokens, but has an odd size of 3 bytes");
  CHECK(refusal(little_endian({20240520, 1, 3}), 1029) ==
        named + "must have 1030 bytes for the 3 tokens of its header, got 1029");
  CHECK(refusal(little_endian({20240520, 1, 3}), 1032) ==
        named + "must have 1030 bytes for the 3 tokens of its header, got 1032");
  CHECK(refusal(little_endian({20240520, 1, -1}), 1022) ==
        named + "must have a header of 1024 bytes, got 1022");
  CHECK(refusal(little_endian({20240520, 1, -1}), 1026) ==
        named + "must have 1022 bytes for the -1 tokens of its header, got 1026");
  CHECK(refusal(little_endian({20240520, 2, 0}), 1024) == named + "must have version 1, got 2");
  CHECK(refusal(little_endian({20240522, 1, 0}), 1024) ==
        named +
            "has magic 20240522, which Weft does not read; expected 20240520 or raw uint16 "
            "tokens");
  CHECK(refusal(little_endian({20240801, 1, 0}), 1024) == named + "must have version 7, got 1");
  CHECK(refusal(little_endian({20240801, 7, 2}), 1028) ==
        named + "must have 1032 bytes for the 2 tokens of its header, got 1028");
  CHECK(refusal(little_endian({20240520, 1, 0}), 1024) == "no error");
}

TEST_CASE("data: a token file that changes after it was opened is refused") {
  const test::TempFolder folder;
  const std::string path = folder / "x.bin";
  write_token_file(path, count_to(1000));
  const TokenStream tokens = open_token_file(path).slice(10, 900);
  CHECK(all(tokens.slice(5, 3)) == Ints{15, 16, 17});
  CHECK(tokens.max_token() == 909);
  CHECK(!tokens.changed());
  const TokenWindows windows(tokens, 4);
  Loader loader(windows, {.batch = 2});
  loader.next();
  std::filesystem::resize_file(path, 1100);  // with a memory map this would end the process
  CHECK(tokens.changed());
  CHECK(windows.changed());
  Ints some(900);
  CHECK(error_of([&] { tokens.read(0, some); }) ==
        "read: '" + path + "' ends at byte 1100, 1744 more were expected");
  Ints few(3);
  const std::string changed =
      "data: '" + path + "' must not change while it is read, but was written to";
  CHECK(error_of([&] { tokens.read(0, few); }) == changed);
  CHECK(error_of([&] { windows.check_unchanged(); }) == changed);
  CHECK(!TokenStream::of_bytes("abc").changed());
}

TEST_CASE("data: text and tokens can be read from pipes") {
  const test::TempFolder folder;
  const std::string text = folder / "text", tokens = folder / "tokens.bin";
  write_token_file(folder / "file", Ints{3, 1, 4});
  for (const auto& [path, bytes] :
       {std::pair{text, std::string("some words")}, {tokens, io::read_file(folder / "file")}}) {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    const int ends = ::open(path.c_str(), O_RDWR);
    const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);  // keeps the bytes in the pipe
    CHECK(::write(ends, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(ends);
    if (path == text)
      CHECK(read_text({path}) == bytes);
    else
      CHECK(all(open_token_file(path)) == Ints{3, 1, 4});
    ::close(reader);
  }
  CHECK(error_of([] { read_text({"/dev/zero"}); }) ==
        "data: '/dev/zero' must be a file or a pipe, got a device");
}

TEST_CASE("data: a tensor dataset gives rows of any dtype and shape") {
  const Tensor inputs = Tensor::arange(0, 24).view({4, 3, 2}).transpose(1, 2),
               targets = Tensor::arange(0, 4, 1, DType::f64);
  const TensorDataset data(inputs, targets);
  CHECK(data.size() == 4);
  const std::int64_t numbers[] = {3, 0, 3};
  const Batch rows = data.rows(numbers);
  CHECK(rows.rows() == 3);
  CHECK(test::different_bits(rows.inputs.narrow(0, 0, 1), inputs.narrow(0, 3, 1).contiguous()) ==
        "");
  CHECK(test::values(rows.targets) == std::vector<double>{3, 0, 3});
  CHECK(test::values(rows.narrow(1, 1).targets) == std::vector<double>{0});
  Loader loader(data, {.batch = 4, .seed = 2});
  std::vector<double> seen = test::values(loader.next().targets);
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<double>{0, 1, 2, 3});
  CHECK(test::without_checksum(loader.state()) == R"({"epoch":1,"index":0,"seed":2,"rows":4})");

  // The last batch is shorter, unless the dataset allows padding.
  struct Padded : TensorDataset {
    using TensorDataset::TensorDataset;
    bool allows_padding() const override { return true; }
  };
  const Padded labelled(inputs, targets.to(DType::i64));
  const EvalLoader filled(labelled, 3), short_one(data, 3);
  CHECK(filled.batches() == 2);
  CHECK(test::values(filled.batch(1).targets) == std::vector<double>{3, kIgnore, kIgnore});
  CHECK(filled.rows_of(0) == 3);
  CHECK(filled.rows_of(1) == 1);
  CHECK(short_one.batch(1).rows() == 1);
  struct Empty : TensorDataset {
    using TensorDataset::TensorDataset;
    std::int64_t size() const override { return 0; }
  };
  const Empty empty(inputs, targets);
  CHECK(error_of([&] { Loader(empty, {}); }) ==
        "loader: the dataset must have at least 1 row, got 0");
  CHECK(error_of([&] { EvalLoader(empty, 1); }) ==
        "loader: the dataset must have at least 1 row, got 0");
  CHECK(error_of([&] { TensorDataset(inputs, targets.narrow(0, 0, 3)); }) ==
        "tensor dataset: inputs and targets must have the same number of rows, at least 1, got "
        "shapes "
        "[4, 2, 3] and [3]");
  CHECK(error_of([&] { TensorDataset(inputs, {}); }) ==
        "tensor dataset: inputs and targets must be on the CPU");
}

TEST_CASE("data: streamed documents are packed like pack_documents and rows keep their index") {
  // Documents ab|, c|, |, defghijk| and the unterminated lm; rows of 4.
  const std::string text = "ab|c||defghijk|lm";
  const PackedDocuments data(TokenStream::of_bytes(text), 4, Ints{'|'});
  CHECK(data.documents() == 5);
  const auto document = [](const std::string& s) { return Ints(s.begin(), s.end()); };
  const PackedRows want = pack_documents(
      {document("ab|"), document("c|"), document("|"), document("defghijk|"), document("lm")}, 4);
  REQUIRE(data.size() == want.rows());
  std::vector<std::int64_t> numbers;
  for (std::int64_t r = 0; r < data.size(); ++r) numbers.push_back(r);
  const Batch all = data.rows(numbers);
  CHECK(ints(all.inputs) == ints(want.tokens));
  CHECK(ints(all.targets) == ints(want.targets));
  std::int64_t padding = 0;
  for (std::size_t i = 0; i < ints(all.positions).size(); ++i) {
    const bool is_padding = static_cast<std::int32_t>(i % 4) >= want.filled[i / 4];
    CHECK(ints(all.positions)[i] == (is_padding ? -1 : ints(want.positions)[i]));
    padding += is_padding;
  }
  CHECK(all.positions.numel() - padding == static_cast<std::int64_t>(text.size()));

  const std::int64_t some[] = {1, 3};
  const Batch two = data.rows(some);
  CHECK(packing_of(two, 4, kCpu).rows == 2);
  CHECK(want.packing(1, 2).rows == 2);
  CHECK(want.packing(1, 0).rows == 1);
  for (std::int64_t i = 0; i < 2; ++i) {
    const nn::Packing got = packing_of(two.narrow(i, 1), 4, kCpu), same = want.packing(some[i], 1);
    CHECK(got.rows == same.rows);
    CHECK(ints(got.cu_seqlens) == ints(same.cu_seqlens));
    CHECK(ints(got.positions) == ints(same.positions));
    CHECK(got.padding.defined() == same.padding.defined());
    if (got.padding.defined()) CHECK(test::values(got.padding) == test::values(same.padding));
  }
  CHECK(test::without_checksum(Loader(data, {.batch = 2}).state()) ==
        R"({"epoch":0,"index":0,"seed":0,"seq":4,"tokens":17,"documents":5})");
  CHECK(error_of([] { PackedDocuments(TokenStream::of_bytes("abc"), 4, {}); }) ==
        "packed documents: the end of a document must have at least 1 token, got none");
  CHECK(error_of([] { PackedDocuments(TokenStream::of_bytes("||"), 4, Ints{'|'}); }) ==
        "packed documents: the data must have a document of at least 2 tokens, got 2 tokens in 2");
}

TEST_CASE("data: the held-out part is the end") {
  const TokenStream s = TokenStream::of(count_to(25));
  const auto [train, val] = split_tokens(s, 0.1);
  CHECK(all(train) == count_to(22));
  CHECK(all(val) == Ints{22, 23, 24});
  CHECK(split_tokens(s, 0).second.size() == 0);
  CHECK(error_of([&] { split_tokens(s, 1); }) == "loader: val-fraction must be in [0, 1), got 1");
}

TEST_CASE("data: documents are packed into the first row with room") {
  // Pieces: A(3) B(4) C(2) D(5 + 5 + 2) E(1); rows of 5.
  const PackedRows p = pack_documents({{1, 2, 3},
                                       {11, 12, 13, 14},
                                       {},
                                       {21, 22},
                                       {31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42},
                                       {51}},
                                      5);
  CHECK(p.rows() == 5);
  CHECK(ints(p.tokens) == Ints{1,  2,  3,  21, 22, 11, 12, 13, 14, 51, 31, 32, 33,
                               34, 35, 36, 37, 38, 39, 40, 41, 42, 0,  0,  0});
  constexpr std::int32_t x = kIgnore;
  CHECK(ints(p.targets) == Ints{2,  3,  x,  22, x,  12, 13, 14, x, x, 32, 33, 34,
                                35, 36, 37, 38, 39, 40, 41, 42, x, x, x,  x});
  CHECK(ints(p.positions) ==
        Ints{0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 0, 1, 2});
  CHECK(p.cu_seqlens == std::vector<Ints>{{0, 3, 5}, {0, 4, 5}, {0, 5}, {0, 5}, {0, 2, 5}});
  CHECK(ints(p.flat_cu_seqlens(0, 3)) == Ints{0, 3, 5, 9, 10, 15});
  CHECK(ints(p.flat_cu_seqlens(4, 1)) == Ints{0, 2, 5});
  CHECK(error_of([&] { p.flat_cu_seqlens(4, 2); }) ==
        "flat_cu_seqlens: rows [4, 6) must lie in [0, 5)");
  // Rows made by hand with a list missing.
  PackedRows by_hand{p.tokens, p.targets, p.positions, p.cu_seqlens, {}};
  CHECK(error_of([&] { (void)by_hand.packing(0, 5); }) ==
        "packing: filled must have one number for each of the 5 rows, got 0");
  by_hand.cu_seqlens.pop_back();
  CHECK(error_of([&] { by_hand.flat_cu_seqlens(0, 5); }) ==
        "flat_cu_seqlens: cu_seqlens must have one list for each of the 5 rows, got 4");
}

TEST_CASE("data: packing keeps all tokens, fills rows and accepts zero documents") {
  CHECK(pack_documents({}, 4).rows() == 0);
  CHECK(pack_documents({{}, {}}, 4).rows() == 0);
  CHECK(error_of([] { pack_documents({}, 0); }) == "pack_documents: seq must be at least 1, got 0");
  std::vector<Ints> documents;
  std::int64_t total = 0;
  std::int32_t next = 1;
  for (int i = 0; i < 500; ++i) {
    Ints d(static_cast<std::size_t>(i * 37 % 40));
    for (auto& t : d) t = next++;
    total += static_cast<std::int64_t>(d.size());
    documents.push_back(d);
  }
  const PackedRows p = pack_documents(documents, 32);
  Ints tokens = ints(p.tokens);
  std::erase(tokens, 0);
  std::sort(tokens.begin(), tokens.end());
  CHECK(static_cast<std::int64_t>(tokens.size()) == total);
  CHECK(std::adjacent_find(tokens.begin(), tokens.end()) == tokens.end());
  CHECK(p.rows() * 32 < total * 1.1);
}

TEST_CASE("data: joined streams are read across their borders") {
  const test::TempFolder folder;
  const std::vector<std::int32_t> second{4, 5, 6, 700};
  write_token_file(folder / "b.bin", second);
  const TokenStream all =
      TokenStream::joined({TokenStream::of(std::vector<std::int32_t>{0, 1, 2, 3}),
                           open_token_file(folder / "b.bin"), TokenStream::of_bytes("\x07\x08")});
  REQUIRE(all.size() == 10);
  const std::int32_t want[] = {0, 1, 2, 3, 4, 5, 6, 700, 7, 8};
  for (std::int64_t first = 0; first <= 10; ++first)
    for (std::int64_t count = 0; first + count <= 10; ++count) {
      std::vector<std::int32_t> whole(static_cast<std::size_t>(count)), part = whole;
      all.read(first, whole);
      all.slice(first, count).read(0, part);
      CHECK(std::equal(whole.begin(), whole.end(), want + first));
      CHECK(part == whole);
    }
  CHECK(all.max_token() == 700);
  CHECK(all.slice(0, 7).max_token() == 6);
  CHECK(all.slice(5, 5).slice(3, 2).max_token() == 8);
  CHECK_FALSE(all.changed());
  std::vector<std::int32_t> out(2);
  CHECK(error_of([&] { all.slice(2, 4).read(3, out); }) == "tokens: [3, 5) must lie in [0, 4)");
  io::append_file(folder / "b.bin", "xx");
  CHECK(all.changed());
  CHECK(error_of([&] { all.read(0, out); }) == "no error");  // of an unchanged part
  CHECK(error_of([&] { all.read(3, out); }).find("must not change while it is read") !=
        std::string::npos);
  CHECK(error_of([&] { all.check_unchanged(); }).find("b.bin") != std::string::npos);
}

}  // namespace weft::data_test
