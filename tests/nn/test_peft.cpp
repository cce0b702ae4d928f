// Compares LoRA adapters that PEFT wrote with what it computes from them. scripts/peft_oracle.py
// wrote tests/fixtures/peft, for the models in tests/fixtures/hf.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/distributed/hf_folder.h"
#include "weft/distributed/peft_folder.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::peft_test {
namespace {

using distributed::HfFolder;

const std::string kFixtures = WEFT_FIXTURES;

struct Case {
  const char *adapter, *model;
  std::size_t modules;
};
constexpr Case kCases[] = {
    {"llama", "llama", 12}, {"gpt2", "gpt2", 12}, {"deepseek", "deepseek_v3", 15}};

HfFolder open(const Case& c) { return distributed::open_hf_folder(kFixtures + "/hf/" + c.model); }

nn::LoraWeights adapter_of(const Case& c, const HfFolder& base) {
  return distributed::read_peft_folder(kFixtures + "/peft/" + c.adapter, *base.family, base.config);
}

nn::Gpt load(const HfFolder& base) {
  nn::Gpt model(base.config);
  model.load_state_dict(base.files.state_dict());
  model.eval();
  return model;
}

double largest(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return max(abs(sub(a.to(DType::f64), b.to(DType::f64)))).item();
}

// The norm of a weight of the folder, and its product with cos(0), cos(1), ... in its order.
void check_weight(const nn::HfTensor& t, const Tensor& weight, const Tensor& expected) {
  CAPTURE(t.name);
  const Tensor whole = t.transposed ? weight.transpose(0, 1).contiguous() : weight.contiguous();
  Tensor own = whole.view({t.whole.numel()}).narrow(0, t.first, t.shape.numel()).to(DType::f64);
  if (!t.rows.empty()) own = distributed::move_rows(own.view(t.shape), t.rows, true);
  double squares = 0, wave = 0;
  for (std::int64_t i = 0; i < own.numel(); ++i) {
    const double w = own.data<double>()[i];
    squares += w * w;
    wave += w * std::cos(static_cast<double>(i));
  }
  const double norm = expected.data<double>()[0];
  CHECK(std::abs(std::sqrt(squares) - norm) <= 1e-6 * norm);
  CHECK(std::abs(wave - expected.data<double>()[1]) <= 1e-6 * norm);
}

}  // namespace

TEST_CASE("peft: logits with an adapter, merged weights, and the tensors written back") {
  for (const Case& c : kCases) {
    CAPTURE(c.adapter);
    const HfFolder base = open(c);
    const nn::LoraWeights adapter = adapter_of(c, base);
    CHECK(adapter.tensors.size() == 2 * c.modules);
    const auto reference =
        io::SafetensorsFile::open(kFixtures + "/peft/" + c.adapter + "/reference.safetensors");
    const Tensor ids = reference.tensor("ids"), logits = reference.tensor("logits");

    nn::Gpt apart = load(base);
    CHECK(largest(apart(ids), logits) > 1e-2);
    nn::add_lora(apart, adapter.options);
    CHECK(apart.load_state_dict(adapter.tensors, false).unexpected.empty());
    CHECK(nn::lora_parameters(apart).size() == adapter.tensors.size());
    CHECK(largest(apart(ids), logits) < 1e-4);

    nn::Gpt merged = load(base);
    const nn::LoraMerger merger(merged, adapter);
    std::map<std::string, Tensor> weights;
    for (const NamedTensor& p : merged.named_parameters()) {
      merger.add_to(p.name, 0, p.tensor);
      weights[p.name] = p.tensor.detach();
    }
    CHECK(largest(merged(ids), logits) < 1e-4);
    std::size_t changed = 0;
    for (const nn::HfTensor& t : base.family->tensors(base.config)) {
      const std::string name = "merged." + t.name;
      if (!reference.contains(name)) continue;
      check_weight(t, weights.at(t.parameter), reference.tensor(name));
      ++changed;
    }
    CHECK(changed == c.modules);

    const test::TempFolder out;
    distributed::save_peft_folder(out.path(), *base.family, base.config, adapter, "somewhere");
    const StateDict stored = io::load_safetensors(kFixtures + "/peft/" + c.adapter +
                                                  "/adapter_model.safetensors"),
                    written = io::load_safetensors(out / "adapter_model.safetensors");
    REQUIRE(written.size() == stored.size());
    for (const auto& [name, t] : stored) CHECK(test::different_bits(t, written.at(name)) == "");
  }
}

TEST_CASE("peft: an exported folder with an adapter holds the merged weights") {
  const HfFolder base = open(kCases[0]);
  const nn::LoraMerger merger(load(base), adapter_of(kCases[0], base));
  const test::TempFolder out;
  distributed::save_hf_folder(
      out.path(), base.config, base.files,
      {.file_bytes = 20'000,
       .change = [&](const std::string& name, std::int64_t first, const Tensor& values) {
         merger.add_to(name, first, values);
       }});
  const StateDict written = distributed::open_hf_folder(out.path()).files.state_dict();
  for (const auto& [name, t] : base.files.state_dict()) {
    CAPTURE(name);
    merger.add_to(name, 0, t);
    CHECK(test::different_bits(t, written.at(name)) == "");
  }
}

TEST_CASE("peft: settings and files that are not supported") {
  const HfFolder base = open(kCases[0]);
  const std::string from = kFixtures + "/peft/llama";
  const io::Json config = io::Json::parse(io::read_file(from + "/adapter_config.json"), "config");
  const StateDict tensors = io::load_safetensors(from + "/adapter_model.safetensors");
  const test::TempFolder out;
  const std::string path = out.path();
  const auto error = [&](const char* key, const io::Json& value,
                         const std::function<void(StateDict&)>& change = {}) {
    io::Json c = config;
    if (key) c.set(key, value);
    StateDict t = tensors;
    if (change) change(t);
    io::write_file(path + "/adapter_config.json", c.dump());
    io::save_safetensors(path + "/adapter_model.safetensors", t);
    const std::string text =
        test::error_of([&] { distributed::read_peft_folder(path, *base.family, base.config); });
    return text.starts_with("'" + path + "'") ? text.substr(path.size() + 4) : text;
  };
  CHECK(error(nullptr, {}) == "no error");
  const std::string where = "adapter_config.json: ";
  CHECK(error("use_dora", true) ==
        where + "use_dora true is not supported; supported: null, or without the key");
  CHECK(error("bias", "all") == where + "bias \"all\" is not supported; supported: \"none\"");
  CHECK(error("modules_to_save", io::Json::Array{io::Json("lm_head")}) ==
        where +
            "modules_to_save [\"lm_head\"] is not supported; supported: null, or without the key");
  CHECK(error("rank_pattern", io::Json::object().set("q_proj", 4)) ==
        where +
            "rank_pattern {\"q_proj\":4} is not supported; supported: null, or without the key");
  CHECK(error("a_key_of_later", 1) ==
        where + "a_key_of_later 1 is not supported; supported: null, or without the key");
  CHECK(error("peft_type", "IA3") ==
        where + "peft_type \"IA3\" is not supported; supported: \"LORA\"");
  CHECK(error("init_lora_weights", "pissa") ==
        where +
            "init_lora_weights \"pissa\" is not supported; supported: true, false, gaussian, eva, "
            "orthogonal");
  CHECK(error("r", 4) ==
        "model.layers.0.self_attn.q_proj.lora_A.weight must be of f32, f64, bf16 or f16 with shape "
        "[4, 24], got f32 [3, 24]");
  for (const double alpha : {0., -1., 1e308})
    CHECK(error("lora_alpha", alpha) ==
          where + message("lora_alpha must be above 0 and at most 1e+30, got {}", alpha));
  CHECK(error("r", 0) == where + "r must be in [1, 65536], got 0");
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj.";
  CHECK(error(nullptr, {},
              [&](StateDict& t) {
                t.erase(q + "lora_A.weight");
                t.erase(q + "lora_B.weight");
              }) ==
        "the adapter of model.layers.1.self_attn.q_proj, which target_modules names, is missing");
  CHECK(error(nullptr, {}, [&](StateDict& t) { t.erase(q + "lora_B.weight"); }) ==
        "model.layers.1.self_attn.q_proj.lora_B.weight is missing");
  CHECK(
      error(nullptr, {}, [&](StateDict& t) {
        t["base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"] = Tensor::ones({3, 24});
      }) == "model.layers.9.self_attn.q_proj is not a matrix of a llama that can have an adapter");
  CHECK(error(nullptr, {}, [&](StateDict& t) {
          t["lora_embedding_A"] = Tensor::ones({3, 24});
        }) == "tensor \"lora_embedding_A\" is no lora_A.weight or lora_B.weight of a module");
}

}  // namespace weft::peft_test
