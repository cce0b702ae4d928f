// Steps with sharded weights on two ranks that are threads of this process: how much of the gathers
// and reduce-scatters overlaps with compute over a slow link, and what a step costs without a link,
// compared with the sharded optimizer, which moves half of the bytes.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/gpt.h"

namespace weft::bench {
namespace {

using namespace distributed;
constexpr int kRanks = 2, kSteps = 5, kWarmSteps = 3, kPairs = 9;

struct Cost {
  double step_s = 0, waiting_s = 0;  ///< medians over the steps of rank 0
};

template <class Model, class Forward>
Cost train(World& w, const DdpOptions& options, Model& model, Forward forward) {
  const DeviceMesh mesh(w);
  const auto adam = make_optimizer(model, mesh, {}, optim::AdamWOptions{}, options);
  change_shard(model, [&](nn::Shard& s) {
    s.before_use = [&](const nn::Module& part) { adam->wait(part); };
  });
  std::vector<double> steps, waits;
  for (int step = -kWarmSteps; step < kSteps; ++step) {
    const CommStats before = w.stats();
    const double begin = now();
    adam->zero_grad();
    Tape tape;
    const Tensor loss = forward();
    adam->watch(tape);
    loss.backward();
    adam->step(adam->finish(1));
    if (step < 0) continue;
    steps.push_back(now() - begin);
    waits.push_back(w.stats().waiting_s - before.waiting_s);
  }
  return {median(steps), median(waits)};
}

template <class Run>
Cost on_ranks(const SimulatedLink& link, Run run) {
  Cost cost;
  run_ranks(kRanks,
            [&](World& w) {
              const Cost c = run(w);
              if (w.rank() == 0) cost = c;
            },
            {.link = link});
  return cost;
}

/// Layers that take as long as a GPU's would, without using the processor.
struct Sleepers : nn::Module {
  struct Layer : nn::Module {
    Tensor weight = nn::make_parameter({1 << 14}, nn::Init::constant(1));
    void visit(nn::Visitor& v) override { v("weight", weight); }
  };
  std::vector<Layer> layers = std::vector<Layer>(24);
  static constexpr double kForward = 6e-3;

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

/// A collective takes 0.8 of a layer's forward: all of them together 0.8 of the compute time.
void slow_link(Report& report) {
  const auto run = [&](bool overlap) {
    return on_ranks({0, 0.8 * Sleepers::kForward}, [&](World& w) {
      Sleepers model;
      return train(w, {.overlap = overlap, .shard = true, .fsdp = true}, model,
                   [&] { return model(); });
    });
  };
  const Cost hidden = run(true), blocking = run(false);
  report.row("slow link, step", 1e3 * hidden.step_s, "ms");
  report.row("slow link, step, blocking", 1e3 * blocking.step_s, "ms");
  report.row("slow link, waiting", 1e3 * hidden.waiting_s, "ms");
  report.row("slow link, waiting, blocking", 1e3 * blocking.waiting_s, "ms");
  report.row("slow link, hidden", 100 * (1 - hidden.waiting_s / blocking.waiting_s), "%");
}

void no_link(const char* what, std::int64_t depth, Report& report) {
  std::vector<double> ratios, steps;
  for (int pair = 0; pair < kPairs; ++pair) {
    Cost cost[2];
    for (const bool fsdp : {false, true})
      cost[fsdp] = on_ranks({}, [&](World& w) {
        nn::GptConfig config;
        config.layers = 4;
        config.dim = 256;
        config.heads = 4;
        config.seq = 128;
        nn::Gpt model(config);
        const Tensor ids = Tensor::zeros({4, config.seq}, DType::i32);
        return train(w, {.shard = true, .fsdp = fsdp, .reshard_depth = depth}, model,
                     [&] { return model.losses(ids, ids).total(); });
      });
    steps.push_back(cost[0].step_s);
    ratios.push_back(cost[1].step_s / cost[0].step_s);
  }
  report.row("no link, step of the sharded optimizer", 1e3 * median(steps), "ms");
  report.row(std::string(what) + " / sharded optimizer, median", median(ratios), "");
  report.row(std::string(what) + " / sharded optimizer, best",
             *std::min_element(ratios.begin(), ratios.end()), "");
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::bench::Report report(argc, argv);
  weft::bench::slow_link(report);
  weft::bench::no_link("fsdp, stage 3", -1, report);
  weft::bench::no_link("fsdp, stage 2", 0, report);
  return report.finish();
}
