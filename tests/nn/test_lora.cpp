// Adapters of Linears: gradients, what trains, merging, names and messages.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/random.h"
#include "weft/nn/attention.h"
#include "weft/nn/gpt.h"
#include "weft/nn/leaves.h"
#include "weft/nn/lora.h"
#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::lora_test {
namespace {

using nn::Arch;
using nn::LoraOptions;

nn::GptConfig config(Arch arch) {
  return {.arch = arch, .layers = 2, .heads = 4, .dim = 16, .ffn = 24, .seq = 8, .vocab = 37};
}

nn::Gpt make(const nn::GptConfig& c, DType dtype) {
  const nn::DeviceScope in(kCpu, dtype);
  nn::Gpt model(c);
  nn::init(model, 1);
  for (const NamedTensor& p : model.named_parameters())
    if (p.tensor.ndim() == 2) normal_(p.tensor.detach(), {7, stream_of(p.name), 0}, 0, 0.25);
  return model;
}

struct Batch {
  Tensor ids, targets;
};

Batch some_batch(std::int64_t sequences) {
  const Tensor text =
      Tensor(uniform_(Tensor::empty({sequences, 9}, DType::f64), {3, 9, 0}, 0, 37)).to(DType::i32);
  return {text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous()};
}

/// With every b set, so that adapters matter.
nn::Gpt adapted(const nn::GptConfig& c, const LoraOptions& o, DType dtype = DType::f64) {
  nn::Gpt model = make(c, dtype);
  nn::add_lora(model, o);
  for (const NamedTensor& p : nn::lora_parameters(model))
    normal_(p.tensor.detach(), {3, stream_of(p.name), 0}, 0, 0.3);
  return model;
}

std::int64_t adapters(const nn::Gpt& model) { return std::ssize(nn::lora_parameters(model)) / 2; }

}  // namespace

TEST_CASE("lora: gradients of x, a and b, of a whole Linear and of parts of one") {
  const nn::DeviceScope in_f64(kCpu, DType::f64);
  const Tensor x = test::random({2, 3, 5});
  for (const bool packed : {false, true}) {
    CAPTURE(packed);
    nn::Linear l(5, 5);
    if (packed) l.parts = {{"q", 2}, {"k", 2}, {"v", 1}};
    nn::add_lora(l, {.rank = 2, .alpha = 3, .targets = packed ? "q,v" : ""});
    TensorList in{x};
    for (nn::Lora& adapter : l.lora) {
      in.push_back(test::random(adapter.a.shape(), 2));
      in.push_back(test::random(adapter.b.shape(), 3));
    }
    const auto twice = [&](const TensorList& t) {
      for (std::size_t i = 0; i < l.lora.size(); ++i) {
        l.lora[i].a = t[2 * i + 1];
        l.lora[i].b = t[2 * i + 2];
      }
      return l(l(t[0]));
    };
    CHECK(gradcheck(twice, in) == "");
    const auto weight = [&](const TensorList& t) {
      twice(t);
      return l.adapted_weight();
    };
    CHECK(gradcheck(weight, in) == "");
    // The adapted weight is that of the whole layer.
    nn::Linear whole(5, 5);
    whole.weight = l.adapted_weight();
    whole.bias = l.bias;
    CHECK(test::mismatch(l(x), whole(x), 1e-12) == "");
  }
}

TEST_CASE("lora: a new adapter changes no bit, and only adapters train") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    nn::Gpt model = make(config(arch), DType::f32);
    const Batch batch = some_batch(2);
    model.eval();
    // Without the fused MLP, which sums up in another order.
    nn::Gpt same = nn::clone(model);
    nn::add_lora(same, {.rank = 3, .targets = "qkv,attn.proj"});
    CHECK(test::different_bits(same(batch.ids), model(batch.ids)) == "");

    nn::add_lora(model, {.rank = 3, .alpha = 6});
    model.train();
    const auto before = model.state_dict();
    StateDict old;
    for (const auto& [name, t] : before) old[name] = t.clone();
    optim::AdamW adam(nn::lora_parameters(model), {.lr = 1e-2});
    for (int step = 0; step < 2; ++step) {  // a has a gradient once b is not 0
      Tape tape;
      const nn::GptLosses l = model.losses(batch.ids, batch.targets);
      CHECK(nn::compare_leaves(tape, model).text() == "");
      l.total().backward();
      adam.step();
      model.zero_grad();
    }
    for (const auto& [name, t] : model.state_dict()) {
      CAPTURE(name);
      CHECK((test::different_bits(t, old.at(name)) == "") ==
            (name.find(".lora.") == std::string::npos));
    }
  }
}

TEST_CASE("lora: merged and unmerged models agree, with a head and dropout in evaluation") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    nn::GptConfig c = config(arch);
    c.tie = false;
    c.mtp.depths = 1;
    nn::Gpt model = adapted(c, {.rank = 2, .rslora = true, .targets = ".*"});
    model.eval();
    const Batch batch = some_batch(2);
    const Tensor want = model(batch.ids), weight = model.head.weight.clone();
    // The fused loss of an adapted head is that of its logits.
    const Tensor goals = batch.targets;
    CHECK(test::mismatch(model.loss(model.hidden(batch.ids), model.head, goals),
                         model.loss(want, goals), 1e-12) == "");
    nn::merge_lora(model);
    CHECK(!model.head.is_adapted());
    CHECK(test::mismatch(model(batch.ids), want, 1e-11) == "");
    nn::merge_lora(model);  // changes nothing
    CHECK(test::mismatch(model(batch.ids), want, 1e-11) == "");
    nn::unmerge_lora(model);
    CHECK(test::mismatch(model(batch.ids), want, 1e-11) == "");
    CHECK(test::mismatch(model.head.weight, weight, 1e-14) == "");
  }
}

TEST_CASE("lora: a layer under two names has one adapter, which merges") {
  struct Twice : nn::Module {
    nn::Linear a{3, 3};
    void visit(nn::Visitor& v) override {
      v("first", a);
      v("second", a);
    }
  } model;
  nn::add_lora(model, {.rank = 2});
  const NamedTensors found = nn::lora_parameters(model);
  CHECK(found.size() == 2);
  CHECK(test::error_of([&] { optim::AdamW optimizer(found); }) == "no error");
  for (const NamedTensor& p : found) p.tensor.detach().fill_(0.5);
  const Tensor x = test::random({2, 3}, 1, DType::f32), want = model.a(x);
  nn::merge_lora(model);
  CHECK(test::mismatch(model.a(x), want, 1e-6) == "");
}

TEST_CASE("lora: the scale, and a bf16 weight is rounded once") {
  CHECK(LoraOptions{.rank = 4}.scale() == 2);
  CHECK(LoraOptions{.rank = 4, .alpha = 6}.scale() == 1.5);
  CHECK(LoraOptions{.rank = 4, .alpha = 6, .rslora = true}.scale() == 3);
  const nn::DeviceScope in_bf16(kCpu, DType::bf16);
  nn::Linear l(6, 4);
  nn::add_lora(l, {.rank = 2});
  const nn::Lora& adapter = l.lora[0];
  normal_(adapter.b.detach(), {1, 2, 0}, 0, 1);
  const Tensor exact = add(
      l.weight.detach().to(DType::f32),
      nn::lora_product(adapter.a.detach().to(DType::f32), adapter.b.detach().to(DType::f32), 2));
  nn::merge_lora(l);
  CHECK(test::different_bits(l.weight.detach(), exact.to(DType::bf16)) == "");
}

TEST_CASE("lora: targets choose parts, layers and blocks") {
  const auto count = [](const char* targets, nn::GptConfig c = config(Arch::llama)) {
    nn::Gpt model(c);
    nn::add_lora(model, {.rank = 1, .targets = targets});
    return adapters(model);
  };
  CHECK(count("") == 2 * 7);
  CHECK(count("q,v") == 2 * 2);
  CHECK(count("qkv") == 2 * 3);
  CHECK(count("blocks.1.mlp.down,blocks.0.*gate") == 2);
  CHECK(count("head") == 1);
  CHECK(count("blocks\\.[0,1]\\.attn\\.qkv\\.q{1,2},v") == 2 * 2);  // two patterns
  CHECK(count("", config(Arch::gpt2)) == 2 * 4);                    // c_attn is one projection
  nn::Gpt copy = [] {
    nn::Gpt model = adapted(config(Arch::llama), {.rank = 2});
    return nn::clone(model);
  }();
  CHECK(adapters(copy) == 14);
  CHECK(copy.blocks[1].as<nn::Attention>()->qkv.lora[2].part == "v");
}

TEST_CASE("lora: the lines of docs/finetuning.md") {
  const nn::GptConfig config = lora_test::config(Arch::llama);
  nn::Gpt model(config);  // and its weights
  nn::add_lora(model, {.rank = 8, .targets = "q,v"});
  optim::AdamW adam(nn::lora_parameters(model), {.lr = 1e-4});
  nn::merge_lora(model);
  CHECK(adam.parameters().size() == 8);
}

TEST_CASE("lora: messages") {
  nn::GptConfig c = config(Arch::llama);
  c.moe = {.experts = 4, .ffn = 8};
  nn::Gpt model(c);
  const auto error = [&](const LoraOptions& o) {
    return test::error_of([&] { nn::add_lora(model, o); });
  };
  CHECK(error({}) == "lora: rank must be at least 1, got 0");
  CHECK(error({.rank = 1, .targets = "q,nothing"}) ==
        "lora: the target \"nothing\" matches no layer; there are head, k, proj, q, v");
  CHECK(error({.rank = 1, .targets = "experts"}) ==
        "lora: blocks.0.moe.experts (Experts(4 x 16 -> 8 -> 16)) is no Linear and cannot have an "
        "adapter; those that can end in head, k, proj, q, v");
  CHECK(error({.rank = 1, .targets = "q,,v"}) ==
        "lora: targets must be names with a comma between, got \"q,,v\"");
  for (const char* const wrong : {"q{2", "q{1,", "(q,v", "q{2,1}", "[v"})
    CHECK(error({.rank = 1, .targets = wrong}) ==
          message("lora: targets: pattern \"{}\" is not a regular expression", wrong));
  CHECK(error({.rank = 1, .targets = "q)|(v"}) ==
        "lora: targets: pattern \"q)|(v\" is not a regular expression");
  CHECK(error({.rank = 1, .alpha = 1e308}) == "lora: lora_alpha must be at most 1e+30, got 1e+308");
  CHECK(error({.rank = 1, .dropout = 1}) == "lora: lora_dropout must be in [0, 1), got 1");
  nn::add_lora(model, {.rank = 1});
  CHECK(error({.rank = 1}) == "lora: blocks.0.attn.qkv has an adapter already");

  // The masks of layers that get rows are right also beside experts.
  c.moe.shared_ffn = 8;
  nn::Gpt mixed(c);
  CHECK(test::error_of(
            [&] { nn::add_lora(mixed, {.rank = 1, .dropout = 0.1, .targets = "q,down"}); }) ==
        "lora: dropout does not exist yet for blocks.0.moe.shared.mlp.down, a layer of a "
        "mixture of experts");
  nn::add_lora(mixed, {.rank = 1, .dropout = 0.1, .targets = "q"});

  nn::GptConfig tied = config(Arch::gpt2);
  nn::Gpt shared = adapted(tied, {.rank = 1, .targets = "head"});
  CHECK(test::error_of([&] { nn::merge_lora(shared); }) ==
        "lora: the adapter of head cannot be merged, as its weight is another layer's too");
  nn::Gpt drops = adapted(tied, {.rank = 1, .dropout = 0.1, .targets = "head"});
  const Batch batch = some_batch(1);
  const auto loss_error = [&](const nn::Gpt& m) {
    return test::error_of([&] { m.losses(batch.ids, batch.targets); });
  };
  CHECK(loss_error(drops) ==
        "loss: while training, the adapter of a head must have dropout 0, got 0.1");
  drops.eval();  // drops nothing
  CHECK(loss_error(drops) == "no error");
  tied.tie = false;
  nn::Gpt merged = adapted(tied, {.rank = 1, .dropout = 0.1, .targets = "head"});
  nn::merge_lora(merged);
  CHECK(loss_error(merged) == "no error");
}

TEST_CASE("lora: adapters train or evaluate as their model does") {
  const Batch batch = some_batch(1);
  nn::Gpt model = make(config(Arch::llama), DType::f64);
  model.eval();
  nn::add_lora(model, {.rank = 2, .dropout = 0.5});
  for (const NamedTensor& p : nn::lora_parameters(model)) p.tensor.detach().fill_(0.3);
  CHECK(!model.blocks[0].as<nn::Attention>()->proj.lora[0].drop.is_training());
  CHECK(test::different_bits(model(batch.ids), model(batch.ids)) == "");
  model.train();
  CHECK(test::different_bits(model(batch.ids), model(batch.ids)) != "");
  nn::Linear own(4, 4);
  nn::add_lora(own, {.rank = 2, .dropout = 0.5});
  CHECK(own.lora[0].drop.is_training());
}

TEST_CASE("lora: the state of a merged model is that of one without adapters") {
  const nn::GptConfig c = config(Arch::llama);
  const Batch batch = some_batch(1);
  nn::Gpt model = adapted(c, {.rank = 2});
  const Tensor want = model(batch.ids);
  const std::size_t all = model.state_dict().size();
  nn::merge_lora(model);
  const StateDict merged = model.state_dict();
  nn::Gpt plain = make(c, DType::f64);
  plain.load_state_dict(merged);
  CHECK(test::mismatch(plain(batch.ids), want, 1e-11) == "");
  // An adapted model would add the adapters again.
  nn::Gpt again = adapted(c, {.rank = 2});
  CHECK(test::error_of([&] {
          again.load_state_dict(merged);
        }).starts_with("load_state_dict: missing blocks.0.attn.qkv.lora.q.a, "));
  CHECK(test::error_of([&] { model.load_state_dict(merged); }) ==
        "load_state_dict: the adapter blocks.0.attn.qkv.lora.q is merged; call unmerge_lora() "
        "before");
  CHECK(adapters(model) == 14);
  nn::unmerge_lora(model);
  CHECK(model.state_dict().size() == all);
  CHECK(model.load_state_dict(model.state_dict()).missing.empty());
}

}  // namespace weft::lora_test
