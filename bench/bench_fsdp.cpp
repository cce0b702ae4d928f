// Steps with sharded weights on two ranks that are threads of this process: how much of the gathers
// and reduce-scatters overlaps with compute over a slow link, and what a step costs without a link,
// compared with the sharded optimizer, which moves half of the bytes.
#include <algorithm>
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
constexpr int kRanks = 2, kSteps = 5, kWarmSteps = 3, kPairs = 9;

template <class Model, class Forward>
StepCost train(World& w, const DdpOptions& options, Model& model, Forward forward) {
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

/// A collective takes 0.8 of a layer's forward: all of them together 0.8 of the compute time.
void slow_link(Report& report) {
  const auto run = [&](bool overlap) {
    return on_ranks(kRanks, {0, 0.8 * Sleepers::kForward}, [&](World& w) {
      Sleepers model(24);
      return train(w, {.overlap = overlap, .shard = true, .fsdp = true}, model,
                   [&] { return model(); });
    });
  };
  const StepCost hidden = run(true), blocking = run(false);
  report.row("slow link, step", 1e3 * hidden.step_s, "ms");
  report.row("slow link, step, blocking", 1e3 * blocking.step_s, "ms");
  report.row("slow link, waiting", 1e3 * hidden.waiting_s, "ms");
  report.row("slow link, waiting, blocking", 1e3 * blocking.waiting_s, "ms");
  report.row("slow link, hidden", 100 * (1 - hidden.waiting_s / blocking.waiting_s), "%");
}

void no_link(const char* what, std::int64_t depth, Report& report) {
  std::vector<double> ratios, steps;
  for (int pair = 0; pair < kPairs; ++pair) {
    StepCost cost[2];
    for (const bool fsdp : {false, true})
      cost[fsdp] = on_ranks(kRanks, {}, [&](World& w) {
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
