// In a whole model with experts, neither the content nor the amount of padding changes losses,
// gradients or router counts.
#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/data/packing.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_padding_test {
namespace {

using nn::Arch;
using nn::Balance;
using nn::Gpt;
using nn::GptConfig;
using nn::Packing;
using test::mismatch;

constexpr std::int64_t kSeq = 12, kVocab = 17;
using Tokens = std::vector<std::int32_t>;

GptConfig small(Arch arch) {
  GptConfig c{
      .arch = arch, .layers = 2, .heads = 2, .dim = 16, .ffn = 20, .seq = kSeq, .vocab = kVocab};
  c.moe = {.experts = 4, .ffn = 10, .shared_ffn = 6, .shared_gate = true};
  c.moe.router.route = {.topk = 2, .score = RouterScore::sigmoid};
  c.moe.router.expert_bias = true;
  c.moe.router.balance = {{Balance::aux, 0.5}, {Balance::sequence, 0.7}, {Balance::global, 0.9}};
  c.moe.router.z_loss = 0.3;
  c.mtp = {.depths = 2, .weight = 0.5};
  return c;
}

std::vector<GptConfig> configs() {
  std::vector<GptConfig> out{small(Arch::gpt2), small(Arch::llama), small(Arch::llama),
                             small(Arch::llama)};
  out[1].recompute = nn::Recompute::full;
  out[1].moe.router.capacity_factor = 0.75;
  out[2].pattern = "da";
  out[2].moe.router.route.score = RouterScore::softmax;
  out[2].moe.router.expert_bias = false;
  out[2].recompute = nn::Recompute::selective;
  out[3].attention = nn::AttentionKind::mla;
  out[3].moe.router.capacity_factor = 1;
  out[3].moe.router.drop = DropPolicy::position;
  out[3].moe.pad_to_capacity = false;
  return out;
}

Gpt make(const GptConfig& config) {
  const nn::DeviceScope f64(kCpu, DType::f64);
  Gpt model(config);
  nn::init(model, 3);
  for (const NamedTensor& p : model.named_parameters())
    if (p.tensor.ndim() >= 2) normal_(p.tensor, {5, stream_of(p.name), 0}, 0, 0.3);
  return model;
}

struct Batch {
  Tensor ids, targets;
  Packing packing;
};

// Three sequences of 5, 9 and 3 tokens. The last token of the second sequence has a target too.
struct Sequence {
  Tokens ids, targets;
};
const Sequence kSequences[] = {{{3, 1, 4, 1, 5}, {1, 4, 1, 5, -100}},
                               {{9, 2, 6, 5, 3, 5, 8, 9, 7}, {2, 6, 5, 3, 5, 8, 9, 7, 16}},
                               {{11, 12, 13}, {12, 13, -100}}};

Tensor row(const Tokens& v, std::int64_t rows = 1) {
  return Tensor::from<std::int32_t>(v, {rows, static_cast<std::int64_t>(v.size()) / rows});
}

// One row: a sequence, `first` padding tokens, two sequences, `second` padding tokens. Padding may
// hold any token and any target.
Batch packed(int first, int second, std::int32_t content) {
  Tokens ids, targets, bounds = {0};
  std::vector<std::uint8_t> is_padding;
  const auto close = [&](bool padding) {
    bounds.push_back(static_cast<std::int32_t>(ids.size()));
    is_padding.push_back(padding);
  };
  const auto pad = [&](int n) {
    for (int i = 0; i < n; ++i) ids.push_back(content = (5 * content + 3) % kVocab);
    for (int i = 0; i < n; ++i) targets.push_back(content = (5 * content + 3) % kVocab);
    close(true);
  };
  for (int i = 0; i < 3; ++i) {
    ids.insert(ids.end(), kSequences[i].ids.begin(), kSequences[i].ids.end());
    targets.insert(targets.end(), kSequences[i].targets.begin(), kSequences[i].targets.end());
    close(false);
    if (i == 0) pad(first);
    if (i == 2) pad(second);
  }
  return {row(ids), row(targets), Packing::of(bounds, kSeq, kCpu, is_padding)};
}

// One row per sequence, padded to `length` tokens.
Batch rows(std::int64_t length, std::int32_t content) {
  Tokens ids, targets;
  const Tensor padding = Tensor::zeros({3, length}, DType::boolean);
  for (int i = 0; i < 3; ++i)
    for (std::int64_t t = 0; t < length; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const bool real = at < kSequences[i].ids.size();
      content = (5 * content + 3) % kVocab;
      ids.push_back(real ? kSequences[i].ids[at] : content);
      targets.push_back(real ? kSequences[i].targets[at] : (content + 1) % kVocab);
      padding.data<bool>()[i * length + t] = !real;
    }
  return {row(ids, 3), row(targets, 3), {.padding = padding}};
}

NamedTensors counters(const Gpt& model) {
  NamedTensors out;
  for (const NamedTensor& b : model.buffers())
    if (b.name.ends_with("tokens_per_expert") || b.name.ends_with("global_counts") ||
        b.name.ends_with("loss_sums"))
      out.push_back(b);
  return out;
}

// All losses, counts, hits, gradients and router counts.
NamedTensors results(Gpt& model, const Batch& batch) {
  model.zero_grad();
  NamedTensors out;
  for (const NamedTensor& b : counters(model)) b.tensor.zero_();
  Tape tape;
  const nn::GptLosses l = model.losses(batch.ids, batch.targets, batch.packing);
  l.total().backward();
  out.push_back({"total", l.total().detach()});
  out.push_back({"loss", l.main.loss.detach()});
  out.push_back({"count", l.main.count});
  out.push_back({"aux", l.aux.detach()});
  for (int d = 0; d < 2; ++d) {
    out.push_back({"mtp", l.mtp[d].detach()});
    out.push_back({"mtp count", l.mtp_count[d]});
    out.push_back({"mtp hits", l.mtp_hits[d]});
  }
  for (const NamedTensor& p : model.named_parameters())
    out.push_back({p.name, p.tensor.grad().clone()});
  for (const NamedTensor& b : counters(model)) out.push_back({b.name, b.tensor.clone()});
  return out;
}

void check_equal(const NamedTensors& got, const NamedTensors& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(want[i].name);
    CHECK(mismatch(got[i].tensor, want[i].tensor, tolerance) == "");
  }
}

}  // namespace

TEST_CASE("gpt: padding of a packed row changes nothing for any content and amount") {
  for (const GptConfig& config : configs()) {
    Gpt model = make(config);
    Batch none = packed(0, 0, 1);
    none.packing.padding = {};
    const NamedTensors want = results(model, none);
    CHECK(want[2].tensor.item() == 15);
    check_equal(results(model, packed(4, 2, 1)), want, 1e-12);
    check_equal(results(model, packed(1, 12, 2)), want, 1e-12);
    // The content of padding changes no bit.
    check_equal(results(model, packed(4, 2, 7)), results(model, packed(4, 2, 1)), 0);
    // Sensitivity check: without the padding mask those tokens are counted.
    Batch seen = packed(4, 2, 1);
    seen.packing.padding = {};
    CHECK(mismatch(results(model, seen)[3].tensor, want[3].tensor, 1e-3) != "");
  }
}

TEST_CASE("gpt: padded rows equal the packed row of their tokens") {
  for (const GptConfig& config : configs()) {
    Gpt model = make(config);
    const NamedTensors want = results(model, packed(0, 0, 1));
    check_equal(results(model, rows(9, 1)), want, 1e-12);
    check_equal(results(model, rows(11, 1)), want, 1e-12);
    check_equal(results(model, rows(11, 7)), results(model, rows(11, 1)), 0);
  }
}

TEST_CASE("gpt: a row of only padding gives no loss, gradient or count") {
  Gpt model = make(small(Arch::llama));
  Batch batch = packed(4, 2, 1);
  batch.packing.padding.fill_(1);
  for (const NamedTensor& t : results(model, batch)) {
    CAPTURE(t.name);
    CHECK(mismatch(t.tensor, Tensor::zeros(t.tensor.shape(), t.tensor.dtype()), 0) == "");
  }
}

TEST_CASE("packing: packed documents mark their padding") {
  std::vector<Tokens> documents;
  for (const Sequence& s : kSequences) documents.push_back(s.ids);
  const data::PackedRows p = data::pack_documents(documents, kSeq);
  REQUIRE(p.rows() == 2);  // 5 + 3 of 12, 9 of 12
  CHECK(p.filled == Tokens{8, 9});
  const Tensor padding = p.packing(0, 2).padding;
  REQUIRE(padding.shape() == Shape{1, 24});
  for (std::int64_t t = 0; t < 24; ++t)
    CHECK(padding.data<bool>()[t] == (t % 12 >= (t < 12 ? 8 : 9)));
  CHECK(sum(p.packing(1, 1).padding).item() == 3);
  CHECK(p.packing(0, 2, kMeta).padding.device() == kMeta);

  const Tokens bounds = {0, 2, 5};
  const std::uint8_t one[] = {1};
  CHECK(test::error_of([&] { Packing::of(bounds, 3, kCpu, one); }) ==
        "packing: is_padding must have one element for each of the 2 sequences, got 1");
  Gpt model = make(small(Arch::llama));
  const Batch batch = rows(9, 1);
  CHECK(test::error_of([&] {
          model.losses(batch.ids, batch.targets, {.padding = Tensor::zeros({5}, DType::boolean)});
        }) ==
        "packing: padding must be bool with an element for each of the 27 tokens, got bool [5]");
}

}  // namespace weft::gpt_padding_test
