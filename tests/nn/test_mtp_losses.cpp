// Multi-token prediction: the losses of the depths, and that depths leave the rest of the model
// unchanged. M2 to M5 are cases that every implementation must get right.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/autograd/reduce.h"
#include "weft/nn/gpt.h"
#include "weft/nn/mtp.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/mtp_support.h"

namespace weft::mtp_losses_test {
using namespace weft::mtp_test;
using nn::GptLosses;

TEST_CASE("mtp: the loss of depth d is the cross entropy of the token d + 1 positions ahead") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const Gpt model = make(small(arch, 2));
    const Tensor text = tokens({2, 9}, 2);
    const Tensor ids = text.narrow(1, 0, 8).contiguous(),
                 targets = text.narrow(1, 1, 8).contiguous();
    const GptLosses l = model.losses(ids, targets);
    REQUIRE(l.mtp.size() == 2);
    CHECK(test::mismatch(l.main.loss, model.loss.sum(model(ids), targets).loss, 1e-12) == "");
    Tensor h = model.hidden(ids), later = ids;
    double total = l.main.loss.item();
    for (int depth = 1; depth <= 2; ++depth) {
      h = model.mtp_trunk(depth, later = nn::roll_left(later), h).hidden;
      const Tensor logits = model.head(h);
      double want = 0;
      std::int64_t hits = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t i = 0; i + depth < 8; ++i) {
          const Tensor z = logits.select(0, b).select(0, i);
          const std::int64_t target = text.select(0, b).select(0, i + depth + 1).item_int();
          want += std::log(z.exp().sum().item()) - z.select(0, target).item();
          hits += z.argmax().item_int() == target;
        }
      CHECK(l.mtp[depth - 1].item() == doctest::Approx(want).epsilon(1e-12));
      CHECK(l.mtp_count[depth - 1].item_int() == 2 * (8 - depth));
      CHECK(l.mtp_hits[depth - 1].item_int() == hits);
      total += 0.1 / 2 * want * 16 / static_cast<double>(2 * (8 - depth));
    }
    CHECK(l.total().item() == doctest::Approx(total).epsilon(1e-12));
    // The router loss is already a mean.
    GptLosses routed = l;
    routed.aux = Tensor::full({}, 0.25, DType::f32);
    CHECK(routed.total().item() == doctest::Approx(total + 16 * 0.25).epsilon(1e-12));
  }
}

TEST_CASE("mtp: documents of 3 and 2 tokens in a row, the example of docs/mtp.md") {
  const Gpt model = make(small(Arch::llama, 2));
  const GptLosses l =
      model.losses(row({1, 2, 3, 4, 5}), row({2, 3, -100, 5, -100}), packing_of({0, 3, 5}));
  CHECK(l.main.count.item_int() == 3);
  CHECK(l.mtp_count[0].item_int() == 1);
  CHECK(l.mtp_count[1].item_int() == 0);
  // Depth 1 has one target, token 3 at position 0, as without the second document.
  const Tensor ids = row({1, 2, 3});
  const Tensor h = model.mtp_trunk(1, row({2, 3, 0}), model.hidden(ids)).hidden;
  const Tensor z = model.head(h).select(0, 0).select(0, 0);
  const double want = std::log(z.exp().sum().item()) - z.select(0, 3).item();
  CHECK(l.mtp[0].item() == doctest::Approx(want).epsilon(1e-12));
  CHECK(l.mtp[1].item() == 0);
  CHECK(l.total().item() ==
        doctest::Approx(l.main.loss.item() + 0.1 / 2 * want * 3).epsilon(1e-12));
}

TEST_CASE("M2: without depths or with detached heads or weight 0 the trunk trains as a plain GPT") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool detached : {false, true})
      for (const bool experts : {false, true}) {
        const Tensor ids = tokens({3, 8}, 3), targets = tokens({3, 8}, 4);
        GptConfig unset = small(arch, 0);
        GptConfig zero = small(arch, 0), c = small(arch, 1);
        unset.mtp = {};
        for (GptConfig* with : {&unset, &zero, &c})
          if (experts)
            with->moe = {.experts = 4, .router = {.balance = {{nn::Balance::aux, 0.01}}}, .ffn = 8};
        Gpt plain = make(unset), none = make(zero);
        c.mtp.weight = detached ? 0.3 : 0;
        c.mtp.detached = detached;
        Gpt model = make(c);
        const auto summed = [&](Gpt& m) {
          const nn::Trunk t = m.trunk(ids);
          const auto [sum, count] = m.loss.sum(t.hidden, m.head, targets);
          return t.aux.defined()
                     ? sum + t.aux.to(DType::f64) * static_cast<double>(count.item_int())
                     : sum;
        };
        const NamedTensors want = gradients(plain, [&] { return summed(plain); });
        const auto total = [&](Gpt& m) {
          return gradients(m, [&] { return m.losses(ids, targets).total(); });
        };
        CHECK(apart(total(none), want, 0) == "");
        const NamedTensors got = total(model);
        CHECK(apart(got, want, 0) == "");
        // Detached heads still get gradients.
        for (const NamedTensor& g : got)
          if (g.name.starts_with("mtp.") && g.name.ends_with("weight"))
            CHECK((max(abs(g.tensor)).item() > 0) == detached);
      }
}

TEST_CASE("M3: a packed row gives the losses and gradients of its sequences") {
  const std::vector<std::vector<std::int32_t>> documents = {
      {4, 9, 1, 17, 3}, {}, {2}, {8, 8, 0}, {5, 12}};
  std::vector<std::int32_t> all, next, bounds = {0};
  for (const auto& d : documents) {
    for (std::size_t i = 0; i < d.size(); ++i) {
      all.push_back(d[i]);
      next.push_back(i + 1 < d.size() ? d[i + 1] : -100);
    }
    bounds.push_back(static_cast<std::int32_t>(all.size()));
  }
  const Packing packing = packing_of(bounds);
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const nn::Recompute how : {nn::Recompute::none, nn::Recompute::full}) {
      GptConfig c = small(arch, 3);
      c.recompute = how;
      Gpt model = make(c);
      GptLosses packed;
      const NamedTensors got = gradients(model, [&] {
        packed = model.losses(row(all), row(next), packing);
        return packed.total();
      });
      // The number of pairs within a document that are d + 1 apart.
      CHECK(packed.main.count.item_int() == 7);
      CHECK(packed.mtp_count[0].item_int() == 4);
      CHECK(packed.mtp_count[1].item_int() == 2);
      CHECK(packed.mtp_count[2].item_int() == 1);
      double main = 0, mtp[3] = {};
      const NamedTensors want = gradients(model, [&] {
        Tensor total;
        std::size_t at = 0;
        for (const auto& d : documents) {
          if (d.empty()) continue;
          const std::vector<std::int32_t> goals(
              next.begin() + static_cast<std::ptrdiff_t>(at),
              next.begin() + static_cast<std::ptrdiff_t>(at + d.size()));
          at += d.size();
          const GptLosses one = model.losses(row(d), row(goals));
          main += one.main.loss.item();
          for (int i = 0; i < 3; ++i) mtp[i] += one.mtp[i].item();
          const Tensor part = one.total({packed.main.count, packed.mtp_count, packed.tokens});
          total = total.defined() ? total + part : part;
        }
        return total;
      });
      CHECK(packed.main.loss.item() == doctest::Approx(main).epsilon(1e-12));
      for (int i = 0; i < 3; ++i)
        CHECK(packed.mtp[i].item() == doctest::Approx(mtp[i]).epsilon(1e-12));
      CHECK(apart(got, want, 1e-11) == "");
    }
}

TEST_CASE("M4: a batch without targets gives a loss of 0 and gradients of 0") {
  Gpt model = make(small(Arch::llama, 2));
  const Tensor ids = tokens({2, 8}, 5), none = Tensor::full({2, 8}, -100, DType::i32);
  GptLosses l;
  const NamedTensors got = gradients(model, [&] { return (l = model.losses(ids, none)).total(); });
  CHECK(l.total().item() == 0);
  CHECK(l.mtp[1].item() == 0);
  CHECK(l.mtp_count[1].item_int() == 0);
  CHECK(l.mtp_hits[1].item_int() == 0);
  for (const NamedTensor& g : got) CHECK(max(abs(g.tensor)).item() == 0);
  // Targets for the head but none for the second depth.
  const Tensor first = none.clone();
  first.narrow(1, 0, 2).fill_(3);
  const NamedTensors few = gradients(model, [&] { return (l = model.losses(ids, first)).total(); });
  CHECK(l.mtp_count[0].item_int() == 2);
  CHECK(l.mtp_count[1].item_int() == 0);
  for (const NamedTensor& g : few) CHECK(std::isfinite(max(abs(g.tensor)).item()));
}

TEST_CASE("M5: micro-batches with different masks add up to one large batch") {
  for (int kind = 0; kind < 4; ++kind) {
    const DType dtype = kind % 2 ? DType::f64 : DType::f32;
    GptConfig c = small(Arch::llama, 2);
    // Not the balance loss of a micro-batch, which depends on its content.
    if (kind >= 2) {
      c.moe = {.experts = 4, .ffn = 8, .shared_ffn = 8};
      c.moe.router.balance = {{nn::Balance::sequence, 0.5}};
      c.moe.router.z_loss = 0.1;
    }
    Gpt model = make(c, dtype);
    const Tensor ids = tokens({4, 8}, 6), targets = tokens({4, 8}, 7);
    targets.narrow(0, 0, 1).narrow(1, 2, 6).fill_(-100);  // rows with 2, 5, 8 and 7 targets
    targets.narrow(0, 1, 1).narrow(1, 5, 3).fill_(-100);
    targets.narrow(0, 3, 1).narrow(1, 3, 1).fill_(-100);
    GptLosses whole;
    const NamedTensors want =
        gradients(model, [&] { return (whole = model.losses(ids, targets)).total(); });
    for (std::int64_t first = 0; first < 4; first += 2) {
      Tape tape;
      const GptLosses part = model.losses(ids.narrow(0, first, 2), targets.narrow(0, first, 2));
      part.total({whole.main.count, whole.mtp_count, whole.tokens}).backward();
    }
    CHECK(apart(gradients_of(model), want, dtype == DType::f64 ? 1e-12 : 1e-5) == "");
  }
}

TEST_CASE("mtp: gradients of tied and untied models match finite differences") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool repeated : {false, true}) {
      GptConfig c = small(arch, 2, 5);
      c.mtp.weight = 0.7;
      c.mtp.repeated = repeated;
      Gpt model = make(c);
      const Tensor ids = tokens({2, 5}, 8), targets = tokens({2, 5}, 9);
      targets.narrow(1, 3, 1).fill_(-100);
      const auto total = [&] { return model.losses(ids, targets).total(); };
      const NamedTensors g = gradients(model, total);
      const NamedTensors parameters = model.named_parameters();
      for (std::size_t i = 0; i < g.size(); ++i) {
        CAPTURE(g[i].name);
        const Tensor p = parameters[i].tensor;
        auto* x = p.data<double>();
        // A few elements each, in different rows and columns.
        for (std::int64_t at = p.numel() / 3; at < p.numel(); at += 1 + 2 * p.numel() / 5) {
          const double was = x[at], step = 1e-5;
          x[at] = was + step;
          const double up = total().item();
          x[at] = was - step;
          const double down = total().item();
          x[at] = was;
          const double want = (up - down) / (2 * step), got = g[i].tensor.data<double>()[at];
          CHECK(std::abs(got - want) <= 1e-6 * std::max(1.0, std::abs(want)));
        }
      }
    }
}

TEST_CASE("mtp: recomputing changes no bit of losses, counts and gradients") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const Tensor ids = tokens({2, 8}, 10), targets = tokens({2, 8}, 11);
    GptLosses first;
    NamedTensors want;
    for (const nn::Recompute how :
         {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
      GptConfig c = small(arch, 2);
      c.dropout = 0.2;
      c.recompute = how;
      Gpt model = make(c);
      const RandomScope random({.seed = 5, .step = 3});
      GptLosses l;
      const NamedTensors got =
          gradients(model, [&] { return (l = model.losses(ids, targets)).total(); });
      if (want.empty()) {
        want = got;
        first = l;
      }
      CHECK(apart(got, want, 0) == "");
      for (int d = 0; d < 2; ++d) {
        CHECK(l.mtp[d].item() == first.mtp[d].item());
        CHECK(l.mtp_hits[d].item_int() == first.mtp_hits[d].item_int());
      }
    }
  }
}

TEST_CASE("mtp: heads do not multiply the logits' memory") {
  const auto peak = [](std::int64_t depths) {
    nn::DeviceScope on_meta(kMeta);
    const Gpt model({.layers = 1,
                     .heads = 2,
                     .dim = 8,
                     .seq = 1024,
                     .vocab = 40000,
                     .mtp = {.depths = depths}});
    const Tensor ids = Tensor::empty({4, 1024}, DType::i32, kMeta);
    reset_peak(kMeta);
    const std::int64_t before = memory_stats(kMeta).live_bytes;
    Tape tape;
    model.losses(ids, ids).total().backward();
    return memory_stats(kMeta).peak_bytes - before;
  };
  constexpr std::int64_t kLogits = 4096LL * 40000 * 4;  // 655 MB
  const std::int64_t none = peak(0), three = peak(3);
  CHECK(none < kLogits / 4);
  CHECK(three - none < kLogits / 16);
}

TEST_CASE("mtp: depth 1 learns a text where token i + 2 follows from token i") {
  Gpt model({.arch = Arch::llama,
             .layers = 1,
             .heads = 2,
             .dim = 32,
             .seq = 16,
             .vocab = kVocab,
             .mtp = {.depths = 1, .weight = 0.3}});
  nn::init(model, 6);
  optim::AdamW opt(model.named_parameters(), {.lr = 1e-2});
  double first = 0, last = 0, hits = 0;
  for (std::uint64_t step = 0; step < 120; ++step) {
    const Tensor text = tokens({8, 17}, 100 + step);
    for (std::int64_t i = 2; i < 17; ++i) {
      const Tensor from = text.narrow(1, i - 2, 1).to(DType::f64) * 7.0 + 3.0;
      std::vector<double> v(8);
      from.copy_to(v);
      for (std::int64_t b = 0; b < 8; ++b)
        text.narrow(0, b, 1).narrow(1, i, 1).fill_(
            std::fmod(v[static_cast<std::size_t>(b)], kVocab));
    }
    Tape tape;
    const GptLosses l =
        model.losses(text.narrow(1, 0, 16).contiguous(), text.narrow(1, 1, 16).contiguous());
    const auto count = static_cast<double>(l.mtp_count[0].item_int());
    last = l.mtp[0].item() / count;
    hits = static_cast<double>(l.mtp_hits[0].item_int()) / count;
    if (step == 0) first = last;
    l.total().backward(Tensor::full({}, 1.0 / 128, DType::f32));
    opt.step(optim::measure_clip(opt.parameters(), 1));
    opt.zero_grad();
  }
  CHECK(first == doctest::Approx(std::log(kVocab)).epsilon(0.1));
  CHECK(last < 0.3 * std::log(kVocab));
  CHECK(hits > 0.8);
}

}  // namespace weft::mtp_losses_test
