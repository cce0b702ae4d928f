#include <doctest/doctest.h>

#include <set>
#include <tuple>

#include "weft/examples/common/gpt_options.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/file.h"
#include "weft/io/json_fields.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/train/flags.h"

namespace weft::examples::options_test {
namespace {

using test::error_of;

// Changes the field at one position to another value that its rule allows.
struct Change {
  std::size_t place, next = 0;
  std::string name = {};

  void group(const char*) {}
  template <class T>
  void operator()(const char* field, T& value, const char* help, const Rule& rule = {}) {
    CHECK(std::string(help) != "");
    if (next++ != place) return;
    name = field;
    change(value, rule);
  }
  template <class E, std::size_t N>
  void operator()(const char* field, E& value, const Word<E> (&words)[N], const char* help,
                  const Rule& = {}) {
    CHECK(std::string(help) != "");
    if (next++ != place) return;
    name = field;
    for (const Word<E>& w : words)
      if (w.value != value) {
        value = w.value;
        return;
      }
  }

 private:
  static void change(bool& v, const Rule&) { v = !v; }
  static void change(std::int64_t& v, const Rule& r) {
    v += static_cast<double>(v) + 1 <= r.high ? 1 : -1;
  }
  static void change(double& v, const Rule&) { v = v == 0 ? 0.125 : v / 2; }
  static void change(std::string& v, const Rule&) { v += "a"; }
  static void change(std::optional<bool>& v, const Rule&) { v = true; }
  static void change(std::vector<std::string>& v, const Rule&) { v.push_back("b c"); }
};

// The same options after a round trip through a --config file.
GptOptions reread(const GptOptions& o, const std::string& path) {
  io::write_file(path, train::to_toml(o));
  std::string program = "train_gpt", flag = "--config=" + path;
  char* argv[] = {program.data(), flag.data(), nullptr};
  GptOptions back;
  REQUIRE(parse(back, 2, argv));
  return back;
}

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += n + " ";
  return out;
}

}  // namespace

TEST_CASE("options: a list on the command line replaces the file's, by any of its names") {
  const test::TempFolder folder;
  const std::string path = folder / "c.toml";
  io::write_file(path, "data = [\"a.txt\", \"b.txt\"]\ninput-val-bin = [\"c.txt\"]\n");
  std::string words[] = {"train_gpt", "--config=" + path, "--train_data=d.txt", "--val-data",
                         "e.txt"};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  GptOptions o;
  REQUIRE(parse(o, 5, argv.data()));
  CHECK(o.data.files == std::vector<std::string>{"d.txt"});
  CHECK(o.data.val_files == std::vector<std::string>{"e.txt"});
}

TEST_CASE("options: config.toml contains every setting") {
  const test::TempFolder folder;
  const std::string plain = train::to_toml(GptOptions{});
  std::set<std::string> names, refused;
  for (std::size_t place = 0;; ++place) {
    GptOptions o;
    Change change{place};
    o.fields(change);
    if (change.name.empty()) break;
    CAPTURE(change.name);
    CHECK(names.insert(change.name).second);  // each flag appears once
    const std::string text = train::to_toml(o);
    CHECK(text != plain);
    GptOptions back;
    if (error_of([&] { back = reread(o, folder / "c.toml"); }) == "no error")
      CHECK(train::to_toml(back) == text);
    else
      refused.insert(change.name);
  }
  CHECK(names.size() > 90);
  // These settings are invalid on their own.
  CHECK(
      joined(refused) ==
      "adapter capacity delay-weight-gradients dense-layers device dispatcher dp-replicate drop ep "
      "ep-dtype expert-bias "
      "force-balance "
      "fp8-backward fp8-history fp8-recipe fp8-weights global-aux-coeff graph "
      "jitter "
      "latent lora-alpha lora-dropout lora-targets loss-scale-steps master-weights "
      "mtp-detach mtp-repeat offload "
      "offload-folder offload-fraction "
      "offload-least pre-softmax qk-norm-joint rank recompute-every recompute-layers reshard-depth "
      "rope-attention rope-beta-fast rope-beta-slow rope-factor rope-high rope-low rope-mscale "
      "rope-mscale-all rope-original "
      "router-scaling router-sum rslora "
      "seq-aux-coeff "
      "shared-gate sinkhorn sp "
      "tp-across-machines tp-overlap z-loss ");
}

TEST_CASE("options: a checkpoint contains every setting that changes the model") {
  GptOptions with_experts;
  with_experts.model = {.arch = nn::Arch::llama, .pattern = "da", .moe = {.experts = 4}};
  with_experts.model.attention = nn::AttentionKind::mla;
  const std::string plain = config_to_json(with_experts.model).dump();
  std::set<std::string> trained_only;
  for (std::size_t place = 0;; ++place) {
    nn::GptConfig c = with_experts.model;
    Change change{place};
    c.fields(change);
    if (change.name.empty()) break;
    CAPTURE(change.name);
    const std::string text = config_to_json(c).dump();
    if (text == plain) {
      trained_only.insert(change.name);
      continue;
    }
    nn::GptConfig back;
    io::fields_from_json(io::Json::parse(text), "state.json", back);
    CHECK(config_to_json(back).dump() == text);
  }
  // gelu is of models without a gate.
  CHECK(joined(trained_only) ==
        "drop dropout force-balance gelu jitter mtp-detach mtp-weight recompute recompute-every "
        "recompute-layers z-loss ");
}

// As commit f2447f8 wrote them.
TEST_CASE("options: older checkpoints give their original models") {
  const auto read = [](const std::string& text) { return config_from_json(io::Json::parse(text)); };
  const std::string sizes =
      R"("layers":1,"heads":2,"kv_heads":2,"dim":16,"ffn":64,"seq":16,"vocab":256,)"
      R"("rope_theta":10000,"norm_eps":1e-05,"qk_norm":false,"window":0)";
  const std::string no_delta =
      R"("delta_key_heads":0,"delta_value_heads":0,"delta_key_dim":0,"delta_value_dim":0,"delta_conv":0)";
  const std::string no_mla =
      R"("attention":"mha","q_lora":0,"kv_lora":0,"qk_nope":0,"qk_rope":0,"v_head":0)";

  const nn::GptConfig first = read(R"({"arch":"gpt2",)" + sizes + R"(,"tie":true})");
  CHECK(first.mtp.depths + first.moe.experts == 0);
  CHECK(first.positions == nn::Positions::automatic);
  nn::GptConfig said = first;
  said.positions = nn::Positions::learned;
  said.norm = nn::NormKind::layer;
  said.activation = Activation::gelu_tanh;
  said.mlp_bias = true;
  CHECK(config_to_json(said).dump() == config_to_json(first).dump());  // a run goes on with either
  CHECK(read(R"({"arch":"gpt2","gelu":"erf",)" + sizes + R"(,"tie":true})").mlp_activation() ==
        Activation::gelu_erf);
  CHECK(read(R"({"arch":"gpt2",)" + sizes + R"(,"tie":true,"pattern":"",)" + no_delta + "," +
             no_mla + R"(,"mtp":0,"mtp_repeated":false,"experts":0})")
            .tied());

  const nn::GptConfig mla = read(
      R"({"arch":"llama",)" + sizes + R"(,"tie":false,"pattern":"",)" + no_delta +
      R"(,"attention":"mla","q_lora":0,"kv_lora":32,"qk_nope":8,"qk_rope":4,"v_head":6,"mtp":0,)"
      R"("mtp_repeated":false,"experts":0})");
  CHECK(mla.mla_options().kv_lora == 32);
  CHECK(mla.mla_options().v_head == 6);
  CHECK(mla.kv_heads == 0);

  const std::string experts =
      R"({"arch":"llama",)" + sizes +
      R"(,"tie":false,"pattern":"da","delta_key_heads":2,"delta_value_heads":2,"delta_key_dim":8,)"
      R"("delta_value_dim":8,"delta_conv":3,)" +
      no_mla +
      R"(,"mtp":1,"mtp_repeated":true,"experts":8,"topk":2,"expert_ffn":16,"shared_ffn":16,)"
      R"("moe_every":1,"router":"sigmoid","expert_bias":true,"groups":2,"group_topk":1,)"
      R"("capacity":1.5,"latent":8,"shared_gate":true})";
  const nn::GptConfig c = read(experts);
  const RouterOptions& route = c.moe.router.route;
  CHECK(c.is_delta(0));
  CHECK(c.delta_options().conv == 3);
  CHECK(c.mtp.repeated);
  CHECK(route.topk == 2);
  CHECK(route.score == RouterScore::sigmoid);
  CHECK(route.groups == 2);
  CHECK(route.group_topk == 1);
  CHECK(c.moe.router.expert_bias);
  CHECK(c.moe.router.capacity_factor == 1.5);
  CHECK(c.moe.ffn == 16);
  CHECK(c.moe.shared_ffn == 16);
  CHECK(c.moe.latent == 8);
  CHECK(c.moe.shared_gate);
  for (const std::string key : {"topk", "expert_ffn", "router", "groups", "capacity", "delta_conv",
                                "mtp_repeated", "layers", "tie"}) {
    std::string without = experts;
    without.replace(without.find("\"" + key + "\""), key.size() + 2, "\"gone\"");
    CHECK(error_of([&] { read(without); }).find(key) != std::string::npos);
  }
}

TEST_CASE("options: presets have the parameter counts of the published models") {
  const auto preset = [](const char* name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"train_gpt", "--preset", name};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    GptOptions o;
    REQUIRE(parse(o, static_cast<int>(argv.size()), argv.data()));
    return o;
  };
  // Published parameter counts; llama-1b is TinyLlama 1.1B.
  const std::tuple<const char*, std::int64_t, double> known[] = {
      {"gpt2-124m", 124'439'808, 6e-4},
      {"gpt2-355m", 354'823'168, 3e-4},
      {"gpt2-774m", 774'030'080, 2.5e-4},
      {"gpt2-1558m", 1'557'611'200, 2e-4},
      {"llama-1b", 1'100'048'384, 4e-4}};
  for (const auto& [name, parameters, lr] : known) {
    CAPTURE(name);
    const GptOptions o = preset(name);
    CHECK(o.gpt().parameter_count() == parameters);
    CHECK(o.optimizer.lr == lr);
    o.gpt().validate();
  }
  CHECK(preset("tiny").optimizer.lr == 1e-3);
  CHECK(preset("small").model.vocab == 0);
  CHECK(preset("gpt2-355m", {"--lr", "1e-4", "--layers", "2"}).optimizer.lr == 1e-4);
  CHECK(error_of([&] { preset("gpt2-medium"); }) ==
        "--preset: must be one of tiny, small, gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, "
        "llama-1b, got 'gpt2-medium'");
}

TEST_CASE("options: incompatible settings are refused") {
  const auto refusal = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "train_gpt");
    std::vector<char*> argv;
    for (std::string& f : flags) argv.push_back(f.data());
    GptOptions o;
    return error_of([&] { parse(o, static_cast<int>(argv.size()), argv.data()); });
  };
  CHECK(refusal({}) == "no error");
  CHECK(refusal({"--sp"}) == "--sp: needs --tp of at least 2, got 1");
  CHECK(refusal({"--tp-overlap", "ring"}) == "--tp-overlap: needs --tp of at least 2, got 1");
  CHECK(refusal({"--dtype", "f64", "--grad-reduce", "bf16"}) ==
        "--grad-reduce: bf16 needs --dtype f32, bf16, f16 or fp8, got f64");
  CHECK(refusal({"--fsdp", "--ranks", "2", "--dp", "2", "--grad-reduce", "bf16"}) ==
        "--grad-reduce: must be f32 with --fsdp, got bf16");
  CHECK(refusal({"--dispatcher", "all-gather"}) == "--dispatcher: needs --ep of at least 2, got 1");
  CHECK(refusal({"--ep", "2", "--experts", "4", "--dispatcher", "all-gather"}) == "no error");
  CHECK(refusal({"--delay-weight-gradients"}) ==
        "--delay-weight-gradients: needs --ep or tp of at least 2, got ep 1 and tp 1");
  CHECK(refusal({"--ep", "2", "--experts", "4", "--delay-weight-gradients"}) == "no error");
  CHECK(refusal({"--tp", "2", "--delay-weight-gradients"}) ==
        "--delay-weight-gradients: needs --experts");
  CHECK(refusal({"--loss-scale-steps", "100"}) ==
        "--loss-scale-steps: needs a loss scale: --dtype f16, or --loss-scale");
  CHECK(refusal({"--loss-scale-steps", "100", "--dtype", "f16"}) == "no error");
  CHECK(refusal({"--experts", "4", "--shared-gate"}) == "--shared-gate: needs --shared-ffn, got 0");
  CHECK(refusal({"--experts", "4", "--sinkhorn"}) ==
        "--sinkhorn: balances by itself and needs --aux none, got aux");
  CHECK(refusal({"--experts", "4", "--expert-bias"}) ==
        "--expert-bias: needs --router sigmoid, got softmax");
  CHECK(refusal({"--ep", "2", "--experts", "4", "--sample-every", "5"}) ==
        "--sample-every: needs ranks that have all of the model; leave out --tp, --ep and --etp");
  CHECK(refusal({"--etp", "2", "--experts", "4", "--sample-every", "5"})
            .starts_with("--sample-every: needs ranks"));
  CHECK(refusal({"--fp8-recipe", "block"}) == "--fp8-recipe: needs --dtype fp8");
  CHECK(refusal({"--fp8-backward", "dequantized"}) == "--fp8-backward: needs --dtype fp8");
  CHECK(refusal({"--dtype", "fp8", "--fp8-history", "3"}) ==
        "--fp8-history: needs --fp8-recipe delayed");
  CHECK(refusal({"--dtype", "fp8", "--seq", "40"}) ==
        "--seq: must be a multiple of 16 with --dtype fp8, got 40");
  CHECK(refusal({"--fp8-weights"}) == "--fp8-weights: needs --dtype fp8");
  const auto alone = [&](const char* flag, const char* value) {
    return refusal({"--dtype", "fp8", "--fp8-weights", flag, value});
  };
  CHECK(alone("--seed", "1") == "no error");
  CHECK(alone("--master-weights", "remainder") ==
        "--fp8-weights: needs --master-weights f32, got remainder");
  CHECK(refusal({"--dtype", "fp8", "--fp8-weights", "--zero"}) == "no error");
  CHECK(
      refusal({"--dtype", "fp8", "--fp8-weights", "--zero", "--fp8-recipe", "block"}) ==
      "--fp8-weights: with --zero needs --fp8-recipe current, current-pow2 or delayed, got block");
  CHECK(alone("--fp8-backward", "high-precision") ==
        "--fp8-weights: needs --fp8-backward fp8 or dequantized, got high-precision");
  const auto overlapped = [&](const char* flag, const char* value) {
    return refusal({"--dtype", "fp8", "--tp", "2", "--sp", "--tp-overlap", "ring", flag, value});
  };
  CHECK(overlapped("--fp8-recipe", "current-pow2") == "no error");
  CHECK(overlapped("--fp8-recipe", "block") ==
        "--tp-overlap: sends codes that have one scale, and --fp8-recipe block has many; use "
        "current, current-pow2 or delayed");
  CHECK(overlapped("--fp8-backward", "dequantized") ==
        "--tp-overlap: sends what backward multiplies in FP8; use --fp8-backward fp8, got "
        "dequantized");
  CHECK(refusal({"--ep-dtype", "fp8"}) == "--ep-dtype: fp8 needs --experts");
  CHECK(refusal({"--experts", "4", "--ep-dtype", "fp8"}) == "no error");
  CHECK(refusal({"--experts", "4", "--ep-dtype", "fp8", "--dtype", "f64"}) ==
        "--ep-dtype: fp8 needs --dtype f32, bf16 or fp8, got f64");
  CHECK(refusal({"--nope"}).ends_with("(--help all lists all)"));
  CHECK(refusal({"--drop", "position"}) == "--drop: needs --capacity");
  CHECK(refusal({"--schedule", "cos"}) ==
        "--schedule: must be one of constant, linear, cosine, wsd, got 'cos'");
  CHECK(refusal({"--optimizer", "muon"}) ==
        "--optimizer: muon does not exist yet; use adamw or sgd");
  for (const auto& [flag, value] : {std::pair{"--beta2", "0.9"},
                                    {"--eps", "1e-6"},
                                    {"--state-dtype", "bf16"},
                                    {"--second-moment-dtype", "f16"}}) {
    CHECK(refusal({"--optimizer", "sgd", flag, value}) ==
          std::string(flag) + ": needs --optimizer adamw, got sgd");
    CHECK(refusal({flag, value}) == "no error");
  }
  CHECK(refusal({"--optimizer", "sgd", "--beta1", "0.8", "--weight-decay", "0"}) == "no error");
  CHECK(refusal({"--tie", "maybe"}) == "--tie: must be one of auto, on, off, got 'maybe'");
  CHECK(refusal({"--dp", "1000001"}) == "--dp: must be at most 1000000, got 1000001");
  CHECK(refusal({"--lr", "0"}) == "--lr: must be above 0, got 0");
  CHECK(refusal({"--dropout", "1"}) == "--dropout: must be in [0, 1), got 1");
  CHECK(refusal({"--eps", "inf"}) == "--eps: must be finite, got inf");
}

}  // namespace weft::examples::options_test
