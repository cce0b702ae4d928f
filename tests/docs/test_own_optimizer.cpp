// The code of docs/own_optimizer.md.
#include <doctest/doctest.h>

#include <cmath>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::own_optimizer_test {
namespace {

struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  std::vector<optim::GroupRule> groups = {};
};

/// p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p);  m = beta2 m + (1 - beta2) g
/// Source: Chen et al. 2023, arXiv:2302.06675.
class Lion : public optim::Optimizer {
 public:
  explicit Lion(NamedTensors parameters, const LionOptions& options = {})
      : Optimizer(std::move(parameters), options.groups, options.lr, options.weight_decay, {}),
        options_(options),
        m_(add_state("m", DType::f32)) {
    add_masters(optim::MasterWeights::f32);
  }

 private:
  void update(const double* grad_scale, std::size_t begin, std::size_t end) override {
    const double scale = grad_scale ? *grad_scale : 1;
    for (std::size_t i = begin; i < end; ++i) {
      ParamSlot slot;
      if (!fill_slot(i, slot) || slot.n == 0) continue;
      check(slot.param_dtype == DType::f32 && slot.copy_dtype == DType::bf16 &&
                parameters_[i].tensor.device().is_cpu(),
            "lion: {} must be f32 or bf16 on cpu, got {} on {}", parameters_[i].name,
            slot.param_dtype, parameters_[i].tensor.device());
      float* const m = states_[m_].tensors[i].data<float>();
      dispatch_floating(slot.grad_dtype, [&]<class G>() { lion<G>(slot, m, scale); });
    }
  }

  template <class G>
  void lion(const ParamSlot& slot, float* m, double scale) const {
    const auto p = static_cast<float*>(slot.param);
    const auto g = static_cast<const G*>(slot.grad);
    const auto rounded = static_cast<bf16*>(slot.half_copy);
    const auto b1 = static_cast<float>(options_.beta1), b2 = static_cast<float>(options_.beta2);
    const auto lr = static_cast<float>(lr_ * slot.lr_scale);
    const auto decay = static_cast<float>(slot.weight_decay), by = static_cast<float>(scale);
    parallel_for(slot.n, 8, [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const float grad = by * static_cast<float>(g[i]), c = b1 * m[i] + (1 - b1) * grad;
        p[i] -= lr * (float((c > 0) - (c < 0)) + decay * p[i]);
        m[i] = b2 * m[i] + (1 - b2) * grad;
        if (rounded) rounded[i] = bf16(p[i]);
      }
    });
  }

  LionOptions options_;
  std::size_t m_;  // index in states_
};

// One step towards smaller |x|^2 / 2, whose gradient is x.
template <class Optimizer>
optim::StepResult descend(const Tensor& x, Optimizer& optimizer, double limit = 0) {
  Tape tape;
  (x.square().sum() / 2).backward();
  const optim::StepResult result =
      optimizer.step(optim::measure_clip(optimizer.parameters(), limit));
  optimizer.zero_grad();
  return result;
}

}  // namespace

TEST_CASE("own optimizer: two steps by hand") {
  const Tensor x = Tensor::of({1, -2, 0}, {3}).set_requires_grad();
  Lion lion({{"x", x}}, {.lr = 0.5, .beta1 = 0.5, .beta2 = 0.75});
  descend(x, lion);
  CHECK(test::values(x) == std::vector<double>{0.5, -1.5, 0});
  CHECK(test::values(lion.state_dict()["x.m"]) == std::vector<double>{0.25, -0.5, 0});
  descend(x, lion);
  CHECK(test::values(x) == std::vector<double>{0, -1, 0});
}

TEST_CASE("own optimizer: decay, groups, clipping, a step that is skipped") {
  const Tensor w = Tensor::ones({2, 2}).set_requires_grad();
  const Tensor bias = Tensor::ones({2}).set_requires_grad();
  Lion lion({{"w", w}, {"bias", bias}}, {.lr = 0.25, .weight_decay = 1});
  w.set_grad(zeros_like(w));
  bias.set_grad(zeros_like(bias));
  lion.step();
  CHECK(test::values(w) == std::vector<double>{0.75, 0.75, 0.75, 0.75});
  CHECK(test::values(bias) == std::vector<double>{1, 1});

  const Tensor x = Tensor::of({3, 4}, {2}).set_requires_grad();
  Lion clipped({{"x", x}}, {.lr = 0, .beta2 = 0});
  descend(x, clipped, 1);  // of norm 5, so m gets a fifth
  CHECK(test::mismatch(clipped.state_dict()["x.m"], Tensor::of({0.6, 0.8}, {2}), 1e-6) == "");

  x.set_grad(Tensor::full({2}, NAN));
  CHECK(clipped.step(optim::measure_clip(clipped.parameters(), 1)).skipped);
  CHECK(clipped.steps() == 1);
}

TEST_CASE("own optimizer: resumes, and keeps f32 master weights of bf16") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = Tensor::full({4}, 8, dtype).set_requires_grad();
    const Tensor y = Tensor::empty({4}, dtype).set_requires_grad();
    Lion first({{"x", x}}, {.lr = 1e-3});
    for (int i = 0; i < 20; ++i) descend(x, first);
    CHECK(test::mismatch(first.value(0), Tensor::full({4}, 7.98), 1e-5) == "");

    y.copy_(x.detach());
    Lion second({{"x", y}}, {.lr = 1e-3});
    second.load_state_dict(first.state_dict());
    descend(x, first);
    descend(y, second);
    CHECK(test::mismatch(second.value(0), first.value(0), 0) == "");
  }
}

TEST_CASE("own optimizer: what it refuses") {
  const Tensor x = Tensor::ones({2}, DType::f64).set_requires_grad();
  Lion lion({{"x", x}});
  CHECK(test::error_of([&] { descend(x, lion); }) ==
        "lion: x must be f32 or bf16 on cpu, got f64 on cpu");
}

}  // namespace weft::own_optimizer_test
