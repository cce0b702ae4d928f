// Trains a GPT on text: train_gpt --data book.txt --out run. --help lists every option.
#include <cstdio>

#include "weft/core/error.h"
#include "weft/examples/common/trainer.h"

int main(int argc, char** argv) try {
  weft::set_log_handler([](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  const weft::train::Parsed parsed = weft::train::parse_options("train_gpt", argc, argv);
  return parsed.exit_status >= 0 ? parsed.exit_status : weft::train::train(parsed.options);
} catch (const weft::Error& e) {
  std::fprintf(stderr, "train_gpt: %s\n", e.what());
  return static_cast<int>(e.fault());
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_gpt: %s\n", e.what());
  return 1;
}
