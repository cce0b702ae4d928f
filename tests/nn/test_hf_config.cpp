// What a config.json may say: values that are not supported, tensors that do not fit it, and the
// models that families can hold.
#include <doctest/doctest.h>

#include <string>

#include "weft/distributed/hf_folder.h"
#include "weft/io/file.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::hf_config_test {
namespace {

const std::string kModels = std::string(WEFT_FIXTURES) + "/hf";

// A folder with changes in its config.json.
class Changed {
 public:
  explicit Changed(const std::string& family) : from_(kModels + "/" + family) {
    json_ = io::Json::parse(io::read_file(from_ + "/config.json"));
    io::write_file(folder_ / "model.safetensors", io::read_file(from_ + "/model.safetensors"));
  }
  std::string error(const char* key, const io::Json& value) {
    io::Json json = json_;
    json.set(key, value);
    io::write_file(folder_ / "config.json", json.dump());
    return message();
  }
  std::string message() {
    try {
      distributed::open_hf_folder(folder_.path());
    } catch (const Error& e) {
      CHECK(e.fault() == Fault::user);
      std::string text = e.what();
      if (const std::size_t at = text.find(folder_.path()); at != text.npos)
        text.replace(at, folder_.path().size(), "DIR");
      return text;
    }
    return "no error";
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  test::TempFolder folder_;
  std::string from_;
  io::Json json_;
};

}  // namespace

TEST_CASE(
    "hf_config: a value that is not supported is named with its family, its key and what is") {
  Changed llama("llama"), qwen("qwen2"), gpt2("gpt2");
  CHECK(llama.error("hidden_act", "gelu") ==
        "config.json: llama: hidden_act \"gelu\" is not supported; supported: \"silu\"");
  CHECK(llama.error("model_type", "bert") ==
        "config.json: model_type \"bert\" is not supported; supported: gpt2, llama, mistral, "
        "qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v3, qwen3_next");
  CHECK(llama.error("rope_scaling", io::Json().set("rope_type", "longrope")) ==
        "config.json: llama: rope_scaling: rope_type \"longrope\" is not supported; supported: "
        "default, linear, llama3, yarn");
  CHECK(llama.error("num_hidden_layers", "3") ==
        "config.json: llama: num_hidden_layers must be an integer in [0, 1073741824], got \"3\"");
  CHECK(llama.error("num_hidden_layers", 1 << 30) ==
        "config.json: llama: num_hidden_layers 1073741824 is not supported; supported: 1 to "
        "10000");
  CHECK(llama.error("num_attention_heads", 5) ==
        "config.json: llama: gpt: heads 5 must be a multiple of kv_heads 2");
  CHECK(llama.error("quantization_config", io::Json().set("quant_method", "fp8")) ==
        "config.json: llama: quantization_config {\"quant_method\":\"fp8\"} is not supported; "
        "supported: weights of f32, bf16 and f16, and fp8 in e4m3 with a square weight_block_size");
  Changed deepseek("deepseek_v3"), next("qwen3_next");
  CHECK(deepseek.error("num_nextn_predict_layers", 1) == "no error");
  CHECK(deepseek.error("rms_norm_eps", 1e-5) ==
        "config.json: deepseek_v3: rms_norm_eps 1e-05 is not supported; supported: 1e-06");
  CHECK(deepseek.error("topk_method", "greedy") ==
        "config.json: deepseek_v3: topk_method \"greedy\" is not supported; supported: "
        "\"noaux_tc\"");
  CHECK(next.error("partial_rotary_factor", 0.2) ==
        "config.json: qwen3_next: partial_rotary_factor 0.2 is not supported; supported: those "
        "with an even number of the 16 elements of a head");
  CHECK(next.error("layer_types", io::Json::Array{"full_attention", "full_attention", "mamba"}) ==
        "config.json: qwen3_next: layer_types [\"full_attention\",\"full_attention\",\"mamba\"] is "
        "not supported; supported: lists of linear_attention, full_attention");
  CHECK(next.error("partial_rotary_factor", 1e300).find("partial_rotary_factor 1e+300 is not") !=
        std::string::npos);
  CHECK(next.error("num_hidden_layers", 0) ==
        "config.json: qwen3_next: num_hidden_layers 0 is not supported; supported: 1 to 10000");
  CHECK(deepseek
            .error("quantization_config",
                   io::Json::parse(R"({"quant_method":"fp8","weight_block_size":)"
                                   R"([9223372036854775807,9223372036854775807]})"))
            .find("with a square weight_block_size") != std::string::npos);
  CHECK(gpt2.error("scale_attn_by_inverse_layer_idx", true) ==
        "config.json: gpt2: scale_attn_by_inverse_layer_idx true is not supported; supported: "
        "false");
  CHECK(qwen.error("layer_types", io::Json::Array{"full_attention", "full_attention"}) ==
        "no error");  // without use_sliding_window no layer has one
}

TEST_CASE("hf_config: a folder with other tensors than its config.json says is refused") {
  Changed llama("llama");
  CHECK(llama.error("hidden_size", 1 << 30) ==
        "config.json: llama: gpt: the model must have at most 9007199254740992 parameters, got "
        "1152921504606846976");
  CHECK(llama.error("num_hidden_layers", 4) ==
        "'DIR': config.json describes 30312 parameters, the files hold 25832 at most");
  CHECK(llama.error("num_hidden_layers", 2) ==
        "tensor \"model.layers.2.input_layernorm.weight\" is not one of a llama with this "
        "config.json");
  CHECK(llama.error("intermediate_size", 39) ==
        "'DIR/model.safetensors': tensor \"model.layers.0.mlp.down_proj.weight\" must have shape "
        "[24, 39], got [24, 40]");
  CHECK(llama.error("attention_bias", true) ==
        "'DIR/model.safetensors': tensor \"model.layers.0.self_attn.q_proj.bias\" is missing");
  const auto index = [&](const char* file) {
    io::write_file(llama.path("model.safetensors.index.json"),
                   io::Json().set("weight_map", io::Json().set("model.norm.weight", file)).dump());
    return llama.error("attention_bias", false);
  };
  CHECK(index("model-2.safetensors") == "'DIR': the shard model-2.safetensors is missing");
  CHECK(index("../model.safetensors") ==
        "'DIR/model.safetensors.index.json': files must be in the folder, got "
        "\"../model.safetensors\"");
  CHECK(index("model.safetensors") == "no error");
}

TEST_CASE("hf_config: published models have their published numbers of parameters") {
  const auto count = [](const char* text) {
    const io::Json json = io::Json::parse(text);
    return nn::read_hf_config(nn::hf_family(json), json).parameter_count();
  };
  // Llama-3.1-8B, Qwen2.5-0.5B and Qwen3-30B-A3B.
  CHECK(count(R"({"model_type":"llama","vocab_size":128256,"hidden_size":4096,
    "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
    "intermediate_size":14336,"max_position_embeddings":131072,"rope_theta":500000.0,
    "rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
    "original_max_position_embeddings":8192,"rope_type":"llama3"}})") == 8'030'261'248);
  CHECK(count(R"({"model_type":"qwen2","vocab_size":151936,"hidden_size":896,
    "num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,
    "intermediate_size":4864,"max_position_embeddings":32768,"tie_word_embeddings":true})") ==
        494'032'768);
  // OLMoE-1B-7B: 64 experts of 1024 hidden units. DeepSeek-V3: 671 B without its MTP layer.
  CHECK(count(R"({"model_type":"olmoe","vocab_size":50304,"hidden_size":2048,
    "intermediate_size":1024,"num_hidden_layers":16,"num_attention_heads":16,
    "num_key_value_heads":16,"max_position_embeddings":4096})") == 6'919'161'856);
  CHECK(count(R"({"model_type":"deepseek_v3","vocab_size":129280,"hidden_size":7168,
    "intermediate_size":18432,"moe_intermediate_size":2048,"num_hidden_layers":61,
    "num_attention_heads":128,"num_key_value_heads":128,"n_shared_experts":1,
    "n_routed_experts":256,"max_position_embeddings":163840})") == 671'026'404'352);
  CHECK(count(R"({"model_type":"qwen3_next","vocab_size":151936,"hidden_size":2048,
    "intermediate_size":5120,"num_hidden_layers":48,"num_attention_heads":16,
    "num_key_value_heads":2,"max_position_embeddings":262144})") == 79'674'391'296);
  CHECK(count(R"({"model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"head_dim":128,
    "num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,
    "intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,
    "num_experts_per_tok":8,"norm_topk_prob":true,"max_position_embeddings":40960})") ==
        30'532'122'624);
}

TEST_CASE("hf_config: a model that no family holds is refused") {
  CHECK(test::error_of([] { nn::hf_family_of({.arch = nn::Arch::llama, .pattern = "da"}); }) ==
        "hf: no family of gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, "
        "olmoe, deepseek_v3, qwen3_next can hold this model; see docs/huggingface.md for what they "
        "hold");
  CHECK(nn::hf_family_of({.arch = nn::Arch::llama}).type == std::string("llama"));
  CHECK(nn::hf_family_of({.arch = nn::Arch::llama, .window = 5}).type == std::string("mistral"));
  CHECK(nn::hf_family_of({.arch = nn::Arch::llama, .window = 5, .pattern = "w"}).type ==
        std::string("mistral"));
  CHECK(nn::hf_family_of({.arch = nn::Arch::llama, .qk_norm = true}).type == std::string("qwen3"));
  CHECK(nn::hf_family_of({}).type == std::string("gpt2"));
  const auto error = [](const nn::GptConfig& c, const char* type = "") {
    return test::error_of([&] { nn::hf_family_of(c, type); });
  };
  const std::string llama =
      "llama folders have rotary positions, RMSNorm, and SwiGLU without biases; got ";
  const std::string gpt2 =
      "gpt2 folders have learned positions, LayerNorm, and MLPs with biases and without a gate; "
      "got ";
  using nn::Arch;
  CHECK(error({.arch = Arch::llama, .norm = nn::NormKind::layer}) == "hf: " + llama + "norm layer");
  CHECK(error({.positions = nn::Positions::none}) == "hf: " + llama + "positions none");
  CHECK(error({.arch = Arch::llama, .activation = Activation::geglu}) ==
        "hf: " + llama + "activation geglu");
  CHECK(error({.arch = Arch::llama, .mlp_bias = true}) == "hf: " + llama + "mlp_bias on");
  CHECK(error({.norm = nn::NormKind::rms}) == "hf: " + gpt2 + "norm rms");
  CHECK(error({.activation = Activation::swiglu}) == "hf: " + gpt2 + "activation swiglu");
  CHECK(error({.mlp_bias = false}) == "hf: " + gpt2 + "mlp_bias off");
  CHECK(error({}, "llama") == "hf: " + llama + "positions learned");
  CHECK(error({.arch = Arch::llama}, "gpt2") == "hf: " + gpt2 + "positions rope");
  // The settings count, not the preset they were reached from.
  const nn::GptConfig said{.positions = nn::Positions::rope,
                           .norm = nn::NormKind::rms,
                           .activation = Activation::swiglu,
                           .mlp_bias = false,
                           .attn_bias = nn::AttentionBias::none,
                           .tie = false};
  CHECK(nn::hf_family_of(said).type == std::string("llama"));
}

TEST_CASE("hf_config: the activations of gpt2 folders") {
  const auto& family = nn::hf_families()[0];
  for (const auto& [a, word] : {std::pair{Activation::gelu_tanh, "gelu_new"},
                                {Activation::gelu_erf, "gelu"},
                                {Activation::relu, "relu"},
                                {Activation::relu2, "relu2"},
                                {Activation::silu, "silu"}}) {
    const nn::GptConfig c{.activation = a};
    const io::Json json = nn::write_hf_config(nn::hf_family_of(c), c, "float32");
    CHECK(json.at("activation_function").as_string() == word);
    CHECK(nn::read_hf_config(family, json).mlp_activation() == a);
  }
  io::Json json = nn::write_hf_config(family, {}, "float32");
  json.set("activation_function", "tanh");
  CHECK(test::error_of([&] { nn::read_hf_config(family, json); }) ==
        "config.json: gpt2: activation_function \"tanh\" is not supported; supported: gelu_new, "
        "gelu_pytorch_tanh, gelu, relu, relu2, silu");
}

}  // namespace weft::hf_config_test
