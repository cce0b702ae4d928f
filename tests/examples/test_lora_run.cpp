// Runs with --lora-rank: what they save, that they resume bit for bit, layouts, and their adapters
// as PEFT folders.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/peft_folder.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/model_folder.h"
#include "weft/tests/small_run.h"
#include "weft/tests/support.h"

namespace weft::lora_run_test {
namespace {

using examples::find_adapter_run;
using test::SmallRun;

constexpr test::RunKind kDense{"dense", false};

/// The run of a model.
struct BaseRun : SmallRun {
  explicit BaseRun(nn::Arch arch, const test::RunKind& kind = kDense, std::int64_t seed = 1)
      : SmallRun(kind) {
    options.model.arch = arch;
    options.machine.seed = seed;
    if (arch == nn::Arch::llama) options.model.kv_heads = 1;
    REQUIRE(train(2) == 0);
  }
};

/// A run that trains an adapter on the model of another.
struct AdapterRun : SmallRun {
  explicit AdapterRun(const SmallRun& base, const test::RunLayout& layout = {})
      : SmallRun(kDense, layout) {
    options.model = base.options.model;
    options.data.files = base.options.data.files;
    options.run.weights = base.options.out;
    options.lora = {.rank = 4, .alpha = 12};
    options.optimizer.lr = 1e-2;
  }
};

distributed::ShardFiles files_of(const SmallRun& run, const char* kind) {
  return distributed::ShardFiles(io::find_checkpoint(run.options.out)->shards(kind));
}

}  // namespace

TEST_CASE("lora run: only adapters are saved and have states, and a run resumes bit for bit") {
  const BaseRun base(nn::Arch::llama);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(dtype);
    AdapterRun whole(base), parts(base);
    for (AdapterRun* run : {&whole, &parts}) {
      run->options.machine.dtype = dtype;
      run->options.lora.dropout = 0.1;
      run->options.lora.rslora = true;
    }
    REQUIRE(whole.train(4) == 0);
    REQUIRE(parts.train(2) == 0);
    REQUIRE(parts.train(4, true) == 0);
    CHECK(whole.files() == parts.files());
    CHECK(whole.values("loss") == parts.values("loss"));
    CHECK(whole.values("val_loss").back() < whole.values("val_loss").front());
    const std::vector<std::string> saved = files_of(whole, "model").names();
    CHECK(saved.size() == 2 * 7 * 2);  // a and b of seven places in two blocks
    for (const std::string& name : saved) CHECK(name.find(".lora.") != std::string::npos);
    // Moments and, in bf16, master weights; and the number of steps.
    CHECK(files_of(whole, "optim").names().size() ==
          1 + saved.size() * (dtype == DType::bf16 ? 3 : 2));
  }
}

TEST_CASE("lora run: the planned memory of a step is far below that of the whole model") {
  SmallRun big(kDense);
  big.options.model.dim = 128;
  const std::int64_t all = examples::predict_peak_bytes(big.options, 1, 0);
  big.options.lora.rank = 4;
  const std::int64_t adapters = examples::predict_peak_bytes(big.options, 1, 0);
  const std::int64_t weights = 4 * big.options.gpt().parameter_count();
  // Gradients and two moments are gone, of all but a few hundredths.
  CHECK(all - adapters > 2.5 * static_cast<double>(weights));
}

TEST_CASE("lora run: DDP, ZeRO, tp and sp take the steps of one rank") {
  const BaseRun base(nn::Arch::llama);
  AdapterRun one(base);
  REQUIRE(one.train(4) == 0);
  for (const test::RunLayout& layout :
       {test::RunLayout{.ranks = 2}, test::RunLayout{.ranks = 2, .zero = true},
        test::RunLayout{.ranks = 2, .tp = 2}}) {
    AdapterRun several(base, layout);
    REQUIRE(several.train(2) == 0);
    REQUIRE(several.train(4, true) == 0);
    CHECK(test::close_losses(several.values("loss"), one.values("loss"), 1e-5));
    const StateDict want = files_of(one, "model").state_dict();
    for (const auto& [name, t] : files_of(several, "model").state_dict()) {
      CAPTURE(name);
      CHECK(test::mismatch(t, want.at(name), 1e-3) == "");
    }
  }
}

TEST_CASE("lora run: recomputation gives the same bits") {
  const BaseRun base(nn::Arch::llama);
  AdapterRun kept(base), recomputed(base);
  recomputed.options.model.recompute = nn::Recompute::full;
  for (AdapterRun* run : {&kept, &recomputed}) {
    run->options.lora.dropout = 0.1;
    REQUIRE(run->train(2) == 0);
  }
  CHECK(recomputed.values("loss") == kept.values("loss"));
  CHECK(recomputed.values("val_loss") == kept.values("val_loss"));
}

TEST_CASE("lora run: ep takes the steps of one rank beside a mixture of experts") {
  const BaseRun base(nn::Arch::llama, {"experts", true});
  AdapterRun one(base), two(base, {.ranks = 2, .ep = 2});
  for (AdapterRun* run : {&one, &two}) REQUIRE(run->train(3) == 0);
  CHECK(test::close_losses(two.values("loss"), one.values("loss"), 1e-5));
}

TEST_CASE("lora run: an adapter goes to a PEFT folder and back, and into its model") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama}) {
    const BaseRun base(arch);
    AdapterRun run(base);
    run.options.lora.targets = arch == nn::Arch::gpt2 ? "" : "q,v,blocks.1.mlp.down";
    REQUIRE(run.train(2) == 0);
    const auto found = find_adapter_run(run.options.out);
    REQUIRE(found.has_value());
    CHECK(found->base == base.options.out);
    const nn::HfFamily& family = nn::hf_family_of(found->config);
    distributed::save_peft_folder(run.folder / "peft", family, found->config, found->weights,
                                  "base");
    const nn::LoraWeights back = examples::read_adapter(run.folder / "peft", found->config);
    CHECK(back.options.scale() == 3);
    REQUIRE(back.tensors.size() == found->weights.tensors.size());
    for (const auto& [name, t] : found->weights.tensors)
      CHECK(test::different_bits(t, back.tensors.at(name)) == "");

    const examples::ModelFolder model = examples::open_model_folder(base.options.out);
    const nn::Gpt plain = examples::load_model(model.config, model.files, 16),
                  merged = examples::load_model(model.config, model.files, 16, run.options.out),
                  again = examples::load_model(model.config, model.files, 16, run.folder / "peft");
    nn::Gpt apart = examples::load_model(model.config, model.files, 16);
    nn::add_lora(apart, back.options);
    apart.load_state_dict(back.tensors, false);
    apart.eval();
    const Tensor ids = Tensor::of({5, 60, 2, 99, 100, 7, 8, 1}, {1, 8}, DType::i32);
    CHECK(test::different_bits(merged(ids), again(ids)) == "");
    CHECK(test::mismatch(merged(ids), apart(ids), 1e-5) == "");
    CHECK(max(abs(sub(merged(ids), plain(ids)))).item() > 1e-3);
    CHECK(test::error_of([&] { examples::open_model_folder(run.options.out); }) ==
          message("'{}': holds an adapter of the model '{}'; name that model, and this folder with "
                  "--adapter",
                  run.options.out, base.options.out));
  }
}

TEST_CASE("lora run: a run goes on from an adapter, in any layout") {
  const BaseRun base(nn::Arch::llama);
  AdapterRun first(base);
  first.options.lora.targets = "q,v,blocks.1.mlp.down";
  REQUIRE(first.train(4) == 0);
  const auto found = find_adapter_run(first.options.out);
  const std::string peft = first.folder / "peft";
  distributed::save_peft_folder(peft, nn::hf_family_of(found->config), found->config,
                                found->weights, "base");
  CHECK(examples::read_adapter(peft, found->config).options.targets == "blocks.1.mlp.down,q,v");
  const double want = first.values("val_loss").back();
  for (const std::string& folder : {first.options.out, peft})
    for (const test::RunLayout& layout :
         {test::RunLayout{}, test::RunLayout{.ranks = 2, .zero = true},
          test::RunLayout{.ranks = 2, .tp = 2}}) {
      CAPTURE(folder);
      CAPTURE(layout.tp);
      AdapterRun next(base, layout);
      next.options.lora = first.options.lora;
      next.options.lora.targets = "v,q,blocks.1.mlp.down";
      next.options.adapter = folder;
      next.options.optimizer.lr = 1e-30;  // a step changes nothing
      REQUIRE(next.train(1) == 0);
      CHECK(test::close_losses(next.values("val_loss"), {want}, layout.ranks ? 1e-6 : 0));
      // Resumed, it has its own weights.
      next.options.optimizer.lr = 1e-2;
      REQUIRE(next.train(3, true) == 0);
      CHECK(next.values("val_loss").back() != want);
    }
}

TEST_CASE("lora run: bf16 goes on from the rounded adapter, also beside experts over ep") {
  const BaseRun base(nn::Arch::llama, {"experts", true});
  AdapterRun first(base), next(base, {.ranks = 2, .ep = 2});
  for (AdapterRun* run : {&first, &next}) run->options.machine.dtype = DType::bf16;
  REQUIRE(first.train(2) == 0);
  next.options.adapter = first.options.out;
  next.options.optimizer.lr = 1e-30;
  REQUIRE(next.train(2) == 0);
  const std::vector<double> losses = next.values("val_loss");
  CHECK(test::close_losses({losses.back()}, {first.values("val_loss").back()}, 1e-3));
}

TEST_CASE("lora run: an adapter of another model or with other settings is refused") {
  const BaseRun base(nn::Arch::llama), other(nn::Arch::llama, kDense, 2);
  AdapterRun first(base);
  first.options.lora.targets = "q";
  REQUIRE(first.train(1) == 0);
  const std::string& path = first.options.out;
  const auto error = [&](const std::function<void(AdapterRun&)>& change) {
    AdapterRun run(base);
    run.options.lora = first.options.lora;
    run.options.adapter = path;
    change(run);
    return test::error_of([&] { run.train(1); });
  };
  CHECK(error([](auto& r) { r.options.lora.rank = 2; }) ==
        message("--lora-rank: must be 4 as in the adapter '{}', got 2", path));
  CHECK(error([](auto& r) { r.options.lora.alpha = 0; }) ==
        message("--lora-alpha: must be 12 as in the adapter '{}', got 8", path));
  CHECK(error([](auto& r) { r.options.lora.rslora = true; }) ==
        message("--rslora: must be off as in the adapter '{}', got on", path));
  CHECK(error([](auto& r) { r.options.lora.targets = "q,v"; }) ==
        message("--lora-targets: must be the layers of the adapter '{}', which has no "
                "blocks.0.attn.qkv.lora.v.a",
                path));
  CHECK(error([](auto& r) { r.options.lora.targets = "blocks.0.attn.qkv.q"; }) ==
        message("--lora-targets: must be the layers of the adapter '{}', which has "
                "blocks.1.attn.qkv.lora.q.a too",
                path));
  CHECK(error([&](auto& r) { r.options.run.weights = other.options.out; }) ==
        message("--adapter: '{}' must be trained on the weights in '{}', got one of those in '{}'",
                path, other.options.out, base.options.out));
  CHECK(error([&](auto& r) { r.options.adapter = base.options.out; }) ==
        message("--adapter: '{}' holds neither an adapter_config.json nor a run with --lora-rank",
                base.options.out));
}

TEST_CASE("lora run: settings that do not fit") {
  const auto error = [](const std::function<void(examples::GptOptions&)>& change) {
    examples::GptOptions o;
    o.data.files = {"text"};
    o.lora.rank = 2;
    o.parallel.ranks = 2;
    change(o);
    return test::error_of([&] { o.check(); });
  };
  CHECK(error([](auto& o) { o.parallel.fsdp = true; }) ==
        "--lora-rank: does not exist yet with --fsdp; use --zero");
  CHECK(error([](auto& o) {
          o.parallel.tp = 2;
          o.lora.dropout = 0.1;
        }) == "--lora-dropout: does not exist yet with --tp, got 2");
}

}  // namespace weft::lora_run_test
