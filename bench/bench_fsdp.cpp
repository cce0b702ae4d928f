// Steps with sharded weights on two ranks that are threads of this process: how much of the gathers
// and reduce-scatters overlaps with compute over a slow link, and what a step costs without a link,
// compared with the sharded optimizer, which gathers weights once a step and not twice.
#include <memory>
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/bench/sleepers.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/gpt.h"

namespace weft::bench {
namespace {

using namespace distributed;
constexpr int kRanks = 2;

/// A model in training on one rank.
template <class Model>
class Training {
 public:
  Training(World& w, const DdpOptions& options, Model& model)
      : mesh_(w), adam_(make_optimizer(model, mesh_, {}, optim::AdamWOptions{}, options)) {
    change_shard(model, [this](nn::Shard& s) {
      s.before_use = [this](const nn::Module& part) { adam_->wait(part); };
    });
  }
  Training(const Training&) = delete;

  /// Seconds of a step.
  template <class Forward>
  double step(Forward forward) {
    const double begin = now();
    adam_->zero_grad();
    Tape tape;
    const Tensor loss = forward();
    adam_->watch(tape);
    loss.backward();
    adam_->step(adam_->finish(1));
    return now() - begin;
  }

 private:
  const DeviceMesh mesh_;
  const std::unique_ptr<ParallelOptimizer> adam_;
};

/// A collective takes 0.8 of a layer's forward: all of them together 0.8 of the compute time.
void slow_link(Report& report) {
  constexpr int kSteps = 5, kWarmSteps = 3;
  const auto run = [&](bool overlap) {
    return on_ranks(kRanks, {0, 0.8 * Sleepers::kForward}, [&](World& w) {
      Sleepers model(24);
      Training training(w, {.overlap = overlap, .shard = true, .fsdp = true}, model);
      std::vector<double> steps, waits;
      for (int step = -kWarmSteps; step < kSteps; ++step) {
        const CommStats before = w.stats();
        const double took = training.step([&] { return model(); });
        if (step < 0) continue;
        steps.push_back(took);
        waits.push_back(w.stats().waiting_s - before.waiting_s);
      }
      return StepCost{median(steps), median(waits)};
    });
  };
  const StepCost hidden = run(true), blocking = run(false);
  report.row("slow link, step", 1e3 * hidden.step_s, "ms");
  report.row("slow link, step, blocking", 1e3 * blocking.step_s, "ms");
  report.row("slow link, waiting", 1e3 * hidden.waiting_s, "ms");
  report.row("slow link, waiting, blocking", 1e3 * blocking.waiting_s, "ms");
  report.row("slow link, hidden", 100 * (1 - hidden.waiting_s / blocking.waiting_s), "%");
}

/// Two models in turns of a few steps: a shared host changes its speed within a second. The first
/// step of a turn is left out, since weights of the other model may still be on their way.
void no_link(const char* what, std::int64_t depth, Report& report) {
  constexpr int kPairs = 41, kSteps = 2;
  std::vector<double> ratios, steps;
  run_ranks(kRanks, [&](World& w) {
    nn::GptConfig config;
    config.layers = 4;
    config.dim = 256;
    config.heads = 4;
    config.seq = 128;
    nn::Gpt models[] = {nn::Gpt(config), nn::Gpt(config)};
    Training sharded(w, {.shard = true}, models[0]);
    Training fsdp(w, {.shard = true, .fsdp = true, .reshard_depth = depth}, models[1]);
    const Tensor ids = Tensor::zeros({4, config.seq}, DType::i32);
    const auto turn = [&](auto& training, const nn::Gpt& model) {
      double took = 0;
      for (int step = -1; step < kSteps; ++step) {
        const double s = training.step([&] { return model.losses(ids, ids).total(); });
        if (step >= 0) took += s;
      }
      return took;
    };
    for (int pair = -1; pair < kPairs; ++pair) {
      double took[2] = {};
      for (const int i : {0, 1})  // either begins every other pair
        if ((pair + i) % 2 == 0)
          took[0] = turn(sharded, models[0]);
        else
          took[1] = turn(fsdp, models[1]);
      if (pair < 0 || w.rank() != 0) continue;
      steps.push_back(took[0] / kSteps);
      ratios.push_back(took[1] / took[0]);
    }
  });
  report.row(message("no link, step of the sharded optimizer beside {}", what), 1e3 * median(steps),
             "ms");
  report.row(std::string(what) + " / sharded optimizer, median", median(ratios), "");
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  weft::bench::Report report(argc, argv);
  weft::bench::slow_link(report);
  weft::bench::no_link("fsdp, stage 3", -1, report);
  weft::bench::no_link("fsdp, stage 2", 0, report);
  return report.finish();
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
