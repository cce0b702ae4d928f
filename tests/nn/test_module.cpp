#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <type_traits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/nn/child.h"
#include "weft/nn/dropout.h"
#include "weft/nn/embedding.h"
#include "weft/nn/gpt.h"
#include "weft/nn/linear.h"
#include "weft/nn/norm.h"
#include "weft/tests/poisoned_memory.h"
#include "weft/tests/support.h"

namespace weft::module_test {
using nn::Init;

namespace {

// One member of every kind that visit() can name.
struct Sample : nn::Module {
  nn::Linear in;
  std::vector<nn::Linear> list;
  std::optional<nn::LayerNorm> norm;
  nn::Child<nn::Linear> absent;
  nn::Linear tied;
  nn::Dropout drop;
  Tensor scale, counter, angles;

  Sample() : in(3, 4), tied(3, 4, {.bias = false}), drop(0.5) {
    list.emplace_back(4, 4);
    list.emplace_back(4, 4, nn::LinearOptions{.bias = false});
    norm.emplace(4);
    tied.weight = in.weight;
    scale = nn::make_parameter({4}, Init::constant(2));
    counter = Tensor::zeros({2}, DType::i64, nn::default_device());
    angles = Tensor::zeros({3}, DType::f32, nn::default_device());
    fill_tables();
  }
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("list", list);
    v("norm", norm);
    v("absent", absent);
    v("tied", tied);
    v("drop", drop);
    v("scale", nn::pinned(scale), Init::constant(2));
    v("counter", nn::buffer(counter));
    v("angles", nn::table(angles));
  }
  void fill_tables() override { angles.fill_(0.1); }
  std::string describe() const override { return "Sample"; }
};

std::string names(const NamedTensors& ts) {
  std::string out;
  for (const NamedTensor& t : ts) out += t.name + ' ';
  return out;
}

double mean_of(const Tensor& t) {
  double s = 0;
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  for (const double x : v) s += x;
  return s / static_cast<double>(v.size());
}

double max_abs(const Tensor& t) {
  double m = 0;
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  for (const double x : v) m = std::max(m, std::abs(x));
  return m;
}

std::unique_ptr<Sample> built_on_meta() {
  const nn::DeviceScope meta(kMeta);
  return std::make_unique<Sample>();
}

}  // namespace

TEST_CASE("module: parameters have dotted names and a tied one has its first") {
  const Sample m;
  CHECK(names(m.named_parameters()) ==
        "in.weight in.bias list.0.weight list.0.bias list.1.weight norm.weight norm.bias scale ");
  CHECK(names(m.buffers()) == "counter angles ");
  CHECK(m.parameters().size() == 8);
  CHECK(m.parameter_count() == 12 + 4 + 16 + 4 + 16 + 4 + 4 + 4);
  for (const Tensor& p : m.parameters()) CHECK(p.requires_grad());
}

TEST_CASE("module: it moves, and a plain copy throws") {
  static_assert(!std::is_copy_assignable_v<nn::Linear>);
  static_assert(std::is_nothrow_move_constructible_v<Sample>);  // else a vector would copy
  static_assert(std::is_nothrow_move_constructible_v<nn::Gpt>);
  Sample a;
  const Tensor w = a.in.weight;
  CHECK_THROWS_WITH_AS(Sample copy(a),
                       "module: a copy would share the parameters of Sample; copy it with "
                       "nn::clone() or move it with std::move(), and declare the move constructor "
                       "of a class with a destructor",
                       Error);
  const Sample b = std::move(a);
  CHECK(b.in.weight.same(w));
  CHECK(b.tied.weight.same(w));
}

TEST_CASE("module: parameters count as such in the allocator and draw from the running counter") {
  const auto live = [] {
    return memory_stats().live_by_category[static_cast<int>(Category::parameter)];
  };
  const std::int64_t before = live();
  manual_seed(5);
  const nn::Linear a(100, 50);
  CHECK(live() - before == size_class_bytes(100 * 50 * 4) + size_class_bytes(50 * 4));
  const nn::Linear b(100, 50);
  CHECK(test::different_bits(a.weight, b.weight) != "");
  manual_seed(5);
  const nn::Linear c(100, 50);
  CHECK(test::different_bits(a.weight, c.weight) == "");
  CHECK(max_abs(a.weight) <= 0.1);
  CHECK(max_abs(a.weight) > 0.09);
  CHECK(max_abs(a.bias) == 0);
}

TEST_CASE("module: to(dtype) replaces the memory of the same tensors") {
  Sample m;
  const Tensor handle = m.in.weight, scale = m.scale;
  const Tensor before = handle.detach().clone();
  handle.set_grad(Tensor::ones({4, 3}));
  m.to(DType::f64);
  CHECK(m.in.weight.same(handle));
  CHECK(m.tied.weight.same(handle));
  CHECK(handle.dtype() == DType::f64);
  CHECK(handle.requires_grad());
  CHECK(!handle.grad().defined());
  CHECK(test::mismatch(handle, before, 0) == "");
  CHECK(scale.dtype() == DType::f32);      // pinned
  CHECK(m.counter.dtype() == DType::i64);  // not floating
  CHECK(m.angles.dtype() == DType::f64);
  CHECK(m.angles.data<double>()[1] == 0.1);  // recomputed, not converted from f32
  m.to(DType::bf16);
  CHECK(handle.dtype() == DType::bf16);
  CHECK(m.angles.dtype() == DType::f32);  // tables keep their precision
  CHECK(test::error_of([&] { m.to(DType::i32); }) ==
        "to: a module computes in f32, f64, bf16 or f16, got i32");
}

TEST_CASE("module: training mode reaches every child") {
  Sample m;
  CHECK(m.drop.is_training());
  m.eval();
  CHECK(!m.is_training());
  CHECK(!m.drop.is_training());
  CHECK(!m.list[1].is_training());
  m.train();
  CHECK(m.drop.is_training());
}

TEST_CASE("module: a frozen child gets no gradient and keeps its values") {
  Sample m;
  m.set_requires_grad(false);
  for (const Tensor& p : m.parameters()) CHECK(!p.requires_grad());
  m.in.set_requires_grad();
  CHECK(m.in.weight.requires_grad());
  CHECK(m.in.bias.requires_grad());
  CHECK(!m.scale.requires_grad());
}

TEST_CASE("module: zero_grad drops grad and zeroes main_grad") {
  Sample m;
  m.in.bias.set_grad(Tensor::ones({4}));
  const Tensor main = Tensor::ones({4});
  m.scale.set_main_grad(main);
  m.zero_grad();
  CHECK(!m.in.bias.grad().defined());
  CHECK(m.scale.main_grad().same(main));
  CHECK(max_abs(main) == 0);
}

TEST_CASE("module: clone has its own memory and the same ties, dtypes, modes and values") {
  Sample m;
  nn::assign_names(m);
  m.to(DType::f64);
  m.eval();
  m.counter.fill_(7);
  m.list[0].weight.set_requires_grad(false);
  manual_seed(1);
  const RandomKey next = next_random_key();
  manual_seed(1);
  const Sample c = nn::clone(m);
  CHECK(next_random_key().stream == next.stream);  // cloning draws no numbers
  const StateDict a = m.state_dict(), b = c.state_dict();
  CHECK(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    CHECK(test::different_bits(tensor, b.at(name)) == "");
    CHECK(tensor.storage() != b.at(name).storage());
  }
  CHECK(c.tied.weight.same(c.in.weight));
  CHECK(!c.in.weight.same(m.in.weight));
  CHECK(!c.list[0].weight.requires_grad());
  CHECK(c.in.weight.requires_grad());
  CHECK(!c.drop.is_training());
  CHECK(c.drop.stream() == m.drop.stream());
  CHECK(test::different_bits(c.angles, m.angles) == "");
}

TEST_CASE("module: clone keeps a tie that the constructor does not make") {
  Sample m;
  m.list[1].weight = m.list[0].weight;
  const Sample c = nn::clone(m);
  CHECK(c.list[1].weight.same(c.list[0].weight));
}

TEST_CASE("module: the printed tree shows names, shapes, counts and ties") {
  Sample m;
  std::ostringstream out;
  out << m;
  CHECK(out.str() ==
        "Sample  64 parameters\n"
        "  in: Linear(3 -> 4)  16 parameters\n"
        "    weight [4, 3] f32\n"
        "    bias [4] f32\n"
        "  list.0: Linear(4 -> 4)  20 parameters\n"
        "    weight [4, 4] f32\n"
        "    bias [4] f32\n"
        "  list.1: Linear(4 -> 4, no bias)  16 parameters\n"
        "    weight [4, 4] f32\n"
        "  norm: LayerNorm(4)  8 parameters\n"
        "    weight [4] f32\n"
        "    bias [4] f32\n"
        "  tied: Linear(3 -> 4, no bias)  12 parameters\n"
        "    weight [4, 3] f32, the same as in.weight\n"
        "  drop: Dropout(0.5)\n"
        "  scale [4] f32\n"
        "  counter [2] i64 (buffer)\n"
        "  angles [3] f32 (buffer)\n");
}

TEST_CASE("init: a parameter without a rule is refused, and keeps its values") {
  struct NoRule : nn::Module {
    Tensor scale = nn::make_parameter({2}, Init::constant(3));
    void visit(nn::Visitor& v) override { v("scale", scale); }
  };
  NoRule m;
  CHECK(test::error_of([&] { nn::init(m, 1); }) ==
        "init: visit() must give the rule of each parameter, v(name, tensor, Init), got none for "
        "scale");
  CHECK(m.scale.select(0, 1).item() == 3);
}

TEST_CASE("init: values depend on seed and dotted name, not on the order of construction") {
  Sample a, b;
  nn::init(a, 3);
  nn::init(b, 3);
  CHECK(test::different_bits(a.list[0].weight, b.list[0].weight) == "");
  CHECK(test::different_bits(a.list[0].weight, a.list[1].weight) != "");
  nn::init(b, 4);
  CHECK(test::different_bits(a.list[0].weight, b.list[0].weight) != "");
  const Tensor want = Tensor::empty({4, 4});
  uniform_(want, {3, stream_of("list.1.weight"), 0}, -0.5, 0.5);
  CHECK(test::different_bits(a.list[1].weight, want) == "");
  CHECK(a.drop.stream() == stream_of("drop"));
}

TEST_CASE("init: rules give the promised moments") {
  const Tensor t = Tensor::empty({200, 500});
  const auto moments = [&](const Init& rule) {
    rule.fill(t, {1, 2, 0});
    const double mean = mean_of(t);
    return std::pair{mean, std::sqrt(mean_of(t.square()) - mean * mean)};
  };
  CHECK(moments(Init::constant(1.5)).first == 1.5);
  auto [mean, std] = moments(Init::normal(0.02, 1));
  CHECK(mean == doctest::Approx(1).epsilon(1e-3));
  CHECK(std == doctest::Approx(0.02).epsilon(0.02));
  CHECK(max_abs(t) > 1 + 3 * 0.02);
  std::tie(mean, std) = moments(Init::truncated_normal(0.5));
  CHECK(std == doctest::Approx(0.5 * 0.8796).epsilon(0.01));  // normal truncated at 2 sigma
  CHECK(max_abs(t) <= 1);
  std::tie(mean, std) = moments(Init::xavier_uniform(500, 200));
  CHECK(std::abs(mean) < 1e-3);
  CHECK(std == doctest::Approx(std::sqrt(2.0 / 700)).epsilon(0.01));
  std::tie(mean, std) = moments(Init::kaiming_uniform(500, std::sqrt(2.0)));
  CHECK(std == doctest::Approx(std::sqrt(2.0 / 500)).epsilon(0.01));
  CHECK(test::error_of([] { Init::kaiming_uniform(0); }) ==
        "kaiming_uniform: fan_in must be above 0, got 0");
  CHECK(test::error_of([] { Init::xavier_uniform(0, 0); }) ==
        "xavier_uniform: fan_in + fan_out must be above 0, got 0");
}

TEST_CASE("materialise: a model built on meta gets the values of one built in memory") {
  Sample built;
  nn::init(built, 9);
  const std::unique_ptr<Sample> late = built_on_meta();
  CHECK(nn::default_device() == kCpu);
  CHECK(late->in.weight.is_meta());
  const Tensor handle = late->in.weight;
  CHECK(test::error_of([&] { late->to(kCpu); }) ==
        "to: in.weight is on device meta and has no values to move; use materialise()");
  nn::materialise(*late, kCpu, 9);
  CHECK(late->in.weight.same(handle));
  CHECK(late->tied.weight.same(handle));
  const StateDict a = built.state_dict(), b = late->state_dict();
  CHECK(a.size() == 9);
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    CHECK(test::different_bits(tensor, b.at(name)) == "");
  }
  CHECK(test::different_bits(built.angles, late->angles) == "");
}

TEST_CASE("to_empty: a model built on meta gets memory and tables, and draws nothing") {
  Sample built;
  nn::init(built, 9);
  const std::unique_ptr<Sample> late = built_on_meta();
  {
    const test::PoisonedMemory nan;
    nn::to_empty(*late, kCpu);
  }
  for (const Tensor& p : late->parameters())
    for (const double value : test::values(p)) CHECK(std::isnan(value));
  CHECK(late->tied.weight.same(late->in.weight));
  CHECK(test::different_bits(late->counter, Tensor::zeros({2}, DType::i64)) == "");
  CHECK(test::different_bits(built.angles, late->angles) == "");
  late->load_state_dict(built.state_dict());
  for (const auto& [name, tensor] : built.state_dict())
    CHECK(test::different_bits(tensor, late->state_dict().at(name)) == "");
}

TEST_CASE("dropout module: active only in training and keyed by step and name") {
  struct Two : nn::Module {
    nn::Dropout a{0.5}, b{0.5};
    void visit(nn::Visitor& v) override {
      v("a", a);
      v("b", b);
    }
  } m;
  nn::assign_names(m);
  const Tensor x = Tensor::ones({4, 8, 32});
  const auto draw = [&](const nn::Dropout& d, std::uint64_t step, std::uint64_t row = 0) {
    const RandomScope scope({.seed = 1, .step = step, .first_global_row = row});
    return d(x);
  };
  CHECK(test::different_bits(draw(m.a, 1), draw(m.a, 1)) == "");
  CHECK(test::different_bits(draw(m.a, 1), draw(m.a, 2)) != "");
  CHECK(test::different_bits(draw(m.a, 1), draw(m.b, 1)) != "");
  // A rank that starts at global row 2 draws what one process draws for rows 2 and 3.
  CHECK(test::different_bits(draw(m.a, 1).narrow(0, 2, 2).contiguous(),
                             draw(m.a, 1, 2).narrow(0, 0, 2).contiguous()) == "");
  CHECK(mean_of(draw(m.a, 1)) == doctest::Approx(1).epsilon(0.1));
  CHECK(m.a(x).shape() == x.shape());  // without a scope: the running counter
  m.eval();
  CHECK(m.a(x).same(x));
  CHECK(nn::Dropout(0)(x).same(x));
  CHECK(test::values(nn::Dropout(1)(x)) == test::values(Tensor::zeros(x.shape())));
  CHECK(test::error_of([] { nn::Dropout d(1.5); }) == "dropout: p must be in [0, 1], got 1.5");
  CHECK(test::error_of([] { nn::Dropout d(-0.5); }) == "dropout: p must be in [0, 1], got -0.5");
}

TEST_CASE("layers: errors name the rule") {
  CHECK(test::error_of([] { nn::Linear l(0, 3); }) ==
        "linear: in and out must be at least 1, got 0 and 3");
  CHECK(test::error_of([] { nn::Embedding e(3, 0); }) ==
        "embedding: vocab and dim must be at least 1, got 3 and 0");
  CHECK(test::error_of([] { nn::LayerNorm n(0); }) == "norm: dim must be at least 1, got 0");
  CHECK(test::error_of([] { nn::RMSNorm n(2, -1); }) == "norm: eps must be at least 0, got -1");
}

TEST_CASE("module: gradients reach every parameter of a module that is used") {
  Sample m;
  Tape tape;
  Tensor y = (*m.norm)(m.list[1](m.list[0](m.in(Tensor::ones({2, 3}))))) * m.scale;
  y = y + m.tied(Tensor::ones({2, 3}));
  sum(y * test::random({2, 4}, 3, DType::f32)).backward();
  for (const NamedTensor& p : m.named_parameters()) {
    CAPTURE(p.name);
    CHECK(p.tensor.grad().defined());
  }
}

}  // namespace weft::module_test
