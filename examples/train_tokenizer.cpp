// Trains a tokenizer: train_tokenizer --data book.txt --vocab 4096 --out tokenizer.json.
#include <cstdio>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/document_reader.h"
#include "weft/io/file.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/train_bpe.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"

namespace {

using namespace weft;

struct Options {
  std::vector<std::string> data, special = {"<|endoftext|>"};
  std::string out = "tokenizer.json", field = "text";
  std::int64_t vocab = 4096, least_count = 2;
};

void train_tokenizer(const Options& o) {
  check(!o.data.empty(), "--data: name at least one file");
  check(o.vocab <= 1'000'000, "--vocab: must be at most 1000000, got {}", o.vocab);
  check(!io::exists(o.out), "--out: '{}' exists already; remove it, or name another file", o.out);
  tokenizer::BpeTrainer trainer(
      {.vocab = o.vocab, .least_count = o.least_count, .special = o.special});
  std::size_t bytes = 0, tokens = 0;
  const std::vector<std::string> files = data::files_below(o.data);
  const auto each_text = [&](auto&& use) {
    data::DocumentReader reader(files, {.field = o.field});
    while (const auto piece = reader.next()) use(piece->text);
  };
  each_text([&](const std::string& text) {
    trainer.add(text);
    bytes += text.size();
  });
  check(bytes > 0, "--data: the files must hold text, got none");
  const std::string json = trainer.to_json();
  const auto trained = tokenizer::read(json, o.out);
  each_text([&](const std::string& text) { tokens += trained->encode(text).size(); });
  io::write_file(o.out, json);
  std::printf("wrote %s: %lld tokens, %.3f bytes of this text per token\n", o.out.c_str(),
              static_cast<long long>(trained->vocab()),
              static_cast<double>(bytes) / static_cast<double>(tokens));
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("train_tokenizer", [&] {
    Options o;
    train::CommandLine line("Trains a byte-pair tokenizer on text files.", "train_tokenizer");
    line.add("--data", o.data,
             "text files, .jsonl files, or folders of them; also compressed as .gz or .zst");
    line.add("--field", o.field, "member of each object of a .jsonl file that holds a text");
    line.add("--vocab", o.vocab, "tokens: 256 bytes, the merges, the special tokens");
    line.add("--least-count", o.least_count, "how often a pair must occur to be merged");
    line.add("--special", o.special, "special tokens, which get the last ids");
    line.add("--out", o.out, "tokenizer.json to write");
    std::string config;
    line.add("--config", config, "TOML file with the same names; a flag wins");
    if (!line.parse(train::expand_config(argc, argv))) return 0;
    train_tokenizer(o);
    return 0;
  });
}
