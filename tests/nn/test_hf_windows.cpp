// Which layers have a window by a config.json, as the classes of transformers read it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/nn/hf.h"
#include "weft/tests/support.h"

namespace weft::hf_windows_test {
namespace {

using Windows = std::vector<std::int64_t>;

io::Json config(const char* type) {
  io::Json out = io::Json::parse(R"({"vocab_size":31,"hidden_size":16,"num_hidden_layers":3,
      "num_attention_heads":2,"num_key_value_heads":2,"intermediate_size":24,
      "max_position_embeddings":32,"num_experts":4,"num_experts_per_tok":2,
      "moe_intermediate_size":8,"use_sliding_window":true})");
  return out.set("model_type", type);
}

io::Json layer_types(const std::string& letters) {
  io::Json out = io::Json::Array();
  for (const char c : letters) out.push_back(c == 'w' ? "sliding_attention" : "full_attention");
  return out;
}

nn::GptConfig read(const io::Json& json) { return nn::read_hf_config(nn::hf_family(json), json); }

Windows windows_of(const nn::GptConfig& c) {
  Windows out;
  for (std::int64_t i = 0; i < c.layers; ++i) out.push_back(c.window_of(i));
  return out;
}

Windows windows(const io::Json& json) { return windows_of(read(json)); }

std::string error(const io::Json& json) {
  return test::error_of([&] { read(json); });
}

/// The config.json that a model is written as.
io::Json written(const nn::GptConfig& c, const char* type) {
  return nn::write_hf_config(nn::hf_family_of(c, type), c, "float32");
}

}  // namespace

TEST_CASE("hf windows: qwen3_moe has one in all layers or in none") {
  const io::Json base = config("qwen3_moe");
  const auto with = [&](const io::Json& window) {
    return io::Json(base).set("sliding_window", window);
  };
  CHECK(windows(base) == Windows{4096, 4096, 4096});
  CHECK(windows(with(5).set("max_window_layers", 1)) == Windows{5, 5, 5});
  CHECK(windows(with(5).set("layer_types", layer_types("www"))) == Windows{5, 5, 5});
  CHECK(windows(with(io::Json())) == Windows{0, 0, 0});
  CHECK(windows(with(5).set("use_sliding_window", false)) == Windows{0, 0, 0});
  CHECK(error(with(5).set("layer_types", layer_types("aww"))) ==
        "config.json: qwen3_moe: layer_types [\"full_attention\",\"sliding_attention\","
        "\"sliding_attention\"] is not supported; supported: sliding_attention in all layers");

  nn::GptConfig c = read(with(5));
  CHECK(std::string(nn::hf_family_of(c).type) == "qwen3_moe");
  CHECK(windows(written(c, "qwen3_moe")) == Windows{5, 5, 5});
  CHECK(!written(c, "qwen3_moe").find("layer_types"));
  c.pattern = "aww";
  CHECK(test::error_of([&] { nn::hf_family_of(c, "qwen3_moe"); }) ==
        "hf: the family qwen3_moe must be one that can hold this model; see docs/huggingface.md "
        "for what they hold");
  c.window = 0;
  c.pattern = {};
  CHECK(windows(written(c, "qwen3_moe")) == Windows{0, 0, 0});
}

TEST_CASE("hf windows: qwen2_moe needs layer_types") {
  const io::Json base = config("qwen2_moe").set("sliding_window", 5).set("max_window_layers", 1);
  CHECK(error(base) ==
        "config.json: qwen2_moe: use_sliding_window true is not supported; supported: false, or "
        "true with layer_types, without which versions of transformers differ about the layers "
        "that have the window");
  CHECK(windows(io::Json(base).set("sliding_window", io::Json())) == Windows{0, 0, 0});
  CHECK(windows(io::Json(base).set("use_sliding_window", false)) == Windows{0, 0, 0});
  const nn::GptConfig c = read(io::Json(base).set("layer_types", layer_types("awa")));
  CHECK(windows_of(c) == Windows{0, 5, 0});
  CHECK(windows(written(c, "qwen2_moe")) == Windows{0, 5, 0});
}

TEST_CASE("hf windows: sliding_window null is none for qwen2 and qwen3, without the key 4096") {
  for (const char* type : {"qwen2", "qwen3"}) {
    CAPTURE(std::string(type));
    const io::Json base = config(type).set("max_window_layers", 1);
    const io::Json none = io::Json(base).set("sliding_window", io::Json());
    CHECK(windows(base) == Windows{0, 4096, 4096});
    CHECK(windows(io::Json(base).set("sliding_window", 5)) == Windows{0, 5, 5});
    CHECK(windows(none) == Windows{0, 0, 0});
    CHECK(windows(io::Json(none).set("layer_types", layer_types("aaa"))) == Windows{0, 0, 0});
    CHECK(error(io::Json(none).set("layer_types", layer_types("aaw"))) ==
          message("config.json: {}: sliding_window null is not supported; supported: a number of "
                  "tokens where layer_types has sliding_attention",
                  type));
  }
  CHECK(windows(config("mistral")) == Windows{4096, 4096, 4096});
  CHECK(windows(config("mistral").set("sliding_window", io::Json())) == Windows{0, 0, 0});
}

TEST_CASE("hf windows: one of letters behind the last layer is none") {
  const nn::GptConfig c{.arch = nn::Arch::llama, .layers = 1, .window = 5, .pattern = "aw"};
  CHECK(std::string(nn::hf_family_of(c).type) == "llama");
  CHECK_THROWS_AS(nn::hf_family_of(c, "mistral"), Error);
}

}  // namespace weft::hf_windows_test
