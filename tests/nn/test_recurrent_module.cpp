// tests/fixtures/make_recurrent.py stores what torch.nn.GRU and torch.nn.LSTM compute.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/io/safetensors.h"
#include "weft/nn/recurrent.h"
#include "weft/tests/support.h"

namespace weft::recurrent_module_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const StateDict& fixture() {
  static const StateDict stored = io::load_safetensors(WEFT_FIXTURES "/recurrent.safetensors");
  return stored;
}
Tensor stored(const std::string& name) {
  const auto found = fixture().find(name);
  return found == fixture().end() ? Tensor() : found->second;
}

// y, h, and for an LSTM c.
TensorList call(const nn::Gru& rnn, const Tensor& x, const TensorList& state,
                const nn::Packing& packing = {}) {
  const GruOutput out = rnn(x, state.size() ? state[0] : Tensor(), packing);
  return {out.y, out.state};
}
TensorList call(const nn::Lstm& rnn, const Tensor& x, const TensorList& state,
                const nn::Packing& packing = {}) {
  const LstmOutput out =
      rnn(x, state.size() ? LstmState{state[0], state[1]} : LstmState(), packing);
  return {out.y, out.state.h, out.state.c};
}

template <class M>
constexpr const char* kName = std::is_same_v<M, nn::Gru> ? "gru" : "lstm";

template <class M>
M from_pytorch() {
  nn::DeviceScope f64(kCpu, DType::f64);
  M model(5, 6, {.layers = 2});
  const std::string prefix = std::string(kName<M>) + ".model.";
  StateDict weights;
  for (const auto& [name, t] : fixture())
    if (name.rfind(prefix, 0) == 0) weights[name.substr(prefix.size())] = t;
  model.load_state_dict(weights);
  return model;
}

// Compares results and gradients with those under `prefix`.
template <class M>
void compare(const M& model, const std::string& prefix, const nn::Packing& packing) {
  CAPTURE(prefix);
  TensorList inputs{stored(prefix + "x")}, state;
  std::vector<std::string> names{"x"};
  for (const char* name : {"h0", "c0"})
    if (Tensor t = stored(prefix + name); t.defined()) {
      state.push_back(t.set_requires_grad());
      inputs.push_back(t);
      names.push_back(name);
    }
  inputs[0].set_requires_grad();
  for (const auto& [name, p] : model.named_parameters()) {
    inputs.push_back(p);
    names.push_back("model." + name);
  }
  Tape tape;
  const TensorList got = call(model, inputs[0], state, packing);
  Tensor loss = Tensor::zeros({}, DType::f64);
  const char* const results[] = {"y", "h", "c"};
  for (int i = 0; i < got.size(); ++i) {
    CHECK(mismatch(got[i], stored(prefix + results[i]), 1e-12) == "");
    loss = loss + (got[i] * stored(prefix + "d." + results[i])).sum();
  }
  const TensorList gradients = tape.gradients(loss, inputs);
  for (int i = 0; i < gradients.size(); ++i) {
    const std::string& name = names[static_cast<std::size_t>(i)];
    CAPTURE(name);
    CHECK(mismatch(gradients[i], stored(prefix + "grad." + name), 1e-11) == "");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("recurrent modules: values and gradients are PyTorch's", M, nn::Gru, nn::Lstm) {
  const M model = from_pytorch<M>();
  const std::string name = kName<M>;
  compare(model, name + ".batch.", {});
  const Tensor cu = Tensor::of({0, 3, 4, 9}, {4}, DType::i32);
  compare(model, name + ".packed.", {.cu_seqlens = cu});
}

TEST_CASE_TEMPLATE("recurrent modules: parts of a sequence equal the whole", M, nn::Gru, nn::Lstm) {
  M model(7, 9, {.layers = 3});
  nn::init(model, 1);
  const Tensor x = random({2, 6, 7}, 1, DType::f32);
  const TensorList whole = call(model, x, {});
  TensorList state;
  for (const auto& [from, n] : {std::pair{0, 1}, {1, 3}, {4, 0}, {4, 2}}) {
    const TensorList out = call(model, x.narrow(1, from, n), state);
    CHECK(mismatch(out[0], whole[0].narrow(1, from, n), 1e-6) == "");
    state = {};
    for (int i = 1; i < out.size(); ++i) state.push_back(out[i]);
  }
  for (int i = 0; i < state.size(); ++i) CHECK(mismatch(state[i], whole[i + 1], 1e-6) == "");
}

// The state of an earlier tape is a constant: truncated backpropagation through time.
TEST_CASE_TEMPLATE("recurrent modules: training goes on from the last state", M, nn::Gru,
                   nn::Lstm) {
  M model(4, 5);
  nn::init(model, 1);
  const Tensor x = random({2, 6, 4}, 1, DType::f32);
  TensorList state;
  for (const int from : {0, 3}) {
    model.zero_grad();
    TensorList detached;
    for (const Tensor& t : state) detached.push_back(t.detach());
    {
      Tape tape;
      call(model, x.narrow(1, from, 3), detached)[0].sum().backward();
    }
    const Tensor want = model.layers[0].weight_hh.grad().clone();
    model.zero_grad();
    Tape tape;
    const TensorList out = call(model, x.narrow(1, from, 3), state);
    out[0].sum().backward();
    CHECK(different_bits(model.layers[0].weight_hh.grad(), want) == "");
    state = {};
    for (int i = 1; i < out.size(); ++i) state.push_back(out[i]);
  }
}

TEST_CASE_TEMPLATE("recurrent modules: parameters, printing, clones", M, nn::Gru, nn::Lstm) {
  const bool lstm = std::is_same_v<M, nn::Lstm>;
  const M model(64, 128), deep(3, 4, {.layers = 2, .bias = false});
  const std::int64_t gates = lstm ? 4 : 3;
  CHECK(model.parameter_count() == gates * 128 * (64 + 128 + 2));
  CHECK(model.multiply_adds() == static_cast<double>(gates * 128 * (64 + 128)));
  CHECK(deep.parameter_count() == gates * 4 * (3 + 4 + 4 + 4));
  CHECK(model.describe() == std::string(lstm ? "Lstm" : "Gru") + "(64 -> 128)");
  CHECK(deep.describe() == std::string(lstm ? "Lstm" : "Gru") + "(3 -> 4, 2 layers, no bias)");
  std::string names;
  for (const auto& [name, t] : M(1, 1).named_parameters()) names += name + " ";
  CHECK(names == "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 ");

  const M copy = nn::clone(deep);
  const Tensor x = random({2, 5, 3}, 1, DType::f32);
  CHECK(different_bits(copy(x).y, deep(x).y) == "");
  const auto [y, state] = model(random({2, 5, 64}, 1, DType::f32));
  CHECK(y.shape() == Shape{2, 5, 128});
  double largest = 0;
  for (const double v : test::values(model.layers[0].bias_hh)) largest = std::max(largest, v);
  CHECK(largest > 0.07);
  CHECK(largest < 1 / std::sqrt(128.0));
}

TEST_CASE("recurrent modules: errors name the rule") {
  const nn::Gru gru(3, 4);
  const nn::Lstm lstm(3, 4, {.layers = 2});
  const Tensor x = random({2, 5, 3}, 1, DType::f32), h = Tensor::zeros({2, 2, 4});
  CHECK(error_of([] { nn::Gru(0, 4); }) == "gru: input and hidden must be at least 1, got 0 and 4");
  CHECK(error_of([] { nn::Lstm(3, 4, {.layers = 0}); }) ==
        "lstm: layers must be at least 1, got 0");
  CHECK(error_of([&] { gru({}); }) == "gru: x must be a tensor, got a null handle");
  CHECK(error_of([&] {
          gru(random({2, 5, 4}));
        }) == "gru: x must have shape (batch, tokens, 3), got [2, 5, 4]");
  CHECK(error_of([&] { gru(x, h); }) ==
        "gru: state must have shape (layers 1, sequences, 4), got [2, 2, 4]");
  CHECK(error_of([&] {
          lstm(x, {h, h.select(0, 0)});
        }) == "lstm: state must have shape (layers 2, sequences, 4), got [2, 4]");
  CHECK(error_of([&] { lstm(x, {h, {}}); }) == "lstm: state must have both h and c, got only h");
}

}  // namespace weft::recurrent_module_test
