// Models that lose something as a Hugging Face folder or a GGUF file are refused, and folders that
// held another model.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/distributed/gguf_file.h"
#include "weft/distributed/hf_folder.h"
#include "weft/io/file.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gguf.h"
#include "weft/nn/gpt.h"
#include "weft/nn/lora.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::hf_export_test {
namespace {

nn::GptConfig llama() {
  return {
      .arch = nn::Arch::llama, .layers = 2, .heads = 2, .dim = 16, .ffn = 8, .seq = 8, .vocab = 31};
}

nn::GptConfig mixtral() {
  nn::GptConfig c = llama();
  c.moe = {.experts = 4, .ffn = 8};
  return c;
}

nn::GptConfig deepseek() {
  nn::GptConfig c = llama();
  c.norm_eps = 1e-6;
  c.attention = nn::AttentionKind::mla;
  c.moe = {.experts = 16, .ffn = 8, .shared_ffn = 8};
  c.moe.router.expert_bias = true;
  c.moe.router.route = {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2};
  return c;
}

/// The files of a state, in a folder of their own.
struct Stored {
  test::TempFolder folder;
  distributed::ShardFiles files;
  explicit Stored(const StateDict& state) : files(write(folder / "weights", state)) {}
  static std::vector<std::string> write(const std::string& path, const StateDict& state) {
    io::save_safetensors(path, state);
    return {path};
  }
};

std::string hf_error(const nn::GptConfig& c, const StateDict& state) {
  const Stored stored(state);
  return test::error_of(
      [&] { distributed::save_hf_folder(stored.folder / "hf", c, stored.files); });
}

std::string gguf_error(const nn::GptConfig& c, const StateDict& state) {
  const Stored stored(state);
  return test::error_of(
      [&] { distributed::save_gguf(stored.folder / "model.gguf", c, stored.files, {}); });
}

}  // namespace

TEST_CASE("hf export: a bias of the router is refused") {
  nn::GptConfig c = mixtral();
  CHECK(std::string(nn::hf_family_of(c).type) == "mixtral");
  c.moe.router.bias = true;
  const std::string want =
      "hf: the router of no family has a bias; moe.router.bias must be false, got true";
  CHECK(test::error_of([&] { nn::hf_family_of(c); }) == want);
  CHECK(test::error_of([&] { nn::gguf_model(c); }) == want);
  c.moe.experts = 0;  // no router
  CHECK(std::string(nn::hf_family_of(c).type) == "llama");
}

TEST_CASE("hf export: a tensor without a place is refused by its name") {
  const nn::Gpt model(mixtral());
  StateDict state = model.state_dict();
  CHECK(hf_error(mixtral(), state) == "no error");
  state["blocks.0.attn.qkv.fp8_scale"] = Tensor::zeros({3});  // of training alone
  CHECK(hf_error(mixtral(), state) == "no error");
  state["blocks.1.moe.router.bias"] = Tensor::zeros({4});
  CHECK(hf_error(mixtral(), state) ==
        "hf: mixtral has no place for the tensor blocks.1.moe.router.bias of this model");
  nn::GptConfig c = llama();
  c.tie = true;
  c.mtp.depths = 1;
  state = nn::Gpt(c).state_dict();
  state["head.weight"] = state.at("embed.weight");
  CHECK(gguf_error(c, state) == "no error");  // GGUF files have no MTP layers
  state["blocks.0.extra"] = Tensor::zeros({4});
  CHECK(gguf_error(c, state) ==
        "gguf: llama has no place for the tensor blocks.0.extra of this model");
}

TEST_CASE("hf export: adapters are refused, merged ones are in the weights") {
  nn::Gpt model(llama());
  nn::add_lora(model, {.rank = 2, .targets = "q"});
  for (const NamedTensor& p : nn::lora_parameters(model)) p.tensor.detach().fill_(0.5);
  CHECK(hf_error(llama(), model.state_dict()) ==
        "hf: llama has no place for the tensor blocks.0.attn.qkv.lora.q.a of this model");
  nn::merge_lora(model);
  const Stored stored(model.state_dict());
  distributed::save_hf_folder(stored.folder / "hf", llama(), stored.files);
  nn::Gpt back(llama());
  back.load_state_dict(distributed::open_hf_folder(stored.folder / "hf").files.state_dict());
  const Tensor ids = Tensor::of({1, 2, 3}, {1, 3}, DType::i32);
  CHECK(test::different_bits(back(ids), model(ids)) == "");
}

TEST_CASE("hf export: the experts that make the score of a group follow from topk") {
  nn::GptConfig c = deepseek();
  CHECK(c.resolved().moe.router.route.group_best == 2);
  CHECK(std::string(nn::hf_family_of(c).type) == "deepseek_v3");
  c.moe.router.route.topk = 6;
  CHECK(c.resolved().moe.router.route.group_best == 3);  // the class takes 2
  CHECK_THROWS_AS(nn::hf_family_of(c), Error);
  c.moe.router.route.group_best = 2;
  CHECK(std::string(nn::hf_family_of(c).type) == "deepseek_v3");
  c.moe.router.route.group_topk = 0;  // not valid; nothing divides by it
  CHECK(c.resolved().moe.router.route.group_best == 2);
}

TEST_CASE("hf: deepseek_v3 takes mscale_all_dim with yarn alone") {
  nn::GptConfig c = deepseek();
  c.moe.router.route.group_best = 2;
  const io::Json plain = nn::write_hf_config(nn::hf_family_of(c), c, "float32");
  const auto error = [&](const char* key, const char* type, double mscale) {
    io::Json rope = io::Json().set("rope_type", type).set("factor", 2.0);
    rope.set("mscale_all_dim", mscale);
    io::Json json = plain;
    json.set(key, std::move(rope));
    if (std::string(key) == "rope_scaling") json.set("rope_parameters", io::Json());
    return test::error_of([&] { nn::read_hf_config(nn::hf_family(json), json); });
  };
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"linear", "llama3", "default"}) {
      CAPTURE(std::string(type));
      CHECK(error(key, type, 1).find(message("{}: mscale_all_dim 1", key)) != std::string::npos);
      CHECK(error(key, type, 1).find("is not supported; supported: 0") != std::string::npos);
      CHECK(error(key, type, 0) == "no error");
    }
    CHECK(error(key, "yarn", 1) == "no error");
  }
}

TEST_CASE("hf export: a model that replaces another leaves no file of its weights") {
  const Stored stored(nn::Gpt(llama()).state_dict());
  const test::TempFolder out;
  for (const std::int64_t bytes : {2'000, 1'000'000, 2'000}) {
    distributed::save_hf_folder(out.path(), llama(), stored.files, {.file_bytes = bytes});
    const bool one = bytes > 2'000;
    CHECK(io::exists(out / "model.safetensors") == one);
    CHECK(io::exists(out / "model.safetensors.index.json") == !one);
    const std::vector<std::string> files = io::list_directory(out.path());
    CHECK(std::any_of(files.begin(), files.end(),
                      [](const std::string& f) { return f.starts_with("model-"); }) == !one);
  }
}

TEST_CASE("hf export: what an old index names beside files of weights is kept") {
  const Stored stored(nn::Gpt(llama()).state_dict());
  for (const std::string name : {".", "sub", "sub.safetensors", "tokenizer.json"}) {
    const test::TempFolder out;
    const std::vector<std::string> kept{"tokenizer.json", "sub/notes", "sub.safetensors/notes"};
    io::make_directories(out / "sub");
    io::make_directories(out / "sub.safetensors");
    for (const std::string& file : kept) io::write_file(out / file, "{}");
    io::write_file(out / "old.safetensors", "old");
    io::write_file(
        out / "model.safetensors.index.json",
        R"({"weight_map": {"a": ")" + name + R"(", "b": "old.safetensors", "c": "gone"}})");
    distributed::save_hf_folder(out.path(), llama(), stored.files);
    CHECK(std::string(distributed::open_hf_folder(out.path()).family->type) == "llama");
    for (const std::string& file : kept) CHECK(io::exists(out / file));
    CHECK(!io::exists(out / "old.safetensors"));
  }
}

}  // namespace weft::hf_export_test
