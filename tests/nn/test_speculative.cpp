// Drafts of the MTP depths change only the number of passes, never the text.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/speculative.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/support.h"

namespace weft::speculative_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::SamplingOptions;
using nn::Speculator;

namespace {

constexpr std::int64_t kVocab = 13, kSeq = 16;
using Text = std::vector<std::int32_t>;

// Token sequences that mostly follow a rule and sometimes restart.
Text language(std::size_t length, std::uint64_t seed) {
  Text out = {static_cast<std::int32_t>(seed % kVocab)};
  while (out.size() < length) {
    const std::uint32_t bits = random_bits({seed, 3, 0}, out.size());
    const auto next = (5 * out.back() + 3) % kVocab;
    out.push_back(static_cast<std::int32_t>(bits % 8 == 0 ? bits / 8 % kVocab : next));
  }
  return out;
}

GptConfig config(Arch arch, std::int64_t depths, bool repeated = false) {
  return {.arch = arch,
          .layers = 1,
          .heads = 2,
          .dim = 32,
          .seq = kSeq,
          .vocab = kVocab,
          .mtp = {.depths = depths, .weight = 0.5, .repeated = repeated}};
}

Gpt trained(const GptConfig& c, int steps) {
  Gpt model(c);
  nn::init(model, 6);
  optim::AdamW opt(model.named_parameters(), {.lr = 1e-2});
  for (int step = 0; step < steps; ++step) {
    const Text text = language(8 * (kSeq + 1), 50 + static_cast<std::uint64_t>(step));
    const Tensor rows = Tensor::from<std::int32_t>(text, {8, kSeq + 1});
    Tape tape;
    model.losses(rows.narrow(1, 0, kSeq).contiguous(), rows.narrow(1, 1, kSeq).contiguous())
        .total()
        .backward(Tensor::full({}, 1.0 / (8 * kSeq), DType::f32));
    opt.step(optim::measure_clip(opt.parameters(), 1));
    opt.zero_grad();
  }
  model.eval();
  return model;
}

// Plain decoding, one token per pass, with the same rules for a full window. Also records the
// smallest gap between the two largest logits.
struct Plain {
  Text text;
  double least_lead = 1e30;
};
Plain plain_greedy(const Gpt& model, const Text& prompt, std::size_t count) {
  Plain out{prompt};
  nn::KvCache cache(model.config, 1, kSeq, model.embed.weight.dtype());
  std::size_t fresh = std::min<std::size_t>(prompt.size(), kSeq);
  while (out.text.size() < prompt.size() + count) {
    if (cache.length() + static_cast<std::int64_t>(fresh) > kSeq) {
      cache.truncate(0);
      fresh = kSeq / 2 + 1;
    }
    const Text ids(out.text.end() - static_cast<std::ptrdiff_t>(fresh), out.text.end());
    const Tensor logits =
        model.decode(Tensor::from<std::int32_t>(ids, {1, static_cast<std::int64_t>(fresh)}), cache);
    std::vector<double> v(kVocab);
    logits.copy_to(v);
    const auto best = std::max_element(v.begin(), v.end());
    out.text.push_back(static_cast<std::int32_t>(best - v.begin()));
    const double top = *best;
    *best = -1e30;
    out.least_lead = std::min(out.least_lead, top - *std::max_element(v.begin(), v.end()));
    fresh = 1;
  }
  return out;
}

Text speculative(Speculator& s, const Text& prompt, std::size_t count) {
  Text out = prompt;
  s.start(prompt);
  while (out.size() < prompt.size() + count) {
    const auto more = s.next(static_cast<std::int64_t>(prompt.size() + count - out.size()));
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

}  // namespace

TEST_CASE("speculative: greedy text equals plain decoding in fewer passes") {
  for (const char* kind : {"gpt2", "llama", "mla", "experts"})
    for (const std::int64_t depths : {1, 3})
      for (const bool repeated : {false, true}) {
        CAPTURE(kind);
        CAPTURE(depths);
        const std::string name = kind;
        GptConfig c = config(name == "gpt2" ? Arch::gpt2 : Arch::llama, depths, repeated);
        if (name == "mla") c.attention = nn::AttentionKind::mla;
        if (name == "experts") c.moe = {.experts = 4, .ffn = 24};
        const Gpt model = trained(c, 80);
        Speculator s(model, {.temperature = 0}, 1);
        // Prompts shorter than the window, as long as it, and longer; texts over many windows.
        for (const std::size_t length : {1, 5, 16, 40}) {
          const Text prompt = language(length, 7);
          const Plain want = plain_greedy(model, prompt, 60);
          REQUIRE(want.least_lead > 1e-4);
          CHECK(speculative(s, prompt, 60) == want.text);
          CHECK(s.stats().tokens == 60);
          CHECK(s.stats().accepted > 0);
          CHECK(s.stats().accepted + s.stats().passes == 60);
          CHECK(s.stats().drafted >= s.stats().accepted);
        }
        CHECK(s.stats().tokens_per_pass() > 1.2);
      }
}

TEST_CASE("speculative: the training capacity of experts does not affect the text") {
  // Untrained with large weights: a dropped slot changes the next token.
  GptConfig c = config(Arch::llama, 3);
  c.moe = {.experts = 4, .ffn = 24};
  c.moe.router.capacity_factor = 0.5;
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    Gpt model(c);
    for (const NamedTensor& p : model.named_parameters())
      if (p.tensor.ndim() >= 2) normal_(p.tensor, {seed, stream_of(p.name), 0}, 0, 0.3);
    model.eval();
    const Text prompt = language(9, seed);
    const Plain want = plain_greedy(model, prompt, 40);
    if (want.least_lead < 1e-4) continue;
    Speculator s(model, {.temperature = 0}, 1);
    CHECK(speculative(s, prompt, 40) == want.text);
    CHECK(s.stats().drafted > 0);
  }
}

TEST_CASE("speculative: rejected drafts leave no trace in the caches") {
  Gpt model = trained(config(Arch::llama, 2), 40);
  // Untrained depths: their drafts are nearly always wrong.
  for (const NamedTensor& p : model.named_parameters())
    if (p.name.starts_with("mtp.")) normal_(p.tensor, {3, stream_of(p.name), 0}, 0, 1);
  const Text prompt = language(6, 9);
  const Plain want = plain_greedy(model, prompt, 50);
  REQUIRE(want.least_lead > 1e-4);
  Speculator s(model, {.temperature = 0}, 1);
  CHECK(speculative(s, prompt, 50) == want.text);
  CHECK(s.stats().accepted < s.stats().drafted / 2);
  // With a limit of one token there is no draft.
  s.start(prompt);
  Text one = prompt;
  for (int i = 0; i < 50; ++i) one.push_back(s.next(1)[0]);
  CHECK(one == want.text);
  CHECK(s.stats().drafted == 0);
  CHECK(s.stats().passes == 50);
}

TEST_CASE("speculative: drafts after a rejection equal the drafts of a fresh start") {
  // Depths with noise: some drafts are accepted, some are rejected.
  Gpt model = trained(config(Arch::llama, 3), 40);
  for (const NamedTensor& p : model.named_parameters())
    if (p.name.starts_with("mtp.") && p.tensor.ndim() == 2)
      p.tensor.add_(test::random(p.tensor.shape(), stream_of(p.name), DType::f32), 0.25);
  int rejected = 0, compared = 0;
  for (std::uint64_t seed = 1; seed < 9; ++seed) {
    Text text = language(3, seed);
    Speculator s(model, {.temperature = 0}, 1);
    s.start(text);
    while (text.size() < kSeq - 4) {
      const std::int64_t drafted = s.stats().drafted, accepted = s.stats().accepted;
      const Text before = text;
      const auto more = s.next(4);
      text.insert(text.end(), more.begin(), more.end());
      const std::int64_t wrong = s.stats().drafted - drafted - (s.stats().accepted - accepted);
      rejected += wrong > 0;
      if (before.size() == 3) continue;
      // A fresh speculator first processes all but the last known token.
      Speculator fresh(model, {.temperature = 0}, 1);
      fresh.start(std::span(before).first(before.size() - 1));
      REQUIRE(fresh.next(1)[0] == before.back());
      const auto want = fresh.next(4);
      CHECK(Text(more.begin(), more.end()) == Text(want.begin(), want.end()));
      ++compared;
    }
  }
  CHECK(compared > 20);
  CHECK(rejected > 10);
  CHECK(rejected < compared);
}

TEST_CASE("speculative: sampled tokens follow the model's distribution") {
  const Gpt model = trained(config(Arch::llama, 2), 16);
  const Text prompt = language(5, 11);
  for (const SamplingOptions& o : {SamplingOptions{.temperature = 1.2},
                                   SamplingOptions{.temperature = 2, .top_k = 5, .top_p = 0.9}}) {
    // The exact joint probability of the first three tokens.
    const auto next = [&](const Text& text) {
      nn::KvCache cache(model.config, 1, kSeq);
      const Tensor ids =
          Tensor::from<std::int32_t>(text, {1, static_cast<std::int64_t>(text.size())});
      return nn::token_probabilities(model.decode(ids, cache).select(0, 0), o);
    };
    std::map<Text, double> want;
    Text text = prompt;
    const std::vector<double> first = next(prompt);
    for (std::int32_t a = 0; a < kVocab; ++a) {
      text = prompt;
      text.push_back(a);
      const std::vector<double> second = next(text);
      for (std::int32_t b = 0; b < kVocab; ++b) {
        text.resize(prompt.size() + 1);
        text.push_back(b);
        const std::vector<double> third = next(text);
        for (std::int32_t c = 0; c < kVocab; ++c)
          want[{a, b, c}] = first[static_cast<std::size_t>(a)] *
                            second[static_cast<std::size_t>(b)] *
                            third[static_cast<std::size_t>(c)];
      }
    }
    constexpr int kDraws = 4000;
    std::map<Text, int> seen;
    std::int64_t accepted = 0, drafted = 0;
    for (int i = 0; i < kDraws; ++i) {
      Speculator s(model, o, static_cast<std::uint64_t>(i));
      // The prompt's pass gives the first token; with room for four more, two are drafted.
      const Text got = speculative(s, prompt, 5);
      ++seen[Text(got.begin() + 5, got.begin() + 8)];
      accepted += s.stats().accepted;
      drafted += s.stats().drafted;
    }
    CHECK(accepted > 0);
    CHECK(accepted < drafted);
    // Chi squared over the triples with enough expected hits; all others share one cell.
    double chi = 0, rest_want = 0;
    int cells = 0, rest_seen = 0;
    for (const auto& [triple, p] : want) {
      const int n = seen.count(triple) ? seen.at(triple) : 0;
      if (p == 0) CHECK(n == 0);
      if (p * kDraws < 10) {
        rest_want += p * kDraws;
        rest_seen += n;
        continue;
      }
      chi += (n - p * kDraws) * (n - p * kDraws) / (p * kDraws);
      ++cells;
    }
    if (rest_want > 5) chi += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
    REQUIRE(cells > 10);
    // The mean is the number of cells, the deviation sqrt(2 cells); 5 deviations are not chance.
    CHECK(chi < cells + 5 * std::sqrt(2.0 * cells));
  }
}

TEST_CASE("speculative: the seed determines the text") {
  const Gpt model = trained(config(Arch::gpt2, 1), 20);
  const Text prompt = language(5, 12);
  Speculator a(model, {.temperature = 1.5}, 1), b(model, {.temperature = 1.5}, 2);
  const Text text = speculative(a, prompt, 40);
  CHECK(speculative(a, prompt, 40) == text);
  CHECK(speculative(b, prompt, 40) != text);
}

TEST_CASE("speculative: errors name the rule") {
  const Gpt none(config(Arch::llama, 0)), model(config(Arch::llama, 1));
  CHECK(test::error_of([&] { Speculator s(none, {}, 1); }) ==
        "speculative: the model must have at least 1 MTP depth, got 0");
  GptConfig c = config(Arch::llama, 1);
  c.pattern = "d";
  const Gpt hybrid(c);
  CHECK(test::error_of([&] { Speculator s(hybrid, {}, 1); }) ==
        "speculative: every layer must have attention, as a state cannot take back a draft, got "
        "pattern 'd'");
  Speculator s(model, {}, 1);
  CHECK(test::error_of([&] { s.next(1); }) == "speculative: start() must come before next()");
  CHECK(test::error_of([&] { s.start({}); }) ==
        "speculative: the prompt must have at least 1 token, got none");
  s.start(Text{1});
  CHECK(test::error_of([&] { s.next(0); }) == "speculative: most must be at least 1, got 0");
}

}  // namespace weft::speculative_test
