#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/documents.h"
#include "weft/data/megatron.h"
#include "weft/data/packed_documents.h"
#include "weft/data/token_file.h"
#include "weft/io/file.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::megatron_test {
using namespace weft::data;
using test::error_of;
using test::Ints;
using test::ints;
using Ends = std::vector<std::int64_t>;

namespace {

Ints all(const TokenStream& s) {
  Ints v(static_cast<std::size_t>(s.size()));
  s.read(0, v);
  return v;
}

Ends ends_of(const TokenStream& s, const Ints& end = {}) {
  Ends ends;
  each_document_end(s, end, [&](std::int64_t e) {
    ends.push_back(e);
    return true;
  });
  return ends;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size());
}

/// The index of `lengths`, with the given type and first sequences of documents, as Megatron
/// writes.
std::string index_of(int type, int width, const Ints& lengths, const Ends& firsts) {
  std::string out("MMIDIDX\0\0", 9);
  out += bytes_of<std::int64_t>({1}) + static_cast<char>(type);
  out += bytes_of<std::int64_t>({std::ssize(lengths), std::ssize(firsts)}) + bytes_of(lengths);
  Ends begins;
  std::int64_t at = 0;
  for (const std::int32_t n : lengths) {
    begins.push_back(at);
    at += std::int64_t{width} * n;
  }
  return out + bytes_of(begins) + bytes_of(firsts);
}

}  // namespace

TEST_CASE("megatron: golden bytes of a pair, and what is read back") {
  const test::TempFolder folder;
  const std::string stem = folder / "x";
  {
    MegatronWriter out(stem, 2);
    out.add(Ints{1, 65535}, false);
    out.add(Ints{3});
    out.add(Ints{});
    out.add(Ints{4, 5, 6});
    CHECK(out.position() == MegatronWriter::Position{6, 4, 3});
    out.commit();
  }
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"x.bin", "x.idx"});
  CHECK(io::read_file(stem + ".bin") == bytes_of<std::uint16_t>({1, 65535, 3, 4, 5, 6}));
  CHECK(io::read_file(stem + ".idx") == index_of(8, 2, {2, 1, 0, 3}, {0, 2, 3, 4}));
  for (const char* name : {"x.idx", "x.bin"}) {
    const TokenStream tokens = open_token_file(folder / name);
    CHECK(all(tokens) == Ints{1, 65535, 3, 4, 5, 6});
    CHECK(tokens.has_documents());
    CHECK(ends_of(tokens) == Ends{3, 6});  // an empty document has no end of its own
    CHECK(ends_of(tokens.slice(1, 4)) == Ends{2, 4});
    CHECK(ends_of(tokens.slice(3, 3)) == Ends{3});
    CHECK(ends_of(TokenStream::joined({tokens.slice(1, 5), tokens}).slice(1, 8)) ==
          Ends{1, 4, 7, 8});
  }
  MegatronWriter wide(folder / "wide", 4);
  wide.add(Ints{70000, 1});
  wide.commit();
  const TokenStream tokens = open_token_file(folder / "wide.bin");
  CHECK(all(tokens) == Ints{70000, 1});
  CHECK(tokens.max_token() == 70000);
  CHECK(MegatronWriter::width_for(65536) == 2);
  CHECK(MegatronWriter::width_for(65537) == 4);
}

TEST_CASE("megatron: bytes, modes and widths that others write are read") {
  const test::TempFolder folder;
  io::write_file(folder / "a.bin", std::string("\1\2\377", 3));
  io::write_file(folder / "a.idx", index_of(1, 1, {1, 2}, {0, 1, 2}) + std::string("\0\1", 2));
  const TokenStream tokens = open_token_file(folder / "a.idx");
  CHECK(all(tokens) == Ints{1, 2, 255});
  CHECK(all(tokens.slice(1, 2)) == Ints{2, 255});
  CHECK(ends_of(tokens) == Ends{1, 3});
  io::write_file(folder / "b.bin", bytes_of<std::int32_t>({1, -7}));
  io::write_file(folder / "b.idx", index_of(4, 4, {2}, {0, 1}));
  CHECK(error_of([&] { all(open_token_file(folder / "b.idx")); }) ==
        "data: '" + folder / "b.bin" + "' must hold tokens of at least 0, got -7 at token 1");
}

TEST_CASE("megatron: a damaged index is refused in one line") {
  const test::TempFolder folder;
  const std::string idx = folder / "x.idx", named = "data: '" + idx + "' ";
  io::write_file(folder / "x.bin", std::string(12, '\0'));
  const std::string good = index_of(8, 2, {2, 1, 3}, {0, 2, 3});
  const auto refusal = [&](const std::string& content) {
    io::write_file(idx, content);
    return error_of([&] { open_token_file(idx); });
  };
  const auto changed = [&](std::size_t at, auto value) {
    std::string copy = good;
    std::memcpy(copy.data() + at, &value, sizeof value);
    return refusal(copy);
  };
  CHECK(refusal(good) == "no error");
  CHECK(refusal("MMIDIDX") == named + "must have a header of 34 bytes, got 7");
  CHECK(changed(0, 'm') == named + "must begin with MMIDIDX, as Megatron writes .idx files");
  CHECK(changed(9, std::int64_t{2}) == named + "must have version 1, got 2");
  CHECK(changed(17, '\6') ==
        named + "must have tokens of type 1 (uint8), 8 (uint16) or 4 (int32), got 6");
  // Counts that overflow when multiplied, are negative, or do not fit the file.
  for (const std::int64_t count : {std::int64_t{1} << 62, std::int64_t{-1}, std::int64_t{0}})
    for (const std::size_t at : {18, 26})
      CHECK(changed(at, count).starts_with(named + "must have at least 1 sequence and 1 document"));
  CHECK(changed(18, std::int64_t{4}) ==
        named + "must have 106 bytes for its 4 sequences and 2 documents, got 94");
  CHECK(refusal(good + "abcd") ==
        named + "must have 94 bytes for its 3 sequences and 2 documents, got 98");
  CHECK(changed(34, std::int32_t{-2}).find("but number 0 has -2 tokens at byte 0") !=
        std::string::npos);
  CHECK(changed(46, std::int64_t{2}).find("number 0 begins at byte 2 instead of 0") !=
        std::string::npos);
  CHECK(changed(42, std::int32_t{2}) ==
        named + "must have the 12 bytes of its .bin in sequences, got 10");
  CHECK(changed(70, std::int64_t{1}).find("from sequence 0 to 3, got 1 at number 0") !=
        std::string::npos);
  CHECK(changed(78, std::int64_t{4}).find("got 4 at number 1") != std::string::npos);
  CHECK(changed(86, std::int64_t{2}).find("got 2 at number 2") != std::string::npos);
  std::filesystem::remove(folder / "x.bin");
  CHECK(refusal(good) ==
        named + "must have its tokens beside it, but there is no file '" + folder / "x.bin" + "'");
}

TEST_CASE("megatron: writing goes on where it was made durable") {
  const test::TempFolder folder;
  const auto fill = [](MegatronWriter& out, int from, int to) {
    for (int d = from; d < to; ++d) out.add(test::count_to(d % 7), d % 3 != 0);
  };
  MegatronWriter whole(folder / "whole", 2);
  fill(whole, 0, 50);
  whole.commit();
  MegatronWriter::Position at;
  {
    MegatronWriter parts(folder / "parts", 2);
    fill(parts, 0, 20);
    at = parts.sync();
    fill(parts, 20, 33);  // lost
    parts.sync();
  }
  {
    MegatronWriter parts(folder / "parts", 2, at);
    fill(parts, 20, 50);
    parts.commit();
  }
  for (const char* name : {".bin", ".idx"})
    CHECK(io::read_file(folder / "parts" + name) == io::read_file(folder / "whole" + name));
  io::write_file(folder / "short.bin.part", "ab");
  CHECK(error_of([&] { MegatronWriter(folder / "short", 2, at); }) ==
        message("megatron writer: '{}' must have {} bytes or more, got 2",
                folder / "short.bin.part", 2 * at.tokens));
  CHECK(error_of([&] { MegatronWriter(folder / "y", 2).add(Ints{65536}); }) ==
        "megatron writer: a token must be in [0, 65535], got 65536");
  CHECK(error_of([&] { MegatronWriter(folder / "y", 3); }) ==
        "megatron writer: width must be 2 or 4, got 3");
  CHECK(error_of([&] { MegatronWriter(folder / "y", 4).commit(); }) ==
        "megatron writer: '" + folder / "y" + "' must have at least 1 token, got none");
}

TEST_CASE("documents: ends are found across pieces, and the held-out part begins with a document") {
  // Longer than what is read at once, with ends that lie across its borders.
  Ints tokens(200'000, 1);
  Ends want;
  for (const std::int64_t at : {10, 65'535, 131'071, 131'073, 199'990}) {
    tokens[static_cast<std::size_t>(at)] = 8;
    tokens[static_cast<std::size_t>(at) + 1] = 9;
    want.push_back(at + 2);
  }
  const TokenStream stream = TokenStream::of(tokens);
  want.push_back(200'000);
  CHECK(ends_of(stream, {8, 9}) == want);
  CHECK(ends_of(TokenStream::of(Ints{1, 1, 1, 1, 1}), {1, 1}) == Ends{2, 4, 5});
  CHECK(error_of([&] { ends_of(stream); }) ==
        "tokens: only files with an .idx file say where their documents end");

  const auto cut = [&](double fraction) {
    const auto [train, val] = split_documents(stream, fraction, Ints{8, 9});
    CHECK(train.size() + val.size() == 200'000);
    return train.size();
  };
  CHECK(cut(0) == 200'000);
  CHECK(cut(0.5) == 131'073);      // the first end behind half
  CHECK(cut(0.00001) == 199'992);  // the last one before
  CHECK(cut(0.9999) == 65'537);
  const TokenStream one = TokenStream::of(test::count_to(10));
  CHECK(split_documents(one, 0.3, Ints{77}).first.size() == 7);
}

TEST_CASE("documents: an index packs like tokens that end documents") {
  const test::TempFolder folder;
  MegatronWriter out(folder / "x", 2);
  Ints flat;
  for (int d = 1; d < 40; ++d) {
    Ints document = test::count_to(d * 13 % 23 + 1);
    document.push_back(500);
    flat.insert(flat.end(), document.begin(), document.end());
    out.add(document);
  }
  out.commit();
  const PackedDocuments by_index(open_token_file(folder / "x.idx"), 16, {}),
      by_token(TokenStream::of(flat), 16, Ints{500});
  REQUIRE(by_index.size() == by_token.size());
  CHECK(by_index.documents() == 39);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = by_index.size(); i-- > 0;) numbers.push_back(i);
  const Batch a = by_index.rows(numbers), b = by_token.rows(numbers);
  CHECK(ints(a.inputs) == ints(b.inputs));
  CHECK(ints(a.targets) == ints(b.targets));
  CHECK(ints(a.positions) == ints(b.positions));
  const std::int64_t outside[] = {by_index.size()};
  CHECK(error_of([&] {
          by_index.rows(outside);
        }).starts_with("packed documents: a row must be in [0, "));
}

}  // namespace weft::megatron_test
