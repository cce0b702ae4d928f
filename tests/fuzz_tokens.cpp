// Opens damaged copies of token files, Megatron's .idx and the header of llm.c, and reads what is
// still valid: only Error may be thrown. usage: fuzz_tokens RUNS [SEED]. With clang and
// -DWEFT_LIBFUZZER -fsanitize=fuzzer it is a target of libFuzzer for .idx files.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/documents.h"
#include "weft/data/megatron.h"
#include "weft/data/token_file.h"
#include "weft/tests/mutations.h"
#include "weft/tests/temp_folder.h"

namespace {

using namespace weft;
using test::write_anew;

std::string read(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

// Whether the file was opened.
bool try_file(const std::string& path) {
  try {
    const data::TokenStream tokens = data::open_token_file(path);
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, all);
    std::int64_t last = 0;
    if (tokens.has_documents())
      tokens.each_document_end([&](std::int64_t end) { return (last = end) >= 0; });
    if (tokens.has_documents() && last != tokens.size()) std::abort();
    data::split_documents(tokens, 0.3, std::vector<std::int32_t>{7, 8});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Several sequences and documents, an empty one among them.
void write_pair(const std::string& stem) {
  data::MegatronWriter out(stem, 2);
  out.add(std::vector<std::int32_t>{1, 2, 3, 7, 8}, false);
  out.add(std::vector<std::int32_t>{4, 5});
  out.add({});
  out.add(std::vector<std::int32_t>{6, 7, 8, 9});
  out.commit();
}

}  // namespace

#ifdef WEFT_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TempFolder folder;
  static const std::string stem = [] {
    write_pair(folder / "x");
    return folder / "x";
  }();
  write_anew(stem + ".idx", std::string(reinterpret_cast<const char*>(data), size));
  try_file(stem + ".idx");
  return 0;
}
#else
int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: fuzz_tokens RUNS [SEED]\n", stderr);
    return 2;
  }
  const test::TempFolder folder;
  const std::string stem = folder / "x", other = folder / "y.bin";
  write_pair(stem);
  data::write_token_file(other, std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  const std::string idx = read(stem + ".idx"), bin = read(other);
  test::Mutations mutations(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const long runs = std::strtol(argv[1], nullptr, 10);
  long opened = 0;
  if (!try_file(stem + ".idx") || !try_file(other)) return 1;
  for (long i = 0; i < runs; ++i) {
    const bool first = i % 2 == 0;
    write_anew(first ? stem + ".idx" : other, mutations.of(first ? idx : bin));
    opened += try_file(first ? stem + ".idx" : other);
  }
  std::printf("%ld damaged copies, %ld of them still opened\n", runs, opened);
  return 0;
}
#endif
