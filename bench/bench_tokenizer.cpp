// How fast one thread encodes and decodes a text: bench_tokenizer --tokenizer FILE --text FILE.
// bench/peers/token_speed.py runs it beside the reference libraries.
#include <string>
#include <vector>

#include "weft/bench/harness.h"
#include "weft/io/file.h"
#include "weft/tokenizer/tokenizer.h"

using namespace weft;

int main(int argc, char** argv) try {
  std::string file, text_file;
  bench::Report report(argc, argv,
                       {{"--tokenizer", &file, "FILE"}, {"--text", &text_file, "FILE"}});
  if (file.empty() || text_file.empty()) {
    std::fputs("bench_tokenizer: needs --tokenizer FILE and --text FILE\n", stderr);
    return 2;
  }
  const auto tokenizer = tokenizer::open(file);
  const std::string text = io::read_file(text_file);
  const std::vector<std::int32_t> ids = tokenizer->encode(text);
  const auto mega = [&](double seconds) {
    return static_cast<double>(text.size()) / seconds * 1e-6;
  };
  report.row("open", bench::seconds_per_call([&] { tokenizer::open(file); }, 1) * 1e3, "ms");
  report.row("encode", mega(bench::seconds_per_call([&] { tokenizer->encode(text); }, 5)), "MB/s");
  report.row("decode", mega(bench::seconds_per_call([&] { tokenizer->decode(ids); }, 5)), "MB/s");
  report.row("bytes per token", static_cast<double>(text.size()) / static_cast<double>(ids.size()),
             "bytes");
  double slowest = 0;
  for (const char* const letter : {"a", " ", "\n", "7", ".", "漢", "\u0301", "<"}) {
    std::string run;
    while (run.size() < 1'000'000) run += letter;
    const double start = bench::now();
    tokenizer->encode(run, {.added_tokens = true});
    slowest = std::max(slowest, bench::now() - start);
  }
  report.row("1 MB of one character, the slowest", slowest * 1e3, "ms");
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
