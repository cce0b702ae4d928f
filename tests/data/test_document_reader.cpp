#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/document_reader.h"
#include "weft/io/file.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::document_reader_test {
using data::DocumentReader;
using test::error_of;
using Texts = std::vector<std::string>;

namespace {

/// The pieces; one that does not end its document has a "+" behind it.
Texts read(const Texts& files, const DocumentReader::Options& options = {}) {
  DocumentReader reader(files, options);
  Texts out;
  while (const auto piece = reader.next())
    out.push_back(piece->text + (piece->ends_document ? "" : "+"));
  CHECK(reader.file_bytes_read() == reader.file_bytes());
  return out;
}

}  // namespace

TEST_CASE("document reader: files, folders and what splits them") {
  const test::TempFolder folder;
  std::filesystem::create_directories(folder / "corpus/b");
  io::write_file(folder / "corpus/a.txt", "one\ntwo\n");
  io::write_file(folder / "corpus/b/c.md", "three");
  io::write_file(folder / "corpus/b/.hidden", "never");
  io::write_file(folder / "corpus/empty.txt", "");
  io::write_file(folder / "corpus/z.jsonl",
                 "{\"text\":\"f\\u00fcr\"}\n\n  \r\n{\"id\":1,\"text\":\"\"}\n{\"text\":\"end\"}");
  const Texts files = data::files_below({folder / "corpus", folder / "corpus/a.txt"});
  CHECK(files == Texts{folder / "corpus/a.txt", folder / "corpus/b/c.md",
                       folder / "corpus/empty.txt", folder / "corpus/z.jsonl",
                       folder / "corpus/a.txt"});
  CHECK(read(files) == Texts{"one\ntwo\n", "three", "f\u00fcr", "end", "one\ntwo\n"});
  io::write_file(folder / "s", "one##two####three##");
  CHECK(read({folder / "s"}, {.split = "##"}) == Texts{"one", "two", "three"});
  io::write_file(folder / "t", "##");
  CHECK(read({folder / "t"}, {.split = "##"}).empty());
  CHECK(read({folder / "t", folder / "s"}, {.split = "##"}) == Texts{"one", "two", "three"});
  CHECK(error_of([&] { data::files_below({folder / "none"}); }) ==
        "data: no file '" + folder / "none" + "'");
  std::filesystem::create_directories(folder / "bare");
  CHECK(error_of([&] { data::files_below({folder / "bare"}); }) ==
        "data: the folder '" + folder / "bare" + "' holds no files");
}

TEST_CASE("document reader: long documents come in pieces that end with a line") {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 90'000; ++i)
    text += "line " + std::to_string(i % 7) + (i % 100 == 99 ? "%%" : "\n");
  io::write_file(folder / "x", text);
  const Texts pieces = read({folder / "x"}, {.piece_bytes = 1000});
  std::string joined;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool last = i + 1 == pieces.size();
    CHECK(pieces[i].ends_with('+') != last);
    const std::string piece = last ? pieces[i] : pieces[i].substr(0, pieces[i].size() - 1);
    if (!last) CHECK(piece.ends_with('\n'));
    CHECK(piece.size() <= 1002);
    joined += piece;
  }
  CHECK(joined == text);
  // With a split that pieces must not hide, wherever they are cut.
  for (const std::int64_t bytes : {50, 699, 700, 701, 702, 703, 1500}) {
    const Texts parts = read({folder / "x"}, {.split = "%%", .piece_bytes = bytes});
    Texts documents(1);
    for (const std::string& part : parts) {
      const bool goes_on = part.ends_with('+');
      documents.back() += goes_on ? part.substr(0, part.size() - 1) : part;
      if (!goes_on) documents.emplace_back();
    }
    CHECK(documents.size() == 901);
    CHECK(documents.back().empty());
    std::string whole;
    for (std::size_t i = 0; i < 900; ++i) whole += documents[i] + "%%";
    CHECK(whole == text);
  }
  // Without a line break, not inside a character.
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "\u00fc";
  io::write_file(folder / "y", wide);
  CHECK(read({folder / "y"}, {.piece_bytes = 1001})[0] == wide.substr(0, 1000) + "+");
}

TEST_CASE("document reader: wrong lines name the file and the line") {
  const test::TempFolder folder;
  const std::string path = folder / "x.jsonl";
  const auto refusal = [&](const std::string& lines) {
    io::write_file(path, lines);
    return error_of([&] { read({path}, {.line_bytes = 300'000}); });
  };
  CHECK(refusal("{\"text\":\"a\"}\n{\"txt\":\"b\"}\n") ==
        "data: '" + path + "', line 2 must have a text in the member 'text'");
  CHECK(refusal("\n{\"text\":3}\n") ==
        "data: '" + path + "', line 2 must have a text in the member 'text'");
  CHECK(refusal("{\"text\":").starts_with("data: '" + path + "', line 1: "));
  CHECK(refusal("[1]").find("line 1 must have a text") != std::string::npos);
  CHECK(refusal(std::string(900'000, ' ')) ==
        "data: '" + path + "' must have lines of at most 300000 bytes, but line 1 is longer");
}

}  // namespace weft::document_reader_test
