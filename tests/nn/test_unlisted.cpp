#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <optional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/nn/child.h"
#include "weft/nn/linear.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"

namespace weft::unlisted_test {
using nn::Init;

namespace {

Tensor parameter(const Shape& shape) { return nn::make_parameter(shape, Init::constant(1)); }

// `Listed` says which of the members visit() names.
enum class Listed { both, first, second };

struct TwoTensors : nn::Module {
  Tensor up = parameter({2, 3}), down = parameter({3, 4});
  Listed listed;
  explicit TwoTensors(Listed l) : listed(l) {}
  void visit(nn::Visitor& v) override {
    if (listed != Listed::second) v("up", up);
    if (listed != Listed::first) v("down", down);
  }
  std::string describe() const override { return "TwoTensors"; }
};

template <class Member>
struct Holder : nn::Module {
  nn::Linear first{2, 2};
  Member last;
  bool lists_last = false;
  explicit Holder(Member m) : last(std::move(m)) {}
  void visit(nn::Visitor& v) override {
    v("first", first);
    if constexpr (requires { v("last", last); })
      if (lists_last) v("last", last);
  }
};

template <class M>
std::string problem(const M& module) {
  try {
    const optim::Sgd sgd(module);
    const optim::AdamW adamw(module);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE(
    "unlisted: a tensor member that visit() omits is found when an optimizer takes the module") {
  CHECK(problem(TwoTensors(Listed::both)) == "");
  CHECK(problem(TwoTensors(Listed::first)) ==
        "visit: every parameter of TwoTensors must be listed, but one of shape [3, 4] is not; add "
        "it to visit()");
  CHECK(problem(TwoTensors(Listed::second)) ==
        "visit: every parameter of TwoTensors must be listed, but one of shape [2, 3] is not; add "
        "it to visit()");
}

TEST_CASE("unlisted: so is a child module, wherever the compiler knows where it is") {
  const std::string omitted = "must be listed, but one of shape [4, 3] is not";
  const auto linear = [] { return nn::Linear(3, 4, {.bias = false}); };
  const auto finds = [&](const auto& module) {
    return problem(module).find(omitted) != std::string::npos;
  };
  CHECK(finds(Holder<nn::Linear>(linear())));
  CHECK(finds(Holder<std::optional<nn::Linear>>(linear())));
  CHECK(finds(Holder<std::array<nn::Linear, 1>>({linear()})));
  Holder<nn::Linear> listed(linear());
  listed.lists_last = true;
  CHECK(problem(listed) == "");
}

TEST_CASE("unlisted: a module below the optimizer's is named by its path") {
  Holder<std::vector<TwoTensors>> blocks({});
  blocks.last.emplace_back(Listed::both);
  blocks.last.emplace_back(Listed::first);
  blocks.lists_last = true;
  CHECK(problem(blocks) ==
        "visit: every parameter of last.1, a TwoTensors must be listed, but one of shape [3, 4] is "
        "not; add it to visit()");
  Holder<nn::Child<nn::Module>> child(TwoTensors(Listed::second));
  child.lists_last = true;
  CHECK(problem(child).find("parameter of last, a TwoTensors must") != std::string::npos);
  Holder<std::unique_ptr<TwoTensors>> pointer(std::make_unique<TwoTensors>(Listed::first));
  pointer.lists_last = true;
  CHECK(problem(pointer).find("parameter of last, a TwoTensors must") != std::string::npos);
}

TEST_CASE("unlisted: legal programs are left alone") {
  // A frozen member; one that requires a gradient but is no parameter of nn.
  TwoTensors frozen(Listed::first);
  frozen.down.set_requires_grad(false);
  CHECK(problem(frozen) == "");
  Holder<Tensor> input(Tensor::ones({2}).set_requires_grad());
  CHECK(problem(input) == "");
  // The generator gets gradients and its optimizer comes later.
  nn::Linear generator(2, 3), critic(3, 1);
  {
    optim::Sgd sgd(critic, {.lr = 0.1});
    Tape tape;
    sum(critic(generator(Tensor::ones({1, 2})))).backward();
    sgd.step();
    CHECK(generator.weight.grad().defined());
  }
  CHECK(problem(generator) == "");
  // Only the head, or both halves one after the other.
  struct Net : nn::Module {
    nn::Linear body{2, 3}, head{3, 1};
    void visit(nn::Visitor& v) override {
      v("body", body);
      v("head", head);
    }
  } net;
  CHECK(problem(net.head) == "");
  CHECK(problem(net.body) == "");
  // A handle to a parameter that another module lists.
  Holder<Tensor> shares(net.body.weight);
  CHECK(problem(shares) == "");
  // A module that replaced its parameter, and one that moved.
  Holder<nn::Linear> replaced(nn::Linear(2, 2));
  replaced.lists_last = true;
  replaced.last = nn::Linear(2, 5);
  CHECK(problem(replaced) == "");
  const Holder<nn::Linear> moved = std::move(replaced);
  CHECK(problem(moved) == "");
}

TEST_CASE("unlisted: an omitted parameter lives as long as its module") {
  const auto live = [] {
    return memory_stats().live_by_category[static_cast<int>(Category::parameter)];
  };
  const std::int64_t before = live();
  {
    const TwoTensors never_visited(Listed::both);
    const nn::Linear also_never(50, 50);
    CHECK(live() > before);
  }
  CHECK(live() == before);
}

TEST_CASE("unlisted: the parameters of a large model that was never visited end with it") {
  const auto live = [] {
    return memory_stats().live_by_category[static_cast<int>(Category::parameter)];
  };
  const std::int64_t before = live();
  {
    std::vector<nn::Linear> layers;
    for (int i = 0; i < 200; ++i) layers.emplace_back(3, 3);
    CHECK(live() - before >= 200 * 4 * (9 + 3));
  }
  CHECK(live() == before);
}

TEST_CASE("unlisted: parameters without a module do not pile up") {
  const auto live = [] {
    return memory_stats().live_by_category[static_cast<int>(Category::parameter)];
  };
  const std::int64_t before = live(), bytes = 4 * 1000;
  for (int i = 0; i < 1000; ++i) parameter({1000});
  CHECK(live() - before <= 16 * bytes);
  const nn::Linear any(2, 2);
  any.parameter_count();  // a visit releases the rest
  CHECK(live() - before < bytes);
}

TEST_CASE("unlisted: a member that was reset is no member") {
  struct Gated : nn::Module {
    nn::Linear first{2, 2};
    std::optional<Tensor> gate = parameter({2});
    void visit(nn::Visitor& v) override { v("first", first); }
  } gated;
  CHECK(problem(gated).find("one of shape [2] is not") != std::string::npos);
  gated.gate.reset();
  CHECK(problem(gated) == "");
}

TEST_CASE("unlisted: describe() may visit, and a module need not be the first base") {
  struct Counts : nn::Module {
    nn::Linear first{2, 2};
    void visit(nn::Visitor& v) override { v("first", first); }
    std::string describe() const override { return message("{} values", parameter_count()); }
  };
  const nn::Linear not_yet_visited(2, 2);
  CHECK(problem(Counts()) == "");
  struct Listener {
    std::array<void*, 8> first{};
    virtual ~Listener() = default;
  };
  struct Both : Listener, Counts {};
  const auto both = std::make_unique<Both>();  // AddressSanitizer sees what lies beyond
  CHECK(problem(*both) == "");
  struct Omits : Listener, nn::Module {
    Tensor omitted = parameter({7});
    void visit(nn::Visitor&) override {}
  };
  CHECK(problem(Omits()).find("[7]") != std::string::npos);
}

}  // namespace weft::unlisted_test
