#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/experts.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/support.h"

namespace weft::experts_test {

namespace {

using nn::Activation;
using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

Tensor rows_of(const std::vector<std::int64_t>& n) {
  return Tensor::from(std::span<const std::int64_t>(n), {static_cast<std::int64_t>(n.size())});
}

// The sequential reference: a separate Mlp for each expert, with its output scaled.
Tensor sequential(const nn::Experts& all, const Tensor& x, const Tensor& probs,
                  const std::vector<std::int64_t>& rows) {
  TensorList parts;
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const auto index = static_cast<std::int64_t>(e);
    nn::Mlp mlp(all.up.dim(2), all.down.dim(2),
                {.activation = all.options.activation, .bias = all.options.bias});
    mlp.up.weight = all.up.select(0, index);
    mlp.down.weight = all.down.select(0, index);
    if (all.options.bias) {
      mlp.up.bias = all.up_bias.select(0, index);
      mlp.down.bias = all.down_bias.select(0, index);
    }
    const Tensor y = mlp(x.narrow(0, first, rows[e]));
    parts.push_back(mul(y, probs.narrow(0, first, rows[e]).unsqueeze(1)));
    first += rows[e];
  }
  return cat(parts, 0);
}

template <class F>
TensorList run(F f, const TensorList& wanted, const Tensor& dy) {
  Tape tape;
  const Tensor y = f();
  TensorList out = tape.gradients(y, wanted, dy);
  out.push_back(y.detach());
  return out;
}

TensorList parameters_of(nn::Experts& e) {
  TensorList out;
  for (const Tensor& p : e.parameters()) out.push_back(p);
  return out;
}

}  // namespace

TEST_CASE("Experts: forward and backward equal one scaled Mlp per expert") {
  const std::vector<std::int64_t> rows = {3, 0, 5, 1};
  for (const Activation a : test::kEveryActivation)
    for (const bool bias : {false, true})
      for (const bool again : {false, true}) {
        CAPTURE(row_of(a).word);
        CAPTURE(bias);
        CAPTURE(again);
        nn::Experts experts(4, 6, 5, {.activation = a, .bias = bias, .recompute = again});
        nn::init(experts, 3);
        for (const Tensor& p : experts.parameters()) p.copy_(random(p.shape(), 7, DType::f32));
        experts.to(DType::f64);
        Tensor x = random({9, 6}, 1), probs = test::random_in({9}, 0, 1, 2);
        x.set_requires_grad();
        probs.set_requires_grad();
        TensorList wanted = parameters_of(experts);
        wanted.push_back(x);
        wanted.push_back(probs);
        const Tensor dy = random({9, 6}, 4);
        const TensorList got = run([&] { return experts(x, probs, rows_of(rows)); }, wanted, dy);
        const TensorList want =
            run([&] { return sequential(experts, x, probs, rows); }, wanted, dy);
        for (int i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(mismatch(got[i], want[i], 1e-12) == "");
        }
      }
}

TEST_CASE("Experts: bf16 agrees with f64") {
  nn::Experts experts(3, 16, 32, {.bias = true});
  nn::init(experts, 1);
  for (const Tensor& p : experts.parameters()) p.mul_(5);
  experts.to(DType::bf16);
  const Tensor x = random({12, 16}, 1, DType::bf16);
  const Tensor probs = test::random_in({12}, 0, 1, 2, DType::f32), rows = rows_of({7, 0, 5});
  const Tensor y = experts(x, probs, rows);
  CHECK(y.dtype() == DType::bf16);
  experts.to(DType::f64);
  CHECK(mismatch(y, experts(x.to(DType::f64), probs.to(DType::f64), rows), 2e-2) == "");
}

TEST_CASE("Experts: init() draws by an expert's global number") {
  const nn::ExpertsOptions options{.init = nn::Init::normal(1), .proj_init = nn::Init::normal(2)};
  nn::Experts whole(4, 3, 5, options);
  nn::init(whole, 11);
  for (const std::int64_t first : {0, 1, 2}) {
    nn::Experts half(2, 3, 5, options);  // 30 and 15 values per expert: odd counts too
    const nn::ShardSpec::Cut held{0, {{first, first + 2}}};
    nn::init(half, 11, {{"gate_up", {{4, 10, 3}, {held}}}, {"down", {{4, 3, 5}, {held}}}});
    CHECK(different_bits(half.up, contiguous(whole.up.narrow(0, first, 2))) == "");
    CHECK(different_bits(half.down, contiguous(whole.down.narrow(0, first, 2))) == "");
  }
  CHECK(mismatch(whole.up.select(0, 0), whole.up.select(0, 1), 0.1) != "");
}

TEST_CASE("Experts: parameter names, clone and printed text") {
  nn::Experts experts(2, 3, 4, {.bias = true});
  const StateDict state = experts.state_dict();
  CHECK(state.at("gate_up").shape() == Shape{2, 8, 3});
  CHECK(state.at("gate_up_bias").shape() == Shape{2, 8});
  CHECK(state.at("down").shape() == Shape{2, 3, 4});
  CHECK(state.at("down_bias").shape() == Shape{2, 3});
  CHECK(experts.describe() == "Experts(2 x 3 -> 4 -> 3)");
  nn::Experts gelu(2, 3, 4, {.activation = Activation::gelu_tanh});
  CHECK(gelu.state_dict().count("up") == 1);
  CHECK(gelu.parameter_count() == 2 * 2 * 3 * 4);
  const nn::Experts copy = nn::clone(experts);
  CHECK(different_bits(copy.up, experts.up) == "");
}

TEST_CASE("SharedExpert: an Mlp times sigmoid(x . w) if gated") {
  for (const bool gated : {false, true}) {
    nn::SharedExpert shared(4, 6, gated, {.activation = Activation::swiglu, .bias = false});
    nn::init(shared, 1);
    for (const Tensor& p : shared.parameters()) p.mul_(20);
    shared.to(DType::f64);
    const Tensor x = random({2, 3, 4});
    Tensor want = shared.mlp(x);
    if (gated) {
      const Tensor w = shared.gate->weight.select(0, 0);
      want = mul(want, sigmoid(mul(x, w).sum({-1}, true)));
    }
    CHECK(mismatch(shared(x), want, 1e-12) == "");
    CHECK(shared.parameter_count() == 3 * 4 * 6 + (gated ? 4 : 0));
    CHECK(different_bits(nn::clone(shared)(x), shared(x)) == "");
  }
}

TEST_CASE("Experts: errors name the rule") {
  CHECK(error_of([] { nn::Experts(0, 3, 4); }) ==
        "experts: experts, dim and hidden must be at least 1, got 0, 3 and 4");
}

}  // namespace weft::experts_test
