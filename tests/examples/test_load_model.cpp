// Programs read a model's files into its memory: what load_state_dict() gives.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/distributed/hf_folder.h"
#include "weft/examples/common/model_folder.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::load_model_test {
namespace {

nn::GptConfig config_of(nn::Arch arch) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .kv_heads = arch == nn::Arch::llama ? 2 : 4,
          .dim = 32,
          .seq = 16,
          .vocab = 50};
}

void check_loaded(const nn::GptConfig& config, const distributed::ShardFiles& files) {
  nn::Gpt plain(config);
  plain.load_state_dict(files.state_dict());
  const nn::Gpt loaded = examples::load_model(config, files, config.seq);
  const StateDict want = plain.state_dict(), got = loaded.state_dict();
  CHECK(got.size() == want.size());
  for (const auto& [name, tensor] : want) {
    CAPTURE(name);
    CHECK(test::different_bits(got.at(name), tensor) == "");
  }
  const Tensor ids = Tensor::of({3, 1, 4, 1, 5, 9}, {1, 6}, DType::i32);
  CHECK(test::different_bits(loaded(ids), plain(ids)) == "");
}

}  // namespace

TEST_CASE("load_model: models without a trained vector for each position take other lengths") {
  for (const nn::Positions p : {nn::Positions::none, nn::Positions::learned}) {
    nn::GptConfig config = config_of(nn::Arch::gpt2);
    config.positions = p;
    const test::TempFolder folder;
    const std::vector<std::string> weights = {folder / "weights.safetensors"};
    io::save_safetensors(weights[0], nn::Gpt(config).state_dict());
    const distributed::ShardFiles files(weights);
    check_loaded(config, files);
    const nn::Gpt loaded = examples::load_model(config, files, 8);
    CHECK(loaded.config.seq == 8);
    CHECK(loaded.positions.has_value() == (p == nn::Positions::learned));
  }
}

TEST_CASE("load_model: the weights of a run, of one tied name or another, and of a folder") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const nn::GptConfig config = config_of(arch);
      CAPTURE(message("{} {}", arch == nn::Arch::gpt2 ? "gpt2" : "llama", dtype));
      nn::Gpt model(config);
      model.to(dtype);
      const test::TempFolder folder;
      const std::vector<std::string> weights = {folder / "weights.safetensors"};
      StateDict state = model.state_dict();
      io::save_safetensors(weights[0], state);
      check_loaded(config, distributed::ShardFiles(weights));
      distributed::save_hf_folder(folder.path(), config, distributed::ShardFiles(weights));
      const distributed::HfFolder hf = distributed::open_hf_folder(folder.path());
      check_loaded(hf.config, hf.files);
      if (!config.tied()) continue;
      state["head.weight"] = state.at("embed.weight");
      state.erase("embed.weight");
      io::save_safetensors(weights[0], state);
      check_loaded(config, distributed::ShardFiles(weights));
    }
}

TEST_CASE("load_model: memory for the weights once") {
  nn::GptConfig config = config_of(nn::Arch::llama);
  config.dim = 256;
  const test::TempFolder folder;
  const std::vector<std::string> weights = {folder / "weights.safetensors"};
  io::save_safetensors(weights[0], nn::Gpt(config).state_dict());
  const distributed::ShardFiles files(weights);
  const std::int64_t before = memory_stats().live_bytes;
  reset_peak();
  const nn::Gpt loaded = examples::load_model(config, files, config.seq);
  const std::int64_t bytes = 4 * config.parameter_count();
  CHECK(memory_stats().peak_bytes - before >= bytes);
  CHECK(memory_stats().peak_bytes - before < bytes * 5 / 4);
}

}  // namespace weft::load_model_test
