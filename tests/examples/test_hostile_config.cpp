// Damaged settings: config files, and the model in a checkpoint's state.json.
#include <doctest/doctest.h>

#include <string>

#include "weft/examples/common/gpt_options.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/json.h"
#include "weft/tests/damaged.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/config_file.h"
#include "weft/train/flags.h"

namespace weft::hostile_config_test {

TEST_CASE("hostile config: a damaged state.json gives a valid model or an error") {
  nn::GptConfig llama{.arch = nn::Arch::llama, .pattern = "da"};
  nn::GptConfig mla{.arch = nn::Arch::llama, .attention = nn::AttentionKind::mla};
  mla.moe.experts = 4;
  mla.moe.ffn = 32;
  for (const nn::GptConfig& seed : {nn::GptConfig{}, llama, mla})
    test::survives(examples::config_to_json(seed).dump(), [](const std::string& text) {
      const nn::GptConfig read = examples::config_from_json(io::Json::parse(text));
      read.validate();
      CHECK(read.parameter_count() > 0);
      examples::config_to_json(read);
    });
}

TEST_CASE("hostile config: damaged config files") {
  const test::TempFolder folder;
  const std::string path = folder / "c.toml";
  examples::GptOptions seed, read;
  seed.data.files = {"a.txt", "b \"c\".txt"};
  test::survives(train::to_toml(seed), [&](const std::string& text) {
    test::put(path, text);
    std::string program = "train_gpt", flag = "--config", name = path;
    char* argv[] = {program.data(), flag.data(), name.data()};
    examples::parse(read, 3, argv);
  });
}

}  // namespace weft::hostile_config_test
