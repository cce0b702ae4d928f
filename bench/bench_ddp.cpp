// Training steps of data-parallel ranks that are threads of this process: how much of the wait for
// gradients and parameters overlaps with compute, and whether overlap costs anything without a slow
// link.
#include <algorithm>
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
constexpr int kSteps = 5, kWarmSteps = 2, kPairs = 9;

struct Form {
  bool shard = false, overlap = true;
};

/// Steps of any model; `forward` returns a loss.
template <class Model, class Forward>
StepCost train(World& w, const Form& form, Model& model, std::int64_t bucket_size,
               Forward forward) {
  const DeviceMesh mesh(w);
  Ddp ddp(model, mesh, {},
          {.bucket_size = bucket_size, .overlap = form.overlap, .shard = form.shard});
  const auto adam = make_optimizer(ddp, optim::AdamWOptions{});
  if (form.overlap)
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
    ddp.watch(tape);
    loss.backward();
    adam->step(ddp.finish(1));
    if (!form.overlap) adam->wait();
    if (step < 0) continue;
    steps.push_back(now() - begin);
    waits.push_back(w.stats().waiting_s - before.waiting_s);
  }
  adam->wait();
  return {median(steps), median(waits)};
}

void slow_link(int ranks, bool shard, Report& report) {
  // A bucket's collective takes about as long as a layer's forward: both directions together take
  // two thirds of the compute time.
  const SimulatedLink link{0, 0.8 * Sleepers::kForward};
  const auto run = [&](bool overlap) {
    return on_ranks(ranks, link, [&](World& w) {
      Sleepers model(24);
      return train(w, {shard, overlap}, model, 1, [&] { return model(); });
    });
  };
  const StepCost hidden = run(true), blocking = run(false);
  const std::string what = message("{} ranks, {}, slow link", ranks, shard ? "sharded" : "ddp");
  report.row(what + ", step", 1e3 * hidden.step_s, "ms");
  report.row(what + ", step, blocking", 1e3 * blocking.step_s, "ms");
  report.row(what + ", waiting", 1e3 * hidden.waiting_s, "ms");
  report.row(what + ", waiting, blocking", 1e3 * blocking.waiting_s, "ms");
  report.row(what + ", hidden", 100 * (1 - hidden.waiting_s / blocking.waiting_s), "%");
}

/// A real model without a link; the variants alternate.
void no_link(int ranks, bool shard, Report& report) {
  std::vector<double> ratios, steps;
  for (int pair = 0; pair < kPairs; ++pair) {
    StepCost cost[2];
    for (const bool overlap : {false, true})
      cost[overlap] = on_ranks(ranks, {}, [&](World& w) {
        nn::GptConfig config;
        config.layers = 4;
        config.seq = 64;
        nn::Gpt model(config);
        const Tensor ids = Tensor::zeros({4, config.seq}, DType::i32);
        return train(w, {shard, overlap}, model, 60'000,
                     [&] { return model.losses(ids, ids).total(); });
      });
    steps.push_back(cost[0].step_s);
    ratios.push_back(cost[1].step_s / cost[0].step_s);
  }
  const std::string what = message("{} ranks, {}, no link", ranks, shard ? "sharded" : "ddp");
  report.row(what + ", step, blocking", 1e3 * median(steps), "ms");
  report.row(what + ", overlapped / blocking, median", median(ratios), "");
  report.row(what + ", overlapped / blocking, best",
             *std::min_element(ratios.begin(), ratios.end()), "");
}

/// Steps of a model of 3.2 million parameters with a single bucket and with the default buckets,
/// alternating. Takes the minimum of each, since other programs only add time. Returns that of the
/// single bucket.
double default_buckets(int ranks, bool shard, const SimulatedLink& link, const std::string& what,
                       Report& report) {
  constexpr std::int64_t kOne = std::int64_t{1} << 40;
  std::vector<double> steps[2];
  for (int pair = 0; pair < kPairs; ++pair)
    for (const bool one : {true, false})
      steps[one].push_back(on_ranks(ranks, link, [&](World& w) {
                             nn::GptConfig config;
                             config.layers = 4;
                             config.dim = 256;
                             config.seq = 64;
                             nn::Gpt model(config);
                             const Tensor ids = Tensor::zeros({4, config.seq}, DType::i32);
                             return train(w, {shard}, model, one ? kOne : 0,
                                          [&] { return model.losses(ids, ids).total(); });
                           }).step_s);
  const auto least = [&](bool one) {
    return *std::min_element(steps[one].begin(), steps[one].end());
  };
  report.row(what + ", step, one bucket", 1e3 * least(true), "ms");
  report.row(what + ", step, default buckets", 1e3 * least(false), "ms");
  return least(true);
}

void default_buckets(int ranks, bool shard, Report& report) {
  const std::string what = message("{} ranks, {}", ranks, shard ? "sharded" : "ddp");
  const double step_s = default_buckets(ranks, shard, {}, what + ", no link", report);
  // A rank's traffic in a step, 4 bytes per parameter twice, takes half of it.
  const double bytes = 4.0 * 3.25e6 * 2 * (ranks - 1) / ranks;
  const SimulatedLink slow{bytes / (0.5 * step_s), 0};
  default_buckets(ranks, shard, slow, what + ", link", report);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  weft::bench::Report report(argc, argv);
  for (const bool shard : {false, true}) {
    weft::bench::slow_link(2, shard, report);
    weft::bench::no_link(2, shard, report);
    weft::bench::default_buckets(2, shard, report);
  }
  return report.finish();
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
