// The order in which copies and kernels are given to the streams of an emulated GPU when states of
// an optimizer or saved tensors wait in pinned memory, and the memory that this takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "weft/autograd/offload.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/cuda/emu/control.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/optim/state_memory.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::offload_traffic_test {
namespace {

using emu::Command;
using test::kGpu;

// Each parameter is a group of its own: two states of more than 8 MiB.
constexpr std::int64_t kCount = 6, kNumbers = 1'100'000, kState = 8 * kNumbers;

struct Training {
  Training() {
    for (std::int64_t i = 0; i < kCount; ++i) {
      Tensor p = Tensor::ones({kNumbers}, DType::f64, kGpu);
      p.set_requires_grad();
      p.set_main_grad(Tensor::ones({kNumbers}, DType::f64, kGpu));
      p.set_main_grad_filled(true);
      parameters.push_back({message("p{}", i), p});
    }
  }
  NamedTensors parameters;
};

// When a GPU would end this work on which a byte takes a unit of time on its direction of the bus,
// and a kernel `kernel` of them.
double end_of(const std::vector<Command>& commands, double kernel) {
  std::map<const void*, double> streams, events;
  double last = 0;
  for (const Command& c : commands) {
    double& now = streams[c.stream];
    if (c.kind == Command::Kind::kernel) now += kernel;
    if (c.kind == Command::Kind::copy_in || c.kind == Command::Kind::copy_out)
      now += static_cast<double>(c.bytes);
    if (c.kind == Command::Kind::record) events[c.event] = now;
    if (c.kind == Command::Kind::wait) now = std::max(now, events[c.event]);
    last = std::max(last, now);
  }
  return last;
}

std::int64_t used() {
  std::int64_t free = 0, total = 0;
  cuda::rt::memory_info(free, total);
  return total - free;
}

}  // namespace

TEST_CASE(
    "offload traffic: a group arrives, the one before is updated and a third leaves at once") {
  const Training t;
  OffloadMemory memory(kGpu, "");
  const optim::StateMemory outside(memory);
  optim::AdamW adam(t.parameters, {});
  cuda::synchronize();
  std::vector<Command> commands;
  emu::control.commands = &commands;
  adam.step();
  emu::control.commands = nullptr;
  cuda::synchronize();
  double kernels = 0, in = 0, out = 0;
  for (const Command& c : commands) {
    kernels += c.kind == Command::Kind::kernel;
    in += c.kind == Command::Kind::copy_in ? static_cast<double>(c.bytes) : 0;
    out += c.kind == Command::Kind::copy_out ? static_cast<double>(c.bytes) : 0;
  }
  constexpr double kGroup = 2 * kState, kAll = kCount * kGroup;
  CHECK(out == kAll);
  CHECK(in < 1.001 * kAll);  // and the tables of the kernels
  REQUIRE(kernels >= kCount);
  // Each of the three takes as long as the others: the first group arrives before there is anything
  // to update, and the last leaves after.
  CHECK(end_of(commands, kAll / kernels) < kAll + 2.1 * kGroup);
}

TEST_CASE("offload traffic: a host far ahead of the GPU takes memory for three groups") {
  const Training t;
  cuda::synchronize();
  release_cached_memory(kGpu);
  const std::int64_t before = used();
  OffloadMemory memory(kGpu, "");
  const optim::StateMemory outside(memory);
  optim::AdamW adam(t.parameters, {});
  CHECK(used() - before < 3 * size_class_bytes(kState));  // while they are made
  for (int step = 0; step < 2; ++step) {
    adam.step();  // nothing has run yet
    CHECK(used() - before < 7 * size_class_bytes(kState));
    cuda::synchronize();
  }
}

TEST_CASE("offload traffic: backward first waits for the one tensor that it reads") {
  const nn::DeviceScope place(kGpu, DType::f32);
  nn::Gpt model({.layers = 3, .heads = 2, .dim = 16, .seq = 8, .vocab = 11});
  nn::init(model, 3);
  const Tensor ids = test::random({2, 8}, 4, DType::i32).to(kGpu);
  Offload offload(OffloadOptions{.least_bytes = 512}, kGpu);
  const Offload::Use use(offload);
  const Tape tape;
  const Tensor loss = model.losses(ids, ids).total();
  cuda::synchronize();
  std::vector<Command> commands;
  emu::control.commands = &commands;
  loss.backward();
  emu::control.commands = nullptr;
  cuda::synchronize();
  const void* const here = cuda::Stream::current(kGpu).handle();
  std::map<const void*, int> copies, copies_before;  // by stream, and by event of such a stream
  int waits = 0, first = 0;
  for (const Command& c : commands) {
    if (c.kind == Command::Kind::copy_in && c.stream != here) ++copies[c.stream];
    if (c.kind == Command::Kind::record && c.stream != here)
      copies_before[c.event] = copies[c.stream];
    if (c.kind != Command::Kind::wait || c.stream != here) continue;
    if (waits++ == 0) first = copies_before.at(c.event);
  }
  CHECK(waits > 6);
  CHECK(first == 1);
}

}  // namespace weft::offload_traffic_test
