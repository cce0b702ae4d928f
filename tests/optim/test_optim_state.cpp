// States and f32 copies of weights: saved, loaded, and refused where they do not fit.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/optim_support.h"
#include "weft/tests/support.h"

namespace weft::optim_test {
using optim::AdamW;
using optim::Sgd;

TEST_CASE("optimizer: a saved state continues in a new optimizer bit by bit") {
  for (const DType state : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(state));
    const optim::AdamWOptions o{.beta2 = 0.95, .m_dtype = state, .v_dtype = state};
    const NamedTensors straight = model(), halves = model();
    AdamW a(straight, o);
    for (std::uint64_t t = 0; t < 6; ++t) {
      set_gradients(straight, 10 + t);
      a.step();
    }
    StateDict saved;
    {
      AdamW b(halves, o);
      for (std::uint64_t t = 0; t < 3; ++t) {
        set_gradients(halves, 10 + t);
        b.step();
      }
      saved = b.state_dict();
    }
    CHECK(saved.at("step").item() == 3);
    CHECK(saved.at("norm.weight.v").dtype() == DType::f32);
    AdamW c(halves, o);
    c.load_state_dict(saved);
    for (std::uint64_t t = 3; t < 6; ++t) {
      set_gradients(halves, 10 + t);
      c.step();
    }
    CHECK(differences(straight, halves) == "");
  }
}

TEST_CASE("optimizer: f16 states survive a file to within their precision") {
  const optim::AdamWOptions o{.beta2 = 0.95, .m_dtype = DType::f16, .v_dtype = DType::f16};
  const NamedTensors ps = model();
  AdamW a(ps, o), b(ps, o);
  set_gradients(ps, 1);
  a.step();
  const StateDict saved = a.state_dict();
  b.load_state_dict(saved);
  for (const auto& [name, tensor] : saved) {
    CAPTURE(name);
    CHECK(test::mismatch(b.state_dict().at(name), tensor, 1e-3) == "");
  }
}

TEST_CASE("optimizer: a state that does not fit is refused and changes nothing") {
  const NamedTensors ps = model();
  AdamW opt(ps);
  const StateDict good = opt.state_dict();
  const auto error = [&](auto change) {
    StateDict bad = good;
    bad.at("step").fill_(7);
    change(bad);
    return test::error_of([&] { opt.load_state_dict(bad); });
  };
  CHECK(error([](StateDict& s) { s.erase("step"); }) ==
        "load_state_dict: the optimizer state must have \"step\", got none");
  CHECK(error([](StateDict& s) { s.at("step") = Tensor::zeros({2}); }) ==
        "load_state_dict: step must have 1 element, got shape [2]");
  CHECK(error([](StateDict& s) { s.erase("norm.weight.v"); }) ==
        "load_state_dict: norm.weight.v is missing from the optimizer state");
  CHECK(error([](StateDict& s) { s.emplace("other.m", Tensor::zeros({1})); }) ==
        "load_state_dict: other.m is not part of this optimizer's state");
  CHECK(error([](StateDict& s) { s.at("norm.weight.m") = Tensor::zeros({4}); }) ==
        "load_state_dict: norm.weight.m must have shape [3], got [4]");
  CHECK(error([](StateDict& s) { s.at("norm.weight.m") = Tensor::zeros({3}, DType::i32); }) ==
        "load_state_dict: norm.weight.m must be f32, f64, bf16 or f16, got i32");
  CHECK(error([](StateDict& s) {
          s.at("norm.weight.m") = Tensor::zeros({3}, DType::f32, kMeta);
        }) == "load_state_dict: norm.weight.m must have values, got a tensor on meta");
  CHECK(error([](StateDict& s) { s.at("step").fill_(-4); }) ==
        "load_state_dict: step must be at least 0, got -4");
  CHECK(error([](StateDict& s) { s.at("step") = Tensor::of({2.7}, {1}); }) ==
        "load_state_dict: step must be an integer, got f32 on cpu");
  CHECK(opt.steps() == 0);
}

TEST_CASE("optimizer: f32 copies of views of one buffer stay unchanged") {
  // As in a flat bucket: a write to one view counts as a write to all.
  const Tensor flat = Tensor::ones({4}, DType::bf16);
  NamedTensors ps{{"a", flat.alias({2}, {1}, 0)}, {"b", flat.alias({2}, {1}, 2)}};
  for (const NamedTensor& p : ps) p.tensor.set_main_grad(Tensor::ones({2}));
  optim::Sgd sgd(ps, {.lr = 1e-4});
  for (int i = 0; i < 30; ++i) {
    sgd.step();
    flat.bump_version();  // as an all-gather of updated parameters does
    sgd.keep_masters();
  }
  for (const std::size_t i : {0, 1}) CHECK(sgd.value(i).max().item() == doctest::Approx(0.997));
  CHECK(flat.min().item() < 1);
  // Without keep_masters() the parameter counts.
  flat.fill_(3);
  sgd.step();
  CHECK(sgd.value(1).max().item() == doctest::Approx(3 - 1e-4));
}

TEST_CASE("optimizer: bf16 weights are updated through an f32 copy") {
  // Steps of 1e-3 on a weight of 1, whose neighbours in bf16 are 2^-8 away: each step alone is
  // lost.
  const auto after = [](optim::MasterWeights form, int steps) {
    const Tensor p = parameter(Tensor::full({3}, 1, DType::bf16));
    Sgd opt({{"p", p}}, {.lr = 1e-3, .master_weights = form});
    for (int i = 0; i < steps; ++i) {
      p.set_grad(Tensor::ones({3}, DType::bf16));
      opt.step();
    }
    return p.detach().narrow(0, 0, 1).item();
  };
  CHECK(after(optim::MasterWeights::none, 100) == 1.0);
  CHECK(after(optim::MasterWeights::f32, 100) ==
        static_cast<double>(static_cast<float>(bf16(0.9f))));
}

TEST_CASE("optimizer: the f32 copy is saved, loaded and follows an external change") {
  const auto fresh = [] {
    return NamedTensors{{"w", parameter(test::random({4, 5}, 1, DType::bf16))},
                        {"b", parameter(test::random({5}, 2, DType::f32))}};
  };
  const NamedTensors a = fresh(), b = fresh();
  AdamW first(a, {.lr = 1e-4}), second(b, {.lr = 1e-4});
  const auto steps = [](AdamW& opt, const NamedTensors& ps, int from, int to) {
    for (int i = from; i < to; ++i) {
      set_gradients(ps, static_cast<std::uint64_t>(10 * i));
      opt.step();
    }
  };
  steps(first, a, 0, 6);
  steps(second, b, 0, 3);
  const StateDict saved = second.state_dict();
  CHECK(saved.count("w.master") == 1);
  CHECK(saved.count("b.master") == 0);
  const NamedTensors c = fresh();
  AdamW resumed(c, {.lr = 1e-4});
  for (std::size_t i = 0; i < c.size(); ++i) {
    const NoGradGuard off;
    c[i].tensor.copy_(b[i].tensor.detach());
  }
  resumed.load_state_dict(saved);
  steps(resumed, c, 3, 6);
  CHECK(differences(values_of(a), values_of(c)) == "");
  {
    const NoGradGuard off;
    c[0].tensor.fill_(2);
  }
  c[0].tensor.set_grad(Tensor::zeros({4, 5}, DType::bf16));
  resumed.set_lr(0);
  resumed.step();
  CHECK(test::different_bits(c[0].tensor.detach(), Tensor::full({4, 5}, 2, DType::bf16)) == "");
}

}  // namespace weft::optim_test
