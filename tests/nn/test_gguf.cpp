// GGUF files of models, against the gguf package of Python: scripts/gguf_oracle.py wrote
// tests/fixtures/gguf.json.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "weft/core/low_precision.h"
#include "weft/distributed/gguf_file.h"
#include "weft/distributed/hf_folder.h"
#include "weft/io/crc32c.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gguf.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::gguf_test {
namespace {

using distributed::GgufSaveOptions;
using io::GgufFile;
using io::GgufType;

io::Json fixture() {
  const std::string path = std::string(WEFT_FIXTURES) + "/gguf.json";
  return io::Json::parse(io::read_file(path), path);
}

GgufType type_of(const std::string& word) {
  return value_of(distributed::kGgufTypeWords, word, "type");
}

void check_file(const std::string& path, const io::Json& expected) {
  const GgufFile file = GgufFile::open(path);
  const io::Json& tensors = expected.at("tensors");
  CHECK(file.tensors().size() == tensors.members().size());
  for (const GgufFile::Info& t : file.tensors()) {
    CAPTURE(t.name);
    const io::Json* const row = tensors.find(t.name);
    REQUIRE(row);
    CHECK(io::Json(io::Json::Array(t.shape.begin(), t.shape.end())).dump() ==
          row->items()[0].dump());
    CHECK(io::gguf_type_name(t.type) == row->items()[1].as_string());
    const std::string data = file.data(t);
    if (const std::int64_t sum = row->items()[2].as_int(); sum != 0)
      CHECK(io::crc32c(data.data(), data.size()) == sum);
  }
  const GgufFile::Entry* const arch = file.find("general.architecture");
  REQUIRE(arch);
  CHECK(std::get<std::string>(arch->value) == expected.at("architecture").as_string());
}

std::int64_t number(const GgufFile& file, const char* key) {
  const GgufFile::Entry* const e = file.find(key);
  return e ? std::int64_t{std::get<std::uint32_t>(e->value)} : -1;
}

std::vector<float> floats(const GgufFile& file, const std::string& name) {
  for (const GgufFile::Info& t : file.tensors()) {
    if (t.name != name) continue;
    REQUIRE(t.type == static_cast<std::uint32_t>(GgufType::f32));
    const std::string data = file.data(t);
    std::vector<float> out(data.size() / sizeof(float));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  }
  FAIL("no tensor " << name);
  return {};
}

std::vector<float> values(const Tensor& t) {
  const Tensor x = t.contiguous();
  return {x.data<float>(), x.data<float>() + x.numel()};
}

nn::GptConfig tiny() {
  nn::GptConfig c;
  c.arch = nn::Arch::llama;
  c.layers = 2, c.heads = 3, c.kv_heads = 1, c.dim = 12, c.ffn = 16, c.vocab = 19, c.seq = 32;
  return c;
}

}  // namespace

TEST_CASE("gguf: files of each family have the tensors of the reference, also in small pieces") {
  const io::Json expected = fixture();
  const test::TempFolder out;
  for (const io::JsonMember& family : expected.at("families").members()) {
    CAPTURE(family.key);
    const auto folder =
        distributed::open_hf_folder(std::string(WEFT_FIXTURES) + "/hf/" + family.key);
    for (const std::int64_t piece : {std::int64_t{1} << 24, std::int64_t{200}}) {
      GgufSaveOptions options{.family = family.key};
      options.type = type_of(family.value.at("type").as_string());
      options.piece = piece;
      distributed::save_gguf(out / "m.gguf", folder.config, folder.files, options);
      check_file(out / "m.gguf", family.value);
    }
  }
}

TEST_CASE("gguf: q8_0 has the blocks of the reference") {
  const io::Json expected = fixture().at("q8_0");
  std::vector<float> values;
  for (const io::Json& v : expected.at("values").items())
    values.push_back(static_cast<float>(v.as_double()));
  std::string bytes;
  for (const io::Json& b : expected.at("bytes").items()) bytes += static_cast<char>(b.as_int());
  CHECK(io::gguf_q8_0(values) == bytes);
}

TEST_CASE("gguf: experts, shared experts and heads stand where llama.cpp looks for them") {
  nn::GptConfig c = tiny();
  c.attn_bias = nn::AttentionBias::qkv;
  c.moe.experts = 5, c.moe.ffn = 6, c.moe.shared_ffn = 8, c.moe.shared_gate = true;
  c.moe.router.route.topk = 2, c.moe.router.route.pre_softmax = true;
  const nn::Gpt model(c);
  const test::TempFolder out;
  io::save_safetensors(out / "m.safetensors", model.state_dict());
  const distributed::ShardFiles files({out / "m.safetensors"});
  GgufSaveOptions options{.family = "qwen2_moe"};
  options.type = GgufType::f32;
  distributed::save_gguf(out / "m.gguf", c, files, options);
  const GgufFile file = GgufFile::open(out / "m.gguf");
  const StateDict w = model.state_dict();
  const Tensor both = w.at("blocks.1.moe.experts.gate_up");
  CHECK(floats(file, "blk.1.ffn_gate_exps.weight") == values(both.narrow(1, 0, 6)));
  CHECK(floats(file, "blk.1.ffn_up_exps.weight") == values(both.narrow(1, 6, 6)));
  CHECK(floats(file, "blk.1.ffn_down_exps.weight") == values(w.at("blocks.1.moe.experts.down")));
  CHECK(floats(file, "blk.1.ffn_gate_inp.weight") == values(w.at("blocks.1.moe.router.weight")));
  CHECK(floats(file, "blk.0.ffn_gate_inp_shexp.weight") ==
        values(w.at("blocks.0.moe.shared.gate.weight")));
  CHECK(floats(file, "blk.0.ffn_up_shexp.weight") ==
        values(w.at("blocks.0.moe.shared.mlp.gate_up.weight").narrow(0, 8, 8)));
  CHECK(floats(file, "blk.1.attn_k.bias") ==
        values(w.at("blocks.1.attn.qkv.bias").narrow(0, 12, 4)));
  CHECK(number(file, "qwen2moe.expert_count") == 5);
  CHECK(number(file, "qwen2moe.expert_used_count") == 2);
  CHECK(number(file, "qwen2moe.expert_feed_forward_length") == 6);
  CHECK(number(file, "qwen2moe.expert_shared_feed_forward_length") == 8);
  CHECK(number(file, "qwen2moe.attention.head_count_kv") == 1);
  CHECK(number(file, "qwen2moe.context_length") == 32);
}

TEST_CASE("gguf: latent attention has keys and values apart, and pairs for rope") {
  nn::GptConfig c = tiny();
  c.kv_heads = 0, c.norm_eps = 1e-6, c.attention = nn::AttentionKind::mla;
  c.mla.q_lora = 6, c.mla.kv_lora = 8, c.mla.nope = 4, c.mla.rope = 4, c.mla.v_head = 3;
  c.moe.experts = 4, c.moe.ffn = 6, c.moe.shared_ffn = 12, c.dense_layers = 1;
  c.moe.router.route.topk = 2, c.moe.router.route.score = RouterScore::sigmoid;
  c.moe.router.expert_bias = true, c.mtp.depths = 1;
  const nn::Gpt model(c);
  const test::TempFolder out;
  io::save_safetensors(out / "m.safetensors", model.state_dict());
  GgufSaveOptions options;
  options.type = GgufType::f32;
  distributed::save_gguf(out / "m.gguf", c,
                         distributed::ShardFiles(std::vector<std::string>{out / "m.safetensors"}),
                         options);
  const GgufFile file = GgufFile::open(out / "m.gguf");
  const StateDict w = model.state_dict();
  const Tensor up = w.at("blocks.1.mla.kv_up.weight").view({3, 7, 8});
  CHECK(floats(file, "blk.1.attn_k_b.weight") == values(up.narrow(1, 0, 4).transpose(1, 2)));
  CHECK(floats(file, "blk.1.attn_v_b.weight") == values(up.narrow(1, 4, 3)));
  const Tensor down = w.at("blocks.0.mla.kv_down.weight");
  const std::vector<float> rows = floats(file, "blk.0.attn_kv_a_mqa.weight");
  for (const auto& [theirs, ours] : {std::pair(7, 7), {8, 8}, {9, 10}, {10, 9}, {11, 11}})
    CHECK(std::vector<float>(rows.begin() + theirs * 12, rows.begin() + (theirs + 1) * 12) ==
          values(down.narrow(0, ours, 1)));
  CHECK(floats(file, "blk.1.exp_probs_b.bias") == values(w.at("blocks.1.moe.router.expert_bias")));
  CHECK(number(file, "deepseek2.attention.key_length") == 12);
  CHECK(number(file, "deepseek2.attention.head_count_kv") == 1);
  CHECK(number(file, "deepseek2.expert_shared_count") == 2);
  CHECK(number(file, "deepseek2.leading_dense_block_count") == 1);
  for (const GgufFile::Info& t : file.tensors()) CHECK(!t.name.starts_with("blk.2"));
}

TEST_CASE("gguf: the context ends where a window would begin to matter") {
  nn::GptConfig c = tiny();
  c.window = 7;
  const nn::GgufModel model = nn::gguf_model(c, "mistral");
  CHECK(model.architecture == "llama");
  for (const auto& [key, value] : model.metadata)
    if (key == "llama.context_length") CHECK(std::get<std::uint32_t>(value) == 7);
}

TEST_CASE("gguf: what llama.cpp computes otherwise is refused") {
  const auto refuse = [](const nn::GptConfig& c, const char* family, const char* text) {
    CHECK_THROWS_WITH_AS(nn::gguf_model(c, family), text, Error);
  };
  nn::GptConfig c = tiny();
  c.attn_bias = nn::AttentionBias::all;
  c.qk_norm = true;
  refuse(c, "qwen3",
         "gguf: llama.cpp's qwen3 has no bias on the output of attention (attention_bias)");
  c = tiny();
  c.moe.experts = 4, c.moe.router.route.topk = 2;
  c.moe.router.route.pre_softmax = true;
  c.qk_norm = true;
  refuse(c, "qwen3_moe",
         "gguf: llama.cpp's qwen3moe divides the chosen probabilities by their sum (norm_topk_prob "
         "true)");
  c.moe.router.route.pre_softmax = false;
  c.dense_layers = 1;
  refuse(c, "qwen3_moe",
         "gguf: llama.cpp's qwen3moe has experts in all layers: this model has MLPs in some");
  c = {};
  c.gelu = Gelu::erf;
  refuse(c, "gpt2", "gguf: llama.cpp's gpt2 has GELU by tanh only");
  c = {};
  c.activation = Activation::relu;
  refuse(c, "gpt2", "gguf: llama.cpp's gpt2 has GELU by tanh only");
  c = {};
  c.positions = nn::Positions::rope;
  refuse(c, "",
         "hf: llama folders have rotary positions, RMSNorm, and SwiGLU without biases; got "
         "norm layer");
  c = tiny();
  refuse(c, "qwen3_next",
         "gguf: the family qwen3_next is not supported; supported: gpt2, llama, mistral, mixtral, "
         "qwen2, qwen3, qwen2_moe, qwen3_moe, olmoe, deepseek_v3");
}

TEST_CASE("gguf: a value that is not finite has no block") {
  const test::TempFolder out;
  io::GgufTensor t{"x", {1, 32}, GgufType::q8_0, {[] {
                     return Tensor::full({1, 32}, std::numeric_limits<double>::infinity());
                   }}};
  CHECK_THROWS_WITH_AS(io::write_gguf(out / "x.gguf", {}, {t}),
                       "gguf: tensor x has a value that is not finite, which q8_0 cannot hold",
                       Error);
  t.shape = {2, 16};
  CHECK_THROWS_WITH_AS(io::write_gguf(out / "x.gguf", {}, {t}),
                       "gguf: the rows of tensor x must be a multiple of 32 for q8_0, got 16",
                       Error);
  t.type = GgufType::f16;
  t.pieces = {[] { return Tensor::full({2, 16}, 1e6); }};
  CHECK_THROWS_WITH_AS(
      io::write_gguf(out / "x.gguf", {}, {t}),
      "gguf: tensor x must have values up to 65504 for f16, got 1e+06; use bf16 or f32", Error);
  CHECK(!io::exists(out / "x.gguf"));
  CHECK(!io::exists(out / "x.gguf.tmp"));
  const std::vector<float> tiny(32, 1e-38f);
  CHECK(io::gguf_q8_0(tiny) == std::string(34, '\0'));
}

}  // namespace weft::gguf_test
