// Optimizer states that wait in pinned memory of the host between updates.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/optim/adamw.h"
#include "weft/optim/state_memory.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::gpu_state_offload_test {
namespace {

using optim::AdamW;
using optim::AdamWOptions;
using optim::MasterWeights;
using test::different_bits;
using test::kGpu;

constexpr Device kPlan{Device::Kind::meta_cuda, 0};

constexpr std::int64_t kLarge = 700'000;

// Drawn once, which takes most of the time.
Tensor numbers(std::int64_t n) {
  static const Tensor all = test::random({kLarge}, 3, DType::f32);
  return all.narrow(0, 0, n);
}

// More than a group of states, small ones, and none.
struct Training {
  Training(DType dtype, const AdamWOptions& options, Device device, bool away, int large = 3) {
    std::vector<std::int64_t> sizes{5, 0};
    sizes.insert(sizes.begin(), static_cast<std::size_t>(large), kLarge);
    for (const std::int64_t n : sizes) {
      Tensor p = Tensor::zeros({n}, dtype, device);
      if (!device.is_meta()) p.copy_(numbers(n));
      p.set_requires_grad();
      p.set_main_grad(Tensor::zeros({n}, DType::f32, device));
      parameters.push_back({"p" + std::to_string(parameters.size()), p});
    }
    before = memory_stats(device).live_bytes;
    std::optional<optim::StateMemory> outside;
    if (away) outside.emplace(memory.emplace(device, ""));
    adam = std::make_unique<AdamW>(parameters, options);
  }

  void step(std::uint64_t n) {
    for (const NamedTensor& p : parameters) {
      if (!p.tensor.is_meta())
        p.tensor.main_grad().copy_(numbers(p.tensor.numel())).mul_(static_cast<double>(n));
      p.tensor.set_main_grad_filled(true);
    }
    reset_peak(p0().device());
    adam->step();
    peak = memory_stats(p0().device()).peak_bytes - before;
  }
  const Tensor& p0() const { return parameters[0].tensor; }
  std::int64_t live() const { return memory_stats(p0().device()).live_bytes - before; }

  NamedTensors parameters;
  std::optional<OffloadMemory> memory;
  std::unique_ptr<AdamW> adam;
  std::int64_t before = 0, peak = 0;
};

}  // namespace

TEST_CASE("gpu state offload: the same bits, and a group at a time on the GPU") {
  struct Case {
    DType dtype;
    AdamWOptions options;
  };
  const Case cases[] = {{DType::bf16, {}},
                        {DType::f16, {.m_dtype = DType::f16, .v_dtype = DType::f16}}};
  for (const Case& c : cases) {
    CAPTURE(std::string(name(c.dtype)));
    Training plain(c.dtype, c.options, kGpu, false), away(c.dtype, c.options, kGpu, true),
        planned(c.dtype, c.options, kPlan, true);
    const std::int64_t states = away.memory->moved_bytes();  // out at creation
    CHECK(states > 3 * kLarge * 2 * static_cast<std::int64_t>(size_of(c.options.m_dtype)));
    for (std::uint64_t n = 1; n < 4; ++n) {
      for (Training* t : {&plain, &away, &planned}) t->step(n);
      CHECK(away.peak == planned.peak);
      CHECK(away.live() == planned.live());
      CHECK(away.memory->moved_bytes() == planned.memory->moved_bytes());
    }
    CHECK(away.memory->moved_bytes() == (1 + 2 * 3) * states);  // a step: back and out
    const auto same = [&] {
      for (std::size_t i = 0; i < plain.parameters.size(); ++i)
        CHECK(different_bits(away.parameters[i].tensor.to(kCpu),
                             plain.parameters[i].tensor.to(kCpu)) == "");
      const StateDict want = plain.adam->state_dict(), got = away.adam->state_dict();
      for (const auto& [name, t] : want) CHECK(different_bits(got.at(name), t) == "");
      // One master weight at a time, so in another order.
      CHECK(std::abs(away.adam->parameter_norm().item() / plain.adam->parameter_norm().item() - 1) <
            1e-12);
    };
    same();
    const std::int64_t here = away.live();
    away.adam->parameter_norm();
    away.adam->state_dict();
    CHECK(away.live() == here);  // and all are outside again
    // A loaded state, and a parameter that was written.
    const StateDict saved = plain.adam->state_dict();
    for (Training* t : {&plain, &away}) {
      t->adam->load_state_dict(saved);
      t->parameters[0].tensor.fill_(0.25);
      t->step(9);
    }
    same();
  }
}

TEST_CASE("gpu state offload: an error between groups leaves every state as it is") {
  Training plain(DType::bf16, {}, kGpu, false), away(DType::bf16, {}, kGpu, true);
  const auto same = [&] {
    const StateDict want = plain.adam->state_dict(), got = away.adam->state_dict();
    for (const auto& [name, t] : want) CHECK(different_bits(got.at(name), t) == "");
  };
  const std::vector<std::size_t> ends{2, 5};  // the first group, which leaves, and the second
  for (Training* t : {&plain, &away}) {
    t->step(1);
    CHECK(test::error_of([&] {
            t->adam->step({}, ends, [](std::size_t) { throw Error("between"); });
          }) == "between");
  }
  same();
  for (Training* t : {&plain, &away}) t->step(2);
  same();
  CHECK(away.live() == 0);  // and all are outside again
}

TEST_CASE("gpu state offload: a capture is refused, and the states stay") {
  Training plain(DType::bf16, {}, kGpu, false), away(DType::bf16, {}, kGpu, true);
  for (Training* t : {&plain, &away}) t->step(1);
  {
    cuda::Graph graph;
    CHECK(test::error_of([&] { graph.capture([&] { away.adam->step(); }); }) ==
          "graph: an event cannot be recorded inside a capture; record it after replay()");
  }
  for (Training* t : {&plain, &away}) t->step(2);
  const StateDict want = plain.adam->state_dict(), got = away.adam->state_dict();
  for (const auto& [name, t] : want) CHECK(different_bits(got.at(name), t) == "");
}

TEST_CASE("gpu state offload: three groups are on the GPU at once") {
  for (const auto form : {MasterWeights::f32, MasterWeights::remainder}) {
    Training t(DType::bf16, {.master_weights = form}, kPlan, true, 12);
    t.step(1);
    t.step(2);
    // 16 MiB, and the tensor that goes beyond.
    const std::int64_t group = (16 << 20) + 12 * kLarge;
    CHECK(t.peak < 3 * group);
    CHECK(t.peak > 2 * group);
    CHECK(t.memory->moved_bytes() / 5 > 3 * group);
  }
}

}  // namespace weft::gpu_state_offload_test
