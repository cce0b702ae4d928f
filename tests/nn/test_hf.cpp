// Compares models in folders that transformers wrote with what it computes from them.
// scripts/hf_oracle.py wrote tests/fixtures/hf; WEFT_HF_MODELS names a folder of more of them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/distributed/hf_folder.h"
#include "weft/io/file.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gpt.h"
#include "weft/nn/kv_cache.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::hf_test {
namespace {

using distributed::HfFolder;

const std::string kModels = std::string(WEFT_FIXTURES) + "/hf";
constexpr std::int64_t kPrompt = 8;

std::vector<std::string> folders() {
  const char* const more = std::getenv("WEFT_HF_MODELS");
  const std::string root = more ? more : kModels;
  std::vector<std::string> all;
  for (const std::string& name : io::list_directory(root)) all.push_back(root + "/" + name);
  return all;
}

nn::Gpt load(const HfFolder& folder) {
  nn::Gpt model(folder.config);
  model.load_state_dict(folder.files.state_dict());
  model.eval();
  return model;
}

Tensor targets_of(const Tensor& ids) {
  Tensor targets = Tensor::full(ids.shape(), -100, DType::i32);
  targets.narrow(1, 0, ids.dim(1) - 1).copy_(ids.narrow(1, 1, ids.dim(1) - 1));
  return targets;
}

Tensor loss_of(const nn::Gpt& model, const Tensor& ids) {
  const nn::GptLosses losses = model.losses(ids, targets_of(ids));
  return mul(losses.main.loss, 1.0 / static_cast<double>(ids.dim(1) - 1));
}

double largest(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return max(abs(sub(a.to(DType::f64), b.to(DType::f64)))).item();
}

// The norm of a gradient, and its product with cos(0), cos(1), ... in the folder's order.
void check_gradient(const nn::HfTensor& t, const Tensor& gradient, const Tensor& expected) {
  CAPTURE(t.name);
  const Tensor whole = t.transposed ? gradient.transpose(0, 1).contiguous() : gradient;
  Tensor own =
      whole.contiguous().view({t.whole.numel()}).narrow(0, t.first, t.shape.numel()).to(DType::f64);
  if (!t.rows.empty()) own = distributed::move_rows(own.view(t.shape), t.rows, true);
  double squares = 0, wave = 0;
  for (std::int64_t i = 0; i < own.numel(); ++i) {
    const double g = own.data<double>()[i];
    squares += g * g;
    wave += g * std::cos(static_cast<double>(i));
  }
  const double norm = expected.data<double>()[0];
  CHECK(std::abs(std::sqrt(squares) - norm) <= 1e-4 * norm);
  CHECK(std::abs(wave - expected.data<double>()[1]) <= 1e-4 * norm);
}

void check_gradients(const HfFolder& folder, const nn::Gpt& model,
                     const io::SafetensorsFile& reference) {
  std::map<std::string, Tensor> gradients;
  for (const NamedTensor& p : model.named_parameters()) gradients[p.name] = p.tensor.grad();
  std::size_t compared = 0, stored = 0;
  for (const nn::HfTensor& t : folder.family->tensors(folder.config)) {
    if (t.copy || !gradients.contains(t.parameter)) continue;  // a bias on the choice of experts
    check_gradient(t, gradients.at(t.parameter), reference.tensor("grad." + t.name));
    ++compared;
  }
  for (const std::string& name : reference.names()) stored += name.starts_with("grad.");
  CHECK(compared == stored);
}

std::vector<std::int32_t> greedy(const nn::Gpt& model, const Tensor& ids, std::int64_t count) {
  nn::KvCache cache(model.config, 1, kPrompt + count);
  std::vector<std::int32_t> text;
  Tensor next = ids.narrow(1, 0, kPrompt).contiguous();
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor logits = model.decode(next, cache).select(0, 0).contiguous();
    const auto* const p = logits.data<float>();
    text.push_back(static_cast<std::int32_t>(std::max_element(p, p + logits.numel()) - p));
    next = Tensor::from(std::span<const std::int32_t>(&text.back(), 1), {1, 1});
  }
  return text;
}

void check_steps(nn::Gpt& model, const Tensor& ids, const Tensor& losses) {
  optim::Sgd sgd(model.named_parameters(), {.lr = 0.003});
  for (std::int64_t i = 0; i < losses.numel(); ++i) {
    model.zero_grad();
    Tape tape;
    const Tensor loss = loss_of(model, ids);
    CHECK(loss.item() == doctest::Approx(losses.data<float>()[i]).epsilon(1e-5));
    loss.backward();
    sgd.step();
  }
}

// The exported folder has the same tensors as the one read, bit for bit.
void check_export(const HfFolder& folder, const std::string& path) {
  const test::TempFolder out;
  distributed::save_hf_folder(out.path(), folder.config, folder.files,
                              {.family = folder.family->type, .file_bytes = 20'000});
  CHECK(io::exists(out / "model.safetensors.index.json"));
  const HfFolder back = distributed::open_hf_folder(out.path());
  CHECK(back.family == folder.family);
  const StateDict before = folder.files.state_dict(), after = back.files.state_dict();
  REQUIRE(before.size() == after.size());
  for (const auto& [name, t] : before) {
    CAPTURE(name);
    CHECK(t.dtype() == after.at(name).dtype());
    CHECK(largest(t, after.at(name)) == 0);
  }
  if (!io::exists(path + "/model.safetensors")) return;
  const StateDict stored = io::load_safetensors(path + "/model.safetensors");
  StateDict written;
  for (const std::string& name : io::list_directory(out.path()))
    if (name.ends_with(".safetensors"))
      for (auto& [key, t] : io::load_safetensors(out / name)) written[key] = t;
  REQUIRE(written.size() == stored.size());
  for (const auto& [name, t] : stored) CHECK(largest(t, written.at(name)) == 0);
}

void check_folder(const std::string& path) {
  CAPTURE(path);
  const HfFolder folder = distributed::open_hf_folder(path);
  const io::SafetensorsFile reference = io::SafetensorsFile::open(path + "/reference.safetensors");
  const Tensor ids = reference.tensor("ids");
  nn::Gpt model = load(folder);
  {
    Tape tape;
    CHECK(largest(model(ids), reference.tensor("logits")) < 1e-4);
    const Tensor loss = loss_of(model, ids);
    CHECK(loss.item() == doctest::Approx(reference.tensor("loss").item()).epsilon(1e-5));
    loss.backward();
  }
  check_gradients(folder, model, reference);
  const Tensor text = reference.tensor("greedy");
  CHECK(greedy(model, ids, text.numel()) ==
        std::vector(text.data<std::int32_t>(), text.data<std::int32_t>() + text.numel()));
  check_steps(model, ids, reference.tensor("sgd"));
  check_export(folder, path);
}

}  // namespace

TEST_CASE("hf: logits, loss, gradients, text, steps and export agree with transformers") {
  for (const std::string& path : folders()) check_folder(path);
}

TEST_CASE("hf: a rank reads its part of the packed projection") {
  for (const char* family : {"gpt2", "qwen2"}) {
    const HfFolder folder = distributed::open_hf_folder(kModels + "/" + family);
    const std::string name = "blocks.1.attn.qkv.weight";
    const Tensor whole = folder.files.whole(name);
    nn::ShardSpec spec{whole.shape(), {{0, {{3, 9}, {20, 47}, {50, 59}}}, {1, {{5, 13}}}}};
    const Tensor part = Tensor::empty(shape_of(spec), whole.dtype());
    folder.files.read_into(name, distributed::ShardSlice::of(spec), part);
    const Tensor columns = whole.narrow(1, 5, 8);
    const Tensor expected =
        cat({columns.narrow(0, 3, 6), columns.narrow(0, 20, 27), columns.narrow(0, 50, 9)}, 0);
    CHECK(largest(part, expected) == 0);
  }
}

TEST_CASE("hf: the frequencies of scaled rotary positions") {
  const auto at = [](const std::vector<double>& f, std::size_t i) { return f.at(i); };
  const std::vector<double> llama3 = rope_frequencies(
      128, 5e5,
      {.kind = RopeScaling::Kind::llama3, .factor = 8, .original = 8192, .low = 1, .high = 4});
  for (const auto& [i, f] : {std::pair{20, 0.0165604409},
                             {28, 0.00321144611},
                             {29, 0.00216657063},
                             {32, 0.000524846022},
                             {36, 7.78465546e-05},
                             {63, 3.06892588e-07}})
    CHECK(at(llama3, static_cast<std::size_t>(i)) == doctest::Approx(f).epsilon(1e-8));
  const RopeScaling yarn{.kind = RopeScaling::Kind::yarn, .factor = 40, .original = 4096};
  const std::vector<double> long_waves = rope_frequencies(64, 1e4, yarn);
  for (const auto& [i, f] : {std::pair{12, 0.0268793609},
                             {16, 0.00550000044},
                             {20, 0.000790569407},
                             {23, 3.3338034e-05}})
    CHECK(at(long_waves, static_cast<std::size_t>(i)) == doctest::Approx(f).epsilon(1e-8));
  CHECK(RopeScaling{.kind = RopeScaling::Kind::yarn, .factor = 4}.table_factor() ==
        doctest::Approx(1.13862944));
  // DeepSeek-V3.
  const RopeScaling both{
      .kind = RopeScaling::Kind::yarn, .factor = 40, .mscale = 1, .mscale_all = 1};
  CHECK(both.table_factor() == 1);
  CHECK(both.score_factor() / std::sqrt(192) == doctest::Approx(0.135233779));
}

TEST_CASE("hf: FP8 weights are read with the factors of their blocks") {
  constexpr std::int64_t kBlock = 16;
  const std::string from = kModels + "/deepseek_v3";
  StateDict codes, plain = io::load_safetensors(from + "/model.safetensors");
  for (auto& [name, t] : plain) {
    if (!name.ends_with("proj.weight") && !name.ends_with("with_mqa.weight")) {
      codes[name] = t;
      continue;
    }
    const std::int64_t rows = t.dim(0), columns = t.dim(1);
    const Tensor factors =
        Tensor::empty({(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock});
    Tensor spread = Tensor::empty(t.shape());
    for (std::int64_t i = 0; i < factors.numel(); ++i)
      factors.data<float>()[i] = 0.3f + 0.2f * static_cast<float>(i);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      spread.data<float>()[i] =
          factors.data<float>()[i / columns / kBlock * factors.dim(1) + i % columns / kBlock];
    codes[name] = div(t.to(DType::f32), spread).to(DType::e4m3);
    codes[name + "_scale_inv"] = factors;
    t = mul(codes[name].to(DType::f32), spread).to(DType::bf16);
  }
  const test::TempFolder fp8, bf16;
  const io::Json config = io::Json::parse(io::read_file(from + "/config.json"));
  io::Json quantized = config;
  quantized.set("quantization_config",
                io::Json()
                    .set("quant_method", "fp8")
                    .set("fmt", "e4m3")
                    .set("weight_block_size", io::Json::Array{kBlock, kBlock}));
  io::save_safetensors(fp8 / "model.safetensors", codes);
  io::write_file(fp8 / "config.json", quantized.dump());
  io::save_safetensors(bf16 / "model.safetensors", plain);
  io::write_file(bf16 / "config.json", config.dump());
  const HfFolder a = distributed::open_hf_folder(fp8.path()),
                 b = distributed::open_hf_folder(bf16.path());
  const StateDict got = a.files.state_dict(), want = b.files.state_dict();
  for (const auto& [name, t] : want) {
    CAPTURE(name);
    CHECK(got.at(name).dtype() == t.dtype());
    CHECK(largest(got.at(name), t) == 0);
  }
  const std::string name = "blocks.1.mla.q_up.weight";  // a rank's heads, moved and scaled
  const Tensor part = Tensor::empty({20, 10}, DType::bf16);
  a.files.read_into(name, distributed::ShardSlice::of({{60, 10}, {{0, {{20, 40}}}}}), part);
  CHECK(largest(part, want.at(name).narrow(0, 20, 20)) == 0);
  codes.erase("model.layers.0.self_attn.o_proj.weight_scale_inv");
  io::save_safetensors(fp8 / "model.safetensors", codes);
  CHECK(test::error_of([&] { distributed::open_hf_folder(fp8.path()); }) ==
        "checkpoint: blocks.0.mla.proj.weight needs the tensor "
        "'model.layers.0.self_attn.o_proj.weight_scale_inv', which no file has");
}

TEST_CASE("hf: MTP layers of deepseek_v3 are written, read, and may be missing") {
  HfFolder folder = distributed::open_hf_folder(kModels + "/deepseek_v3");
  CHECK(folder.config.mtp.depths == 0);
  folder.config.mtp.depths = 1;
  nn::Gpt model(folder.config);
  nn::init(model, 3);
  const test::TempFolder out;
  const std::string weights = out / "weights.safetensors";
  io::save_safetensors(weights, model.state_dict());
  distributed::save_hf_folder(out.path(), folder.config,
                              distributed::ShardFiles(std::vector{weights}));
  const HfFolder back = distributed::open_hf_folder(out.path());
  CHECK(back.config.mtp.depths == 1);
  const StateDict again = back.files.state_dict();
  for (const auto& [name, t] : model.state_dict()) CHECK(largest(again.at(name), t) == 0);
  const StateDict stored = io::load_safetensors(out / "model.safetensors");
  CHECK(largest(stored.at("model.layers.3.embed_tokens.weight"), model.embed.weight) == 0);
  CHECK(largest(stored.at("model.layers.3.shared_head.head.weight"), model.head.weight) == 0);
}

}  // namespace weft::hf_test
