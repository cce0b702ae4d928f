// Steps of optimizers and groups of parameters. States are in test_optim_state.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "weft/nn/linear.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/optim_support.h"
#include "weft/tests/support.h"

namespace weft::optim_test {
using optim::AdamW;
using optim::Sgd;

TEST_CASE("sgd: plain, momentum and Nesterov follow their formulas") {
  for (const double momentum : {0.0, 0.9})
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      CAPTURE(momentum);
      CAPTURE(nesterov);
      const Tensor p = parameter(Tensor::of({2}, {1, 1}, DType::f64));
      Sgd opt({{"p", p}},
              {.lr = 0.1, .momentum = momentum, .nesterov = nesterov, .weight_decay = 0.01});
      double ref = 2, buffer = 0;
      for (const double g0 : {1.0, -0.5, 0.25, 3.0}) {
        p.set_grad(Tensor::of({g0}, {1, 1}, DType::f64));
        opt.step();
        const double g = g0 + 0.01 * ref;
        buffer = momentum * buffer + g;
        ref -= 0.1 * (nesterov ? g + momentum * buffer : buffer);
        CHECK(p.item() == doctest::Approx(ref).epsilon(1e-14));
      }
    }
}

TEST_CASE("optimizer: a parameter without a gradient keeps its value and state") {
  for (const bool adam : {true, false}) {
    CAPTURE(adam);
    const NamedTensors ps = model();
    std::unique_ptr<optim::Optimizer> opt;
    if (adam)
      opt = std::make_unique<AdamW>(ps);
    else
      opt = std::make_unique<Sgd>(ps, optim::SgdOptions{.momentum = 0.9});
    set_gradients(ps, 1);
    opt->step();
    set_gradients(ps, 2);
    ps[1].tensor.set_grad({});
    const NamedTensors before = values_of(ps);
    const std::string state = adam ? ".m" : ".momentum";
    const Tensor kept = opt->state_dict().at(ps[1].name + state);
    opt->step();
    CHECK(test::different_bits(ps[1].tensor, before[1].tensor) == "");
    CHECK(test::different_bits(opt->state_dict().at(ps[1].name + state), kept) == "");
    CHECK(test::different_bits(ps[0].tensor, before[0].tensor) != "");
  }
}

TEST_CASE("optimizer: steps count even without gradients") {
  AdamW opt(model());
  CHECK(!opt.step().skipped);
  CHECK(opt.steps() == 1);
  CHECK(test::error_of([] { AdamW({}); }) == "optimizer: needs at least 1 parameter, got none");
  AdamW none({}, {.settings = std::vector<optim::ParamSettings>()});  // the rank of a sharded one
  none.step();
  CHECK(none.steps() == 1);
  CHECK(none.state_dict().at("step").item() == 1);
}

TEST_CASE("optimizer: a gradient norm that is not finite changes nothing") {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const NamedTensors ps = model();
    AdamW opt(ps);
    set_gradients(ps, 1);
    opt.step();
    const NamedTensors before = values_of(ps);
    const Tensor m = opt.state_dict().at("norm.weight.m");
    set_gradients(ps, 2);
    ps[2].tensor.grad().slice(0, 1, 2).fill_(bad);
    CHECK(opt.step(optim::measure_clip(ps, 1)).skipped);
    CHECK(opt.steps() == 1);
    CHECK(differences(ps, before) == "");
    CHECK(test::different_bits(opt.state_dict().at("norm.weight.m"), m) == "");
  }
}

TEST_CASE("optimizer: clipping during the step equals clipping before it") {
  const NamedTensors a = model(DType::f64), b = model(DType::f64);
  AdamW on_the_way(a), first(b);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    set_gradients(a, t);
    set_gradients(b, t);
    on_the_way.step(optim::measure_clip(a, 0.5));
    optim::clip_grad_norm(b, 0.5);
    first.step();
  }
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(test::mismatch(a[i].tensor, b[i].tensor, 1e-12) == "");
  NamedTensors c = model(DType::f64);
  AdamW unclipped(c);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    set_gradients(c, t);
    unclipped.step();
  }
  CHECK(test::mismatch(a[0].tensor, c[0].tensor, 1e-12) != "");
}

TEST_CASE("optimizer: main_grad is used if set and zero_grad empties both kinds") {
  const Tensor p = parameter(Tensor::of({1, 1}, {1, 2}));
  Sgd opt({{"p", p}}, {.lr = 1});
  const Tensor main = Tensor::of({2, 3}, {1, 2});
  p.set_main_grad(main);
  p.set_grad(Tensor::of({100, 100}, {1, 2}));
  opt.step();
  CHECK(test::different_bits(p, Tensor::of({-1, -2}, {1, 2})) == "");
  opt.zero_grad();
  CHECK(!p.grad().defined());
  CHECK(p.main_grad().same(main));
  CHECK(!p.main_grad_filled());
}

TEST_CASE("optimizer: a step bumps the version of its parameters") {
  const Tensor p = parameter(Tensor::of({1}, {1, 1}));
  Sgd opt({{"p", p}});
  p.set_grad(Tensor::of({1}, {1, 1}));
  const std::uint32_t version = p.version();
  opt.step();
  CHECK(p.version() == version + 1);
}

TEST_CASE("groups: the first match wins and only tensors with two axes decay by default") {
  const NamedTensors ps = model();
  const auto plain = optim::assign_groups(ps, {}, 0.1);
  CHECK(plain[0].weight_decay == 0.1);
  CHECK(plain[2].weight_decay == 0);
  CHECK(plain[3].weight_decay == 0);
  const auto ruled =
      optim::assign_groups(ps,
                           {{.pattern = "bias$", .weight_decay = 0.5},
                            {.pattern = "^blocks\\.", .lr_scale = 3},
                            {.pattern = "embed|norm", .lr_scale = 0.5, .weight_decay = 0}},
                           0.1);
  CHECK(ruled[0].lr_scale == 0.5);
  CHECK(ruled[0].weight_decay == 0);
  CHECK(ruled[1].lr_scale == 3);
  CHECK(ruled[1].weight_decay == 0.1);
  CHECK(ruled[2].lr_scale == 1);
  CHECK(ruled[2].weight_decay == 0.5);
  CHECK(ruled[3].lr_scale == 0.5);
}

TEST_CASE("groups: biases do not decay even with two axes") {
  const Tensor p = parameter(Tensor::zeros({2, 3}));
  const NamedTensors ps{{"experts.up_bias", p}, {"experts.down.bias", p}, {"bias", p},
                        {"experts.up", p},      {"bias.up", p},           {"unbias", p}};
  const auto plain = optim::assign_groups(ps, {}, 0.1);
  for (std::size_t i = 0; i < 6; ++i) CHECK(plain[i].weight_decay == (i < 3 ? 0 : 0.1));
  CHECK(optim::assign_groups(ps, {{.pattern = "up_bias", .weight_decay = 0.5}}, 0.1)[0]
            .weight_decay == 0.5);
}

TEST_CASE("groups: a rule may be shadowed everywhere but must match a name") {
  const NamedTensors ps = model();
  CHECK(optim::assign_groups(ps, {{.pattern = "."}, {.pattern = "bias"}}, 0).size() == 4);
  CHECK(test::error_of([&] { optim::assign_groups(ps, {{.pattern = "biass"}}, 0); }) ==
        "groups: pattern \"biass\" must match at least one of the 4 parameter names");
  CHECK(test::error_of([&] { optim::assign_groups(ps, {{.pattern = "(x"}}, 0); }) ==
        "groups: pattern \"(x\" is not a regular expression");
  CHECK(test::error_of([&] { optim::assign_groups(ps, {{.pattern = ".", .lr_scale = -1}}, 0); }) ==
        "groups: lr_scale must be finite and at least 0, got -1");
  CHECK(test::error_of([&] {
          optim::assign_groups(ps, {{.pattern = ".", .weight_decay = -1}}, 0);
        }) == "groups: weight_decay must be finite and at least 0, got -1");
  CHECK(test::error_of([&] {
          optim::assign_groups(ps, {{.pattern = "."}, {.pattern = "bias", .lr_scale = -1}}, 0);
        }) == "groups: lr_scale must be finite and at least 0, got -1");
}

TEST_CASE("optimizer: parameters are leaves, each given once") {
  const Tensor w = Tensor::ones({2}).set_requires_grad();
  CHECK(test::error_of([&] {
          AdamW({{"a", w}, {"b", w}});
        }) == "optimizer: every parameter must be given once, got b under two names");
  Tape tape;
  CHECK(test::error_of([&] {
          AdamW({{"a", w * 2}});
        }) == "optimizer: a must be a leaf, got the output of an op");
}

TEST_CASE("groups: settings are applied in the update") {
  const NamedTensors ps{{"a", parameter(Tensor::of({1}, {1, 1}))},
                        {"b", parameter(Tensor::of({1}, {1, 1}))}};
  Sgd opt(ps, {.lr = 0.5, .groups = {{.pattern = "b", .lr_scale = 0.25, .weight_decay = 2.0}}});
  for (const NamedTensor& p : ps) p.tensor.set_grad(Tensor::of({1}, {1, 1}));
  opt.step();
  CHECK(ps[0].tensor.item() == 0.5);
  CHECK(ps[1].tensor.item() == 1 - 0.5 * 0.25 * (1 + 2));
}

TEST_CASE("optimizer: settings per parameter replace groups, and a step may run in parts") {
  NamedTensors ps;
  for (const char* name : {"a", "b", "c"}) {
    ps.push_back({name, Tensor::ones({2})});
    ps.back().tensor.set_grad(Tensor::ones({2}));
  }
  using Settings = std::vector<optim::ParamSettings>;
  optim::Sgd sgd(ps, {.lr = 0.5, .settings = Settings{{1, 0}, {2, 0}, {1, 1}}});
  std::vector<double> seen;
  const std::size_t ends[] = {1, 1, 3};
  const auto look = [&](std::size_t) {
    seen.push_back(ps[0].tensor.max().item() + ps[2].tensor.max().item());
  };
  CHECK_FALSE(sgd.step({}, ends, look).skipped);
  CHECK(seen == std::vector<double>{1.5, 1.5, 0.5});
  CHECK(ps[1].tensor.max().item() == 0);
  CHECK(sgd.steps() == 1);
  const optim::GradClip bad{Tensor::zeros({}, DType::f64), Tensor::full({}, NAN, DType::f64)};
  CHECK(sgd.step(bad, ends, look).skipped);
  CHECK(seen.size() == 6);
  CHECK(test::error_of([&] { optim::Sgd(ps, {.settings = Settings{}}); }) ==
        "optimizer: settings must have one entry for each of 3 parameters, got 0");
  CHECK(test::error_of([&] {
          optim::Sgd(ps, {.settings = Settings{{1, 0}, {-1, 0}, {1, 0}}});
        }) == "optimizer: lr_scale must be finite and at least 0, got -1");
  CHECK(test::error_of([&] {
          optim::Sgd(ps, {.settings = Settings{{1, 0}, {1, INFINITY}, {1, 0}}});
        }) == "optimizer: weight_decay must be finite and at least 0, got inf");
}

TEST_CASE("optimizer: a step on the meta device needs no values") {
  Tensor p = Tensor::empty({4, 4}, DType::f32, kMeta);
  p.set_requires_grad();
  AdamW opt({{"p", p}});
  p.set_grad(Tensor::empty({4, 4}, DType::f32, kMeta));
  CHECK(!opt.step(optim::measure_clip({{"p", p}}, 1)).skipped);
  CHECK(opt.steps() == 1);
}

TEST_CASE("optimizer: parameters keep the dtype that they had when it was made") {
  const auto error = [](DType before, DType after, const auto& make) {
    nn::Linear layer(4, 4);
    layer.to(before);
    const auto optimizer = make(NamedTensors{{"w", layer.weight}});
    layer.to(after);
    layer.weight.set_grad(Tensor::ones({4, 4}, after));
    return test::error_of([&] { optimizer->step(); });
  };
  const auto adam = [](const NamedTensors& p) { return std::make_unique<AdamW>(p); };
  const auto sgd = [](const NamedTensors& p) { return std::make_unique<Sgd>(p); };
  const std::string rule =
      " on cpu after its optimizer was created; create the optimizer after to()";
  CHECK(error(DType::f32, DType::bf16, adam) == "optimizer: w changed to bf16" + rule);
  CHECK(error(DType::f32, DType::bf16, sgd) == "optimizer: w changed to bf16" + rule);
  CHECK(error(DType::f32, DType::f64, sgd) == "optimizer: w changed to f64" + rule);
  CHECK(error(DType::f32, DType::f32, adam) == "no error");
}

TEST_CASE("optimizer: errors name the rule") {
  const Tensor p = parameter(Tensor::of({1, 2}, {2}));
  const NamedTensors one{{"p", p}};
  const auto error = [&](const optim::AdamWOptions& o) {
    return test::error_of([&] { AdamW opt(one, o); });
  };
  CHECK(error({.lr = -1}) == "optimizer: lr must be finite and at least 0, got -1");
  CHECK(error({.beta1 = 1}) == "adamw: beta1 must be in [0, 1), got 1");
  CHECK(error({.beta2 = -0.5}) == "adamw: beta2 must be in [0, 1), got -0.5");
  CHECK(error({.eps = -1}) == "adamw: eps must be finite and at least 0, got -1");
  CHECK(error({.eps = INFINITY}) == "adamw: eps must be finite and at least 0, got inf");
  CHECK(error({.weight_decay = INFINITY}) ==
        "adamw: weight_decay must be finite and at least 0, got inf");
  CHECK(error({.weight_decay = -1}) == "adamw: weight_decay must be finite and at least 0, got -1");
  CHECK(error({.m_dtype = DType::f64}) == "adamw: m_dtype must be f32, bf16, f16 or e4m3, got f64");
  CHECK(error({.v_dtype = DType::e5m2}) ==
        "adamw: v_dtype must be f32, bf16, f16 or e4m3, got e5m2");
  CHECK(test::error_of([&] { Sgd opt(one, {.momentum = 1}); }) ==
        "sgd: momentum must be in [0, 1), got 1");
  CHECK(test::error_of([&] { Sgd opt(one, {.weight_decay = -1}); }) ==
        "sgd: weight_decay must be finite and at least 0, got -1");
  CHECK(test::error_of([&] { Sgd opt(one, {.nesterov = true}); }) ==
        "sgd: nesterov needs a momentum above 0, got 0");
  CHECK(test::error_of([&] {
          Sgd opt({{"p", p}, {"p", p}});
        }) == "optimizer: every parameter needs a unique name, got p twice");
  CHECK(test::error_of([&] {
          Sgd opt({{"p", Tensor()}});
        }) == "optimizer: p must be a tensor, got a null handle");
  CHECK(test::error_of([&] {
          Sgd opt({{"p", Tensor::zeros({1}, DType::i32)}});
        }) == "optimizer: p must be f32, f64, bf16 or f16, got i32");
  Sgd opt(one);
  CHECK(test::error_of([&] {
          p.set_grad(Tensor::of({1, 2, 3}, {3}));
        }) == "set_grad: the gradient must be [2] on cpu like its tensor, got [3] on cpu");
  p.set_grad(Tensor::of({1, 2}, {2}, DType::f64));
  CHECK(test::error_of([&] { opt.step(); }) ==
        "optimizer: the gradient of p (dtype f32) cannot have dtype f64");
  p.set_grad(test::strided(Tensor::of({1, 2}, {2})));
  CHECK(test::error_of([&] { opt.step(); }) ==
        "optimizer: p and its gradient must be contiguous, got strides [1] and [2]");
}

}  // namespace weft::optim_test
