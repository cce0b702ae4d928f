// Master weights of bf16 parameters: an f32 copy, or the same number as parameter and remainder.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "weft/core/allocator.h"
#include "weft/core/kernels/remainder.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"

namespace weft::master_weights_test {
namespace {

using optim::AdamW;
using optim::AdamWOptions;
using optim::MasterWeights;
using optim::Optimizer;
using optim::Sgd;
using optim::SgdOptions;

constexpr MasterWeights kForms[] = {MasterWeights::f32, MasterWeights::remainder};

// A tail in every loop, a parameter of another dtype, and an empty one.
NamedTensors model() {
  NamedTensors ps{{"w", test::random({37, 5}, 1, DType::bf16)},
                  {"f", test::random({3}, 2, DType::f32)},
                  {"none", Tensor::zeros({0, 2}, DType::bf16)},
                  {"b", test::random({9}, 3, DType::bf16)}};
  for (NamedTensor& p : ps) p.tensor.set_requires_grad();
  return ps;
}

void set_gradients(const NamedTensors& ps, std::uint64_t step, DType dtype = DType::f32) {
  std::uint64_t seed = 1000 * step;
  for (const NamedTensor& p : ps)
    p.tensor.set_grad(test::random(p.tensor.shape(), ++seed, DType::f64).to(dtype));
}

void steps(Optimizer& opt, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t t = from; t < to; ++t) {
    set_gradients(opt.parameters(), t);
    opt.step(optim::measure_clip(opt.parameters(), 1));
  }
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// "" when both have the same master weights and matching parameters: b's are the upper halves and
// differ from a's, which are rounded to even, only at ties.
std::string differences(const Optimizer& a, const Optimizer& b) {
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    const std::string& name = a.parameters()[i].name;
    const Tensor want = a.value(i).detach(), got = b.value(i).detach();
    if (const std::string d = test::different_bits(got, want); !d.empty()) return name + ": " + d;
    const Tensor p = a.parameters()[i].tensor, q = b.parameters()[i].tensor;
    if (p.dtype() != DType::bf16) continue;
    for (std::int64_t k = 0; k < p.numel(); ++k) {
      const float master = want.data<float>()[k];
      const bool tie = (bits_of(master) & 0xffff) == 0x8000;
      const std::uint16_t rounded = p.data<bf16>()[k].bits, half = q.data<bf16>()[k].bits;
      if (rounded != bf16(master).bits || half != split_float(master).upper.bits ||
          (rounded != half && !tie))
        return message("{}: element {} is {} and {} for the master weight {}", name, k, rounded,
                       half, bits_of(master));
    }
  }
  return "";
}

// A state in which two master weights are ties: above an even and above an odd bf16.
constexpr std::uint32_t kTies[] = {0x3f808000, 0xbf818000};
void set_ties(StateDict& state) {
  float* const w = state.at("w.master").data<float>();
  for (int i = 0; i < 2; ++i) w[i] = std::bit_cast<float>(kTies[i]);
}

void copy_parameters(const NamedTensors& from, const NamedTensors& to) {
  const NoGradGuard off;
  for (std::size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor.detach());
}

std::unique_ptr<AdamW> adam(const NamedTensors& ps, MasterWeights form, AdamWOptions o = {}) {
  o.lr = 1e-3;
  o.master_weights = form;
  return std::make_unique<AdamW>(ps, o);
}

}  // namespace

TEST_CASE("master_weights: golden values of the remainder form") {
  const Tensor p = Tensor::full({1, 1}, 0.5, DType::bf16).set_requires_grad();
  AdamW opt({{"p", p}}, {.lr = 1e-3,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .weight_decay = 0.01,
                         .master_weights = MasterWeights::remainder});
  CHECK(opt.master_weights() == MasterWeights::remainder);
  const double gradients[] = {0.1, -0.2, 0.05};
  const std::uint32_t masters[] = {0x3eff7c46, 0x3effab9b, 0x3effbcde};
  const std::uint16_t halves[] = {0x3eff, 0x3f00, 0x3f00};
  for (int t = 0; t < 3; ++t) {
    CAPTURE(t);
    p.set_grad(Tensor::full({1, 1}, gradients[t]));
    opt.step();
    CHECK(bits_of(*opt.value(0).data<float>()) == masters[t]);
    CHECK(p.data<bf16>()->bits == halves[t]);
  }
}

TEST_CASE("master_weights: O5 1000 AdamW steps of both forms are equal bit by bit") {
  for (const bool decoupled : {true, false})
    for (const DType state : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(decoupled);
      CAPTURE(std::string(name(state)));
      const AdamWOptions o{.beta2 = 0.95,
                           .weight_decay = 0.1,
                           .decoupled = decoupled,
                           .m_dtype = state,
                           .v_dtype = state,
                           .groups = {{"b", 0.5}}};
      const NamedTensors a = model(), b = model();
      const auto copies = adam(a, MasterWeights::f32, o),
                 split = adam(b, MasterWeights::remainder, o);
      for (std::uint64_t t = 0; t < 1000; t += 50) {
        for (const auto& opt : {copies.get(), split.get()}) {
          opt->set_lr(1e-3 / static_cast<double>(1 + t));
          steps(*opt, t, t + 50);
        }
        REQUIRE(differences(*copies, *split) == "");
      }
      CHECK(test::different_bits(b[0].tensor.detach(), model()[0].tensor.detach()) != "");
    }
}

TEST_CASE("master_weights: SGD steps of both forms are equal bit by bit") {
  for (const double momentum : {0.0, 0.9})
    for (const DType grad : {DType::f32, DType::bf16, DType::f16}) {
      const auto make = [&](const NamedTensors& ps, MasterWeights form) {
        return Sgd(ps, {.lr = 1e-3,
                        .momentum = momentum,
                        .nesterov = momentum > 0,
                        .weight_decay = 0.01,
                        .master_weights = form});
      };
      const NamedTensors a = model(), b = model();
      Sgd copies = make(a, MasterWeights::f32), split = make(b, MasterWeights::remainder);
      for (std::uint64_t t = 0; t < 200; ++t)
        for (Sgd* opt : {&copies, &split}) {
          set_gradients(opt->parameters(), t, grad);
          opt->step();
        }
      CHECK(differences(copies, split) == "");
    }
}

TEST_CASE("master_weights: a saved state continues in either form bit by bit") {
  for (const MasterWeights before : kForms)
    for (const MasterWeights after : kForms) {
      CAPTURE(before == MasterWeights::remainder);
      CAPTURE(after == MasterWeights::remainder);
      const NamedTensors whole = model(), first = model(), second = model();
      const auto in_one = adam(whole, MasterWeights::f32);
      const auto saving = adam(first, before), going_on = adam(second, after);
      steps(*in_one, 0, 12);
      steps(*saving, 0, 6);
      const StateDict saved = saving->state_dict();
      CHECK(saved.at("w.master").dtype() == DType::f32);
      CHECK(saved.at("w.master").shape() == first[0].tensor.shape());
      CHECK(saved.count("f.master") == 0);
      copy_parameters(first, second);
      going_on->load_state_dict(saved);
      for (const auto& [name, tensor] : going_on->state_dict())
        CHECK_MESSAGE(test::different_bits(tensor, saved.at(name)) == "", name);
      steps(*going_on, 6, 12);
      CHECK(going_on->steps() == 12);
      for (std::size_t i = 0; i < whole.size(); ++i)
        CHECK(test::different_bits(going_on->value(i).detach(), in_one->value(i).detach()) == "");
      if (after == MasterWeights::remainder) CHECK(differences(*in_one, *going_on) == "");
    }
}

TEST_CASE("master_weights: loading sets the half of a tie that the f32 form rounded to even") {
  const NamedTensors a = model(), b = model();
  const auto copies = adam(a, MasterWeights::f32), split = adam(b, MasterWeights::remainder);
  StateDict state = copies->state_dict();
  set_ties(state);
  for (int i = 0; i < 2; ++i) b[0].tensor.data<bf16>()[i] = bf16(std::bit_cast<float>(kTies[i]));
  const std::uint32_t version = b[0].tensor.version();
  split->load_state_dict(state);
  CHECK(b[0].tensor.version() != version);
  CHECK(b[0].tensor.data<bf16>()[0].bits == 0x3f81);  // ties to even give 0x3f80
  CHECK(b[0].tensor.data<bf16>()[1].bits == 0xbf82);
  CHECK(test::different_bits(split->value(0), state.at("w.master")) == "");
  // The other direction: the f32 form takes the same master weights and keeps the parameters.
  const NamedTensors c = model();
  copy_parameters(b, c);
  const auto again = adam(c, MasterWeights::f32);
  again->load_state_dict(split->state_dict());
  CHECK(test::different_bits(again->value(0), split->value(0)) == "");
  CHECK(c[0].tensor.data<bf16>()[0].bits == 0x3f81);
  for (const auto& opt : {again.get(), split.get()}) steps(*opt, 0, 5);
  CHECK(differences(*again, *split) == "");
}

TEST_CASE("master_weights: an externally changed parameter replaces its master weight") {
  for (const MasterWeights form : kForms) {
    CAPTURE(form == MasterWeights::remainder);
    const NamedTensors ps = model();
    const auto opt = adam(ps, form);
    steps(*opt, 0, 3);
    {
      const NoGradGuard off;
      ps[0].tensor.fill_(2);
    }
    const Tensor two = Tensor::full({37, 5}, 2);
    CHECK(test::different_bits(opt->value(0).detach().to(DType::f32), two) == "");
    CHECK(test::different_bits(opt->state_dict().at("w.master"), two) == "");
    opt->set_lr(0);
    steps(*opt, 3, 4);
    CHECK(test::different_bits(opt->value(0).detach(), two) == "");
    // Unless keep_masters() declares that the parameters match the master weights.
    opt->set_lr(1e-3);
    steps(*opt, 4, 5);
    const Tensor before = opt->value(0).clone();
    ps[0].tensor.bump_version();
    opt->keep_masters();
    opt->set_lr(0);
    steps(*opt, 5, 6);
    CHECK(test::different_bits(opt->value(0).detach(), before) == "");
  }
}

TEST_CASE("master_weights: a norm that is not finite changes neither half") {
  for (const DType state : {DType::f32, DType::f16}) {
    const NamedTensors ps = model();
    const auto opt = adam(ps, MasterWeights::remainder, {.m_dtype = state, .v_dtype = state});
    steps(*opt, 0, 3);
    const StateDict before = opt->state_dict();
    const Tensor half = ps[0].tensor.detach().clone();
    set_gradients(ps, 3);
    ps[3].tensor.grad().slice(0, 1, 2).fill_(std::nan(""));
    CHECK(opt->step(optim::measure_clip(ps, 1)).skipped);
    for (const auto& [name, tensor] : opt->state_dict())
      CHECK_MESSAGE(test::different_bits(tensor, before.at(name)) == "", name);
    CHECK(test::different_bits(ps[0].tensor.detach(), half) == "");
  }
}

TEST_CASE("master_weights: without a norm a NaN reaches the parameter in either form") {
  for (const MasterWeights form : kForms) {
    const NamedTensors ps = model();
    const auto opt = adam(ps, form);
    set_gradients(ps, 0);
    ps[3].tensor.grad().slice(0, 1, 2).fill_(std::nan(""));
    opt->step();
    CHECK(std::isnan(test::values(ps[3].tensor.detach())[1]));
    CHECK(std::isnan(test::values(opt->value(3).detach())[1]));
    CHECK(!std::isnan(test::values(ps[3].tensor.detach())[2]));
  }
}

TEST_CASE("master_weights: the parameter norm uses the f32 numbers in either form") {
  const NamedTensors a = model(), b = model();
  const auto copies = adam(a, MasterWeights::f32), split = adam(b, MasterWeights::remainder);
  for (const auto& opt : {copies.get(), split.get()}) steps(*opt, 0, 20);
  double squares = 0, rounded = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (const double v : test::values(copies->value(i).detach())) squares += v * v;
    for (const double v : test::values(a[i].tensor.detach())) rounded += v * v;
  }
  const double want = std::sqrt(squares);
  CHECK(copies->parameter_norm().item() == doctest::Approx(want).epsilon(1e-12));
  CHECK(split->parameter_norm().item() == doctest::Approx(want).epsilon(1e-12));
  CHECK(std::abs(std::sqrt(rounded) / want - 1) > 1e-7);  // rounded values would differ
  const std::int64_t counts[] = {5, 0, 0, 9};
  double some = 0;
  for (const std::size_t i : {0, 3})
    for (std::int64_t k = 0; k < counts[i]; ++k) {
      const double v = test::values(copies->value(i).detach())[static_cast<std::size_t>(k)];
      some += v * v;
    }
  for (const auto& opt : {copies.get(), split.get()})
    CHECK(opt->sum_of_squares(counts).item() == doctest::Approx(some).epsilon(1e-12));
  const std::int64_t nothing[] = {0, 0, 0, 0};
  CHECK(!split->sum_of_squares(nothing).defined());
}

TEST_CASE("master_weights: bytes per parameter") {
  constexpr std::int64_t n = 1 << 16;  // no rounding to size classes
  const auto bytes = [&](MasterWeights form, DType state) {
    const auto live = [] {
      return memory_stats().live_by_category[static_cast<int>(Category::optimizer)];
    };
    const NamedTensors one{{"w", Tensor::ones({256, 256}, DType::bf16).set_requires_grad()}};
    const std::int64_t before = live();
    const AdamW opt(one,
                    {.beta2 = 0.95, .m_dtype = state, .v_dtype = state, .master_weights = form});
    return 2 + (live() - before) / n;
  };
  CHECK(bytes(MasterWeights::f32, DType::f32) == 14);
  CHECK(bytes(MasterWeights::remainder, DType::f32) == 12);
  CHECK(bytes(MasterWeights::remainder, DType::bf16) == 8);
  CHECK(bytes(MasterWeights::none, DType::f32) == 10);
}

TEST_CASE("master_weights: the meta device has nothing to merge") {
  const Tensor p = Tensor::empty({4, 4}, DType::bf16, kMeta).set_requires_grad();
  AdamW opt({{"p", p}}, {.master_weights = MasterWeights::remainder});
  p.set_grad(Tensor::empty({4, 4}, DType::f32, kMeta));
  CHECK(!opt.step(optim::measure_clip({{"p", p}}, 1)).skipped);
  CHECK(opt.value(0).dtype() == DType::f32);
  CHECK(opt.parameter_norm().is_meta());
  opt.load_state_dict(opt.state_dict());
}

TEST_CASE("master_weights: errors name the rule") {
  const Tensor wide = Tensor::zeros({4, 6}, DType::bf16);
  CHECK(test::error_of([&] {
          AdamW opt({{"w", wide.transpose(0, 1)}}, {.master_weights = MasterWeights::remainder});
        }) == "optimizer: w must be contiguous to have remainders, got strides [1, 6]");
  for (const MasterWeights form : kForms) {
    NamedTensors ps{{"w", Tensor::zeros({2}, DType::bf16).set_requires_grad()}};
    const auto opt = adam(ps, form);
    StateDict state = opt->state_dict();
    state.erase("w.master");
    CHECK(test::error_of([&] { opt->load_state_dict(state); }) ==
          "load_state_dict: w.master is missing from the optimizer state");
    const auto plain = adam(ps, MasterWeights::none);
    CHECK(test::error_of([&] { plain->load_state_dict(opt->state_dict()); }) ==
          "load_state_dict: w.master is not part of this optimizer's state");
  }
}

TEST_CASE("master_weights: a parameter that is stored as its master weight alone") {
  const NamedTensors ps = model(), qs = model();
  const Tensor w = ps[0].tensor;
  {
    AdamW alone(ps, {}), plain(qs, {});
    alone.store_as_masters({w, ps[2].tensor});
    const auto same = [&] {
      alone.restore_values();
      for (std::size_t i = 0; i < ps.size(); ++i)
        CHECK(test::different_bits(ps[i].tensor, qs[i].tensor) == "");
    };
    CHECK(w.storage()->released);
    CHECK(!ps[3].tensor.storage()->released);
    CHECK(test::error_of([&] { w.raw(); }) ==
          "data: the storage of this tensor [37, 5] was released");
    for (std::uint64_t t = 1; t < 4; ++t) {
      steps(alone, t, t + 1);
      steps(plain, t, t + 1);
      CHECK(w.storage()->released);
      if (t == 2) same();  // and without reading in the other steps
    }
    same();
    alone.release_values();
    CHECK(w.storage()->released);
    same();
    // A written value becomes the master weight.
    w.fill_(0.5);
    qs[0].tensor.fill_(0.5);
    alone.release_values();
    CHECK(w.storage()->released);
    CHECK(alone.value(0).dtype() == DType::f32);
    CHECK(alone.value(0).max().item() == 0.5);
    same();
    steps(alone, 4, 6);
    steps(plain, 4, 6);
    same();
    // States of either fit the other.
    const StateDict state = plain.state_dict();
    for (const auto& [name, t] : alone.state_dict())
      CHECK(test::different_bits(t, state.at(name)) == "");
    alone.load_state_dict(state);
    alone.release_values();
  }
  CHECK(test::different_bits(w, qs[0].tensor) == "");  // back after the optimizer

  const auto refused = [](const NamedTensors& of, const AdamWOptions& o, std::size_t i) {
    AdamW opt(of, o);
    return test::error_of([&] { opt.store_as_masters({of[i].tensor}); });
  };
  CHECK(refused(ps, {}, 1) == "optimizer: f needs an f32 master weight to be stored as one");
  CHECK(refused(ps, {.master_weights = MasterWeights::remainder}, 0) ==
        "optimizer: w needs an f32 master weight to be stored as one");
  const Tensor both = Tensor::zeros({8, 2}, DType::bf16);
  CHECK(refused({{"half", both.narrow(0, 0, 4)}}, {}, 0) ==
        "optimizer: half must have memory of its own to be stored as a master weight, got 16 of 32 "
        "bytes");
}

}  // namespace weft::master_weights_test
