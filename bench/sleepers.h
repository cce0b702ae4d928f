#pragma once
#include <chrono>
#include <thread>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/distributed/world.h"
#include "weft/nn/module.h"
#include "weft/nn/shard.h"

/// What benchmarks of data-parallel steps share.
namespace weft::bench {

struct StepCost {
  double step_s = 0, waiting_s = 0;  ///< medians over the steps of rank 0
};

/// What run(world) returns on rank 0 of ranks that are threads.
template <class Run>
StepCost on_ranks(int ranks, const distributed::SimulatedLink& link, Run run) {
  StepCost cost;
  distributed::run_ranks(ranks,
                         [&](distributed::World& w) {
                           const StepCost c = run(w);
                           if (w.rank() == 0) cost = c;
                         },
                         {.link = link});
  return cost;
}

/// Layers that take as long as a GPU's would, without using the processor, to show the order of
/// events alone.
struct Sleepers : nn::Module {
  struct Layer : nn::Module {
    Tensor weight = nn::make_parameter({1 << 14}, nn::Init::constant(1));
    void visit(nn::Visitor& v) override { v("weight", weight); }
  };
  std::vector<Layer> layers;
  static constexpr double kForward = 6e-3;  ///< seconds; backward takes twice as long

  explicit Sleepers(int depth) : layers(static_cast<std::size_t>(depth)) {}
  void visit(nn::Visitor& v) override { v("layers", layers); }
  unsigned shard_members() const override { return nn::Shard::kBeforeUse; }

  static void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  Tensor operator()() const {
    Tensor x = Tensor::zeros({});
    for (const Layer& layer : layers) {
      if (shard) shard->before_use(layer);
      sleep(kForward);
      const Tensor y = x.clone();
      Tape::record("sleeper", {&layer.weight, &x}, {&y}, [](Backward& b) {
        sleep(2 * kForward);
        b.add(0, Tensor::ones({1 << 14}));
        b.add(1, b.dy());
      });
      x = y;
    }
    return x;
  }
};

}  // namespace weft::bench
