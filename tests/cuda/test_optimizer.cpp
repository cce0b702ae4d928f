#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::optimizer_test {
namespace {

using optim::AdamW;
using optim::AdamWOptions;
using optim::GradClip;
using optim::measure_clip;
using optim::Optimizer;
using optim::Sgd;
using optim::SgdOptions;
using test::for_each_order;
using test::kGpu;
using test::random;

// Odd sizes, zero elements, more than a chunk, and one that starts between two packs.
const Shape kOptimizerShapes[] = {{5, 3}, {1}, {0, 4}, {16'384 + 37}, {64}, {2, 2, 9}, {31}};

struct Side {
  NamedTensors parameters;
  std::unique_ptr<Optimizer> optimizer;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const NamedTensors&)>;

Side side(Device device, const std::vector<DType>& dtypes, const MakeOptimizer& make) {
  Side s;
  std::uint64_t seed = 0;
  for (const Shape& shape : kOptimizerShapes) {
    const DType t = dtypes[seed % dtypes.size()];
    Tensor p = random(shape, ++seed, t).to(device);
    if (shape.numel() == 31) {
      p = Tensor::zeros({32}, t, device).narrow(0, 1, 31);
      p.copy_(random(shape, seed, t).to(device));
    }
    s.parameters.push_back({"p" + std::to_string(seed), p.set_requires_grad()});
  }
  s.optimizer = make(s.parameters);
  return s;
}

// One step with gradients that depend only on the seed; the last parameter sometimes gets none.
GradClip step(const Side& s, std::uint64_t seed, double max_norm, DType narrow, double scale = 1) {
  for (const NamedTensor& p : s.parameters) {
    const DType t = p.tensor.dtype() == DType::f64 ? DType::f64 : narrow;
    const bool none = seed % 5 == 4 && &p == &s.parameters.back();
    Tensor g = random(p.tensor.shape(), ++seed * 100, DType::f64);
    g.mul_(scale);
    // So small beside the rest that a second moment in f16 would be 0.
    if (g.numel() > 4) g.view({-1}).narrow(0, 1, 1).mul_(1e-7);
    p.tensor.set_grad(none ? Tensor() : g.to(t).to(p.tensor.device()));
  }
  const GradClip clip = max_norm > 0 ? measure_clip(s.parameters, max_norm) : GradClip{};
  s.optimizer->step(clip);
  return clip;
}

// "" when the parameters and states of both have the same values within tol.
std::string differences(const Side& gpu, const Side& cpu, double tol) {
  for (std::size_t i = 0; i < cpu.parameters.size(); ++i) {
    const NamedTensor& want = cpu.parameters[i];
    const std::string d =
        test::mismatch(gpu.parameters[i].tensor.detach().to(kCpu), want.tensor.detach(), tol);
    if (!d.empty()) return want.name + ": " + d;
  }
  const auto got = gpu.optimizer->state_dict();
  for (const auto& [name, want] : cpu.optimizer->state_dict())
    if (const std::string d = test::mismatch(got.at(name).to(kCpu), want, tol); !d.empty())
      return name + ": " + d;
  return "";
}

MakeOptimizer adam(const AdamWOptions& o) {
  return [o](const NamedTensors& p) { return std::make_unique<AdamW>(p, o); };
}
MakeOptimizer sgd(const SgdOptions& o) {
  return [o](const NamedTensors& p) { return std::make_unique<Sgd>(p, o); };
}

}  // namespace

TEST_CASE("optimizer: AdamW on a GPU gives the CPU's bits") {
  for (const auto& dtypes : {std::vector{DType::f32}, std::vector{DType::f64},
                             std::vector{DType::f32, DType::f64, DType::bf16}})
    for (const bool decoupled : {true, false})
      for (const DType grad : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(decoupled);
        const auto make = adam({.lr = 1e-2,
                                .beta2 = 0.95,
                                .weight_decay = 0.1,
                                .decoupled = decoupled,
                                .groups = {{.pattern = "p2", .lr_scale = 0.5}}});
        const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
        for (std::uint64_t i = 1; i <= 3; ++i) {
          step(gpu, i, 0, grad);
          step(cpu, i, 0, grad);
        }
        CHECK(differences(gpu, cpu, 0) == "");
      }
}

TEST_CASE("optimizer: remainder master weights give the CPU's bits and norm") {
  const std::vector<DType> dtypes = {DType::bf16, DType::f32};
  constexpr auto kSplit = optim::MasterWeights::remainder;
  const MakeOptimizer makers[] = {
      adam({.lr = 1e-3, .weight_decay = 0.1, .master_weights = kSplit}),
      adam({.lr = 1e-3, .decoupled = false, .master_weights = kSplit}),
      adam({.beta2 = 0.95,
            .m_dtype = DType::bf16,
            .v_dtype = DType::bf16,
            .master_weights = kSplit}),
      adam({.beta2 = 0.95, .m_dtype = DType::f16, .v_dtype = DType::f16, .master_weights = kSplit}),
      sgd({.lr = 1e-2, .momentum = 0.9, .nesterov = true, .master_weights = kSplit}),
      sgd({.lr = 1e-2, .master_weights = kSplit})};
  for (const MakeOptimizer& make : makers) {
    const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
    for (std::uint64_t i = 1; i <= 3; ++i)
      for (const Side* s : {&gpu, &cpu}) step(*s, i, 0, i == 2 ? DType::bf16 : DType::f32);
    CHECK(differences(gpu, cpu, 0) == "");
    CHECK(test::mismatch(gpu.optimizer->parameter_norm().to(kCpu), cpu.optimizer->parameter_norm(),
                         1e-12) == "");
    // A norm that is not finite changes neither half; a loaded state continues.
    const StateDict before = cpu.optimizer->state_dict();
    for (const NamedTensor& p : gpu.parameters)
      p.tensor.set_grad(Tensor::full(p.tensor.shape(), NAN, DType::f32, kGpu));
    gpu.optimizer->step(measure_clip(gpu.parameters, 1));
    Side other = side(kGpu, dtypes, make);
    other.optimizer->load_state_dict(before);
    for (std::size_t i = 0; i < cpu.parameters.size(); ++i)
      if (cpu.parameters[i].tensor.dtype() == DType::f32)
        other.parameters[i].tensor.detach().copy_(cpu.parameters[i].tensor.detach().to(kGpu));
    CHECK(differences(other, cpu, 0) == "");
    gpu.optimizer->load_state_dict(before);  // the step count
    CHECK(differences(gpu, cpu, 0) == "");
  }
}

TEST_CASE("optimizer: remainders of ties and of NaN on a GPU") {
  const float numbers[] = {0x1.01p0f, -0x1.03p0f, 0x1.fffffep127f, NAN, -0.0f, 0x1p-149f};
  const Tensor p = Tensor::zeros({6}, DType::bf16, kGpu).set_requires_grad();
  AdamW opt({{"p", p}}, {.master_weights = optim::MasterWeights::remainder});
  StateDict state = opt.state_dict();
  const Tensor master = Tensor::from<float>(numbers, {6});
  state.at("p.master").copy_(master.to(kGpu));
  opt.load_state_dict(state);
  CHECK(test::different_bits(opt.value(0).to(kCpu), master, test::Nan::allowed) == "");
  const std::vector<double> half = test::values(p.detach().to(kCpu));
  CHECK(half[0] == 0x1.02p0);
  CHECK(half[1] == -0x1.04p0);
  CHECK(std::isinf(half[2]));
  CHECK(std::isnan(half[3]));
}

TEST_CASE("optimizer: AdamW follows the CPU over 50 steps with clipping") {
  const auto make = adam({.lr = 3e-3, .beta2 = 0.999, .weight_decay = 0.1});
  const Side gpu = side(kGpu, {DType::f32}, make), cpu = side(kCpu, {DType::f32}, make);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    const double scale = i % 7 == 0 ? 1e-4 : 1;  // some steps are not clipped
    const GradClip a = step(gpu, i, 1, DType::f32, scale), b = step(cpu, i, 1, DType::f32, scale);
    CHECK(test::mismatch(a.norm.to(kCpu), b.norm, 1e-12) == "");
    CHECK(test::mismatch(a.scale.to(kCpu), b.scale, 1e-12) == "");
    cpu.optimizer->set_lr(3e-3 / static_cast<double>(i));
    gpu.optimizer->set_lr(3e-3 / static_cast<double>(i));
  }
  CHECK(differences(gpu, cpu, 1e-6) == "");
}

TEST_CASE("optimizer: states in bf16 and f16 equal the CPU's") {
  for (const DType m : {DType::f32, DType::bf16, DType::f16})
    for (const DType v : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(std::string(name(m)));
      CAPTURE(std::string(name(v)));
      const auto make = adam({.beta2 = 0.95, .m_dtype = m, .v_dtype = v});
      for (const bool masters : {true, false}) {
        const auto dtypes =
            masters ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32};
        const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
        for (std::uint64_t i = 1; i <= 3; ++i) {
          step(gpu, i, 0, DType::f32);
          step(cpu, i, 0, DType::f32);
        }
        CHECK(differences(gpu, cpu, 0) == "");
      }
    }
}

TEST_CASE("optimizer: stochastic rounding and e4m3 states give the CPU's bits") {
  using optim::MasterWeights;
  using optim::Rounding;
  std::vector<MakeOptimizer> makers;
  for (const DType m : {DType::f32, DType::bf16, DType::f16, DType::e4m3})
    for (const DType v : {DType::bf16, DType::f16, DType::e4m3})
      for (const Rounding r : {Rounding::nearest, Rounding::stochastic})
        makers.push_back(adam({.beta2 = 0.95,
                               .m_dtype = m,
                               .v_dtype = v,
                               .rounding = r,
                               .seed = 3,
                               .master_weights = m == DType::bf16   ? MasterWeights::none
                                                 : m == DType::e4m3 ? MasterWeights::remainder
                                                                    : MasterWeights::f32}));
  makers.push_back(sgd({.lr = 1e-2,
                        .momentum = 0.9,
                        .master_weights = MasterWeights::none,
                        .rounding = Rounding::stochastic}));
  set_log_handler([](std::string_view) {});
  for (const MakeOptimizer& make : makers) {
    const std::vector<DType> dtypes = {DType::bf16, DType::f32, DType::f64};
    const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
    for (std::uint64_t i = 1; i <= 3; ++i)
      for (const Side* s : {&gpu, &cpu}) step(*s, i, 0, DType::f32);
    CHECK(differences(gpu, cpu, 0) == "");
  }
  set_log_handler(nullptr);
}

TEST_CASE("optimizer: every order of threads writes the same e4m3 blocks") {
  for_each_order([] {
    const auto make = adam({.m_dtype = DType::e4m3,
                            .v_dtype = DType::e4m3,
                            .rounding = optim::Rounding::stochastic,
                            .master_weights = optim::MasterWeights::none});
    const std::vector<DType> dtypes = {DType::bf16};
    const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
    for (std::uint64_t i = 1; i <= 2; ++i)
      for (const Side* s : {&gpu, &cpu}) step(*s, i, 0, DType::f32);
    CHECK(differences(gpu, cpu, 0) == "");
  });
}

TEST_CASE("optimizer: SGD on a GPU gives the CPU's bits") {
  for (const auto& dtypes : {std::vector{DType::f32}, std::vector{DType::f64},
                             std::vector{DType::f32, DType::f64, DType::bf16}})
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool masters : {false, true}) {
          if (nesterov && momentum == 0) continue;
          const auto make = sgd(
              {.lr = 0.1,
               .momentum = momentum,
               .nesterov = nesterov,
               .weight_decay = 0.01,
               .master_weights = masters ? optim::MasterWeights::f32 : optim::MasterWeights::none});
          const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
          for (std::uint64_t i = 1; i <= 3; ++i)
            for (const Side* s : {&gpu, &cpu}) step(*s, i, 0, masters ? DType::bf16 : DType::f32);
          CHECK(differences(gpu, cpu, 0) == "");
        }
}

TEST_CASE("optimizer: every order of threads and gradients of every dtype in one norm") {
  for_each_order([] {
    const auto make = adam({.m_dtype = DType::f16, .v_dtype = DType::f16});
    const std::vector<DType> dtypes = {DType::f32, DType::f64, DType::bf16};
    const Side gpu = side(kGpu, dtypes, make), cpu = side(kCpu, dtypes, make);
    const GradClip a = step(gpu, 1, 0.5, DType::bf16), b = step(cpu, 1, 0.5, DType::bf16);
    CHECK(test::mismatch(a.norm.to(kCpu), b.norm, 1e-12) == "");
    CHECK(differences(gpu, cpu, 1e-6) == "");
    const auto plain = sgd({.momentum = 0.9});
    const Side other = side(kGpu, dtypes, plain), want = side(kCpu, dtypes, plain);
    for (const Side* s : {&other, &want}) step(*s, 1, 0, DType::f32);
    CHECK(differences(other, want, 0) == "");
  });
}

TEST_CASE("optimizer: a loss that is not finite leaves everything unchanged") {
  const Side gpu = side(kGpu, {DType::f32}, adam({}));
  step(gpu, 1, 1, DType::f32);
  const std::int64_t waits = cuda::host_syncs();
  const GradClip clip = measure_clip(gpu.parameters, 1);
  const Tensor before = clone(gpu.parameters[0].tensor.detach());
  const Tensor loss = Tensor::full({}, std::numeric_limits<double>::infinity(), DType::f32, kGpu);
  optim::require_finite(clip, loss);
  gpu.optimizer->step(clip);
  CHECK(cuda::host_syncs() == waits);
  CHECK(std::isfinite(clip.norm.item()));
  CHECK(test::different_bits(gpu.parameters[0].tensor.detach().to(kCpu), before.to(kCpu)) == "");
  gpu.optimizer->step(measure_clip(gpu.parameters, 1));
  CHECK(test::different_bits(gpu.parameters[0].tensor.detach().to(kCpu), before.to(kCpu)) != "");
}

TEST_CASE("optimizer: a norm that is not finite leaves everything unchanged") {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (const MakeOptimizer& make :
         {adam({}), adam({.m_dtype = DType::f16, .v_dtype = DType::f16}), sgd({.momentum = 0.9})}) {
      const Side gpu = side(kGpu, {DType::f32, DType::f64}, make);
      const Side cpu = side(kCpu, {DType::f32, DType::f64}, make);
      for (const Side* s : {&gpu, &cpu}) {
        step(*s, 1, 1, DType::f32);
        for (const NamedTensor& p : s->parameters) p.tensor.set_grad({});
        const Tensor& one = s->parameters[1].tensor;
        one.set_grad(Tensor::full(one.shape(), bad, one.dtype(), one.device()));
        const GradClip clip = measure_clip(s->parameters, 1);
        CHECK(std::isnan(clip.scale.item()));
        s->optimizer->step(clip);
      }
      for (std::size_t i = 0; i < cpu.parameters.size(); ++i)
        CHECK(test::mismatch(gpu.parameters[i].tensor.detach().to(kCpu),
                             cpu.parameters[i].tensor.detach(), 1e-6) == "");
      // The host does not read the scale, so it has counted the step.
      CHECK(gpu.optimizer->steps() == 2);
      CHECK(cpu.optimizer->steps() == 1);
    }
}

TEST_CASE("optimizer: a step on a GPU never makes the host wait") {
  for (const MakeOptimizer& make :
       {adam({}), adam({.m_dtype = DType::f16, .v_dtype = DType::f16}),
        adam({.master_weights = optim::MasterWeights::remainder}), sgd({.momentum = 0.9})}) {
    const Side s = side(kGpu, {DType::f32, DType::f64, DType::bf16}, make);
    for (const NamedTensor& p : s.parameters)
      p.tensor.set_grad(Tensor::ones(p.tensor.shape(), p.tensor.dtype(), kGpu));
    const std::int64_t before = cuda::host_syncs();
    for (int i = 0; i < 3; ++i) s.optimizer->step(measure_clip(s.parameters, 1));
    s.optimizer->zero_grad();
    CHECK(cuda::host_syncs() == before);
  }
}

}  // namespace weft::optimizer_test
