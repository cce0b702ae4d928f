// Layers with weights sharded over ranks, on a link of a given speed: how much of the communication
// a ring or a pipeline overlaps with the products; layers with experts on all ranks: how much of it
// delayed weight gradients hide; and steps of tensor and data parallelism: what lanes hide.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/fp8_overlap.h"
#include "weft/distributed/overlap.h"
#include "weft/distributed/shard_experts.h"
#include "weft/distributed/world.h"
#include "weft/nn/moe.h"

namespace weft::bench {
namespace {

using distributed::Overlap;
using distributed::ProcessGroup;
using distributed::World;

// A feed-forward layer of GPT-2 124M and the tokens of a small micro-batch, over all ranks. With
// fewer tokens, the products of a ring, which take the rows of one rank each, pack the weights too
// often.
constexpr std::int64_t kTokens = 2048, kWidth = 768, kHidden = 3072;
constexpr int kPasses = 9;

struct Layers {
  Tensor x, up, down;
};

Layers layers_of(const World& w) {
  const int n = w.size();
  Layers l{Tensor::empty({kTokens / n, kWidth}), Tensor::empty({kHidden / n, kWidth}),
           Tensor::empty({kWidth, kHidden / n})};
  for (Tensor* t : {&l.x, &l.up, &l.down}) {
    normal_(*t, {1, static_cast<std::uint64_t>(w.rank()), 0}, 0, 0.05);
    t->set_requires_grad();
  }
  return l;
}

/// The layers in FP8: gathered rows are a byte a number, sums f32 as without.
Tensor fp8_layers(const Layers& l, ProcessGroup& g, Overlap form) {
  const fp8::Recipe recipe;
  const fp8::LayerState up, down;
  const Tensor h = distributed::fp8_gather_linear(l.x, l.up, {}, recipe, &up, g, {form});
  return distributed::fp8_linear_scatter(h, l.down, recipe, &down, g, form);
}

/// A column-parallel and a row-parallel layer, forward and backward.
void pass(const Layers& l, ProcessGroup& g, Overlap form, bool fp8) {
  Tape tape;
  if (fp8) {
    const Tensor y = fp8_layers(l, g, form);
    tape.gradients(y, {l.x, l.up, l.down}, y.detach());
    return;
  }
  const bool plain = form == Overlap::none;
  const Tensor h = plain ? linear(distributed::gather_rows(l.x, g), l.up)
                         : distributed::gather_linear(l.x, l.up, {}, g);
  const Tensor y = plain ? distributed::reduce_scatter_rows(linear(h, l.down), g)
                         : distributed::linear_scatter(h, l.down, g, form);
  tape.gradients(y, {l.x, l.up, l.down}, y.detach());
}

/// Seconds of rank 0, one entry per pass.
struct Cost {
  std::vector<double> whole, waiting;
};
using Costs = std::array<Cost, 3>;  // of none, ring, pipeline

/// The variants alternate, so that pass i of one is close in time to pass i of the others.
Costs costs(int ranks, double bytes_per_s, bool fp8) {
  const Overlap forms[] = {Overlap::none, Overlap::ring, Overlap::pipeline};
  Costs all;
  distributed::WorldOptions options;
  options.link.bytes_per_s = bytes_per_s;
  distributed::run_ranks(
      ranks,
      [&](World& w) {
        const Layers l = layers_of(w);
        for (int i = -1; i < kPasses; ++i)
          for (std::size_t f = 0; f < 3; ++f) {
            w.all().barrier().wait();
            const double begin = now(), waited = w.stats().waiting_s;
            pass(l, w.all(), forms[f], fp8);
            if (w.rank() != 0 || i < 0) continue;
            all[f].whole.push_back(now() - begin);
            all[f].waiting.push_back(w.stats().waiting_s - waited);
          }
      },
      options);
  return all;
}

/// Median deviation from the median, relative to the median.
double spread(std::vector<double> values) {
  const double middle = median(values);
  for (double& v : values) v = std::abs(v / middle - 1);
  return median(values);
}

double ratio(const Cost& form, const Cost& plain) {
  std::vector<double> pairs;
  for (std::size_t i = 0; i < form.whole.size(); ++i)
    pairs.push_back(form.whole[i] / plain.whole[i]);
  return median(pairs);
}

void compare(int ranks, bool fp8, Report& report) {
  const Costs fast = costs(ranks, 0, fp8);
  // On this link the traffic of a blocking pass takes a quarter of its compute time: with two
  // ranks, a ring has half of a product in which to hide a transfer.
  const double number =
      fp8 ? 2 + 2.0 * sizeof(float) : 4.0 * sizeof(float);  // in two gathers, two sums
  const double bytes = number * kTokens * kWidth * (ranks - 1) / ranks;
  const double bandwidth = bytes / (0.25 * median(fast[0].whole));
  const Costs slow = costs(ranks, bandwidth, fp8);
  report.row(message("{} ranks, link", ranks), 1e-9 * bandwidth, "GB/s");
  report.row(message("{} ranks, blocking, spread of its passes", ranks),
             100 * spread(fast[0].whole), "%");
  const auto waiting = [&](std::size_t f) {
    return median(slow[f].waiting) - median(fast[f].waiting);
  };
  const char* const names[] = {"blocking", "ring", "pipeline"};
  for (std::size_t f = 0; f < 3; ++f) {
    const std::string what = message("{} ranks, {}", ranks, names[f]);
    report.row(what + ", no link", 1e3 * median(fast[f].whole), "ms");
    report.row(what + ", link", 1e3 * median(slow[f].whole), "ms");
    report.row(what + ", waiting for the link", 1e3 * waiting(f), "ms");
    if (f == 0) continue;
    report.row(what + " / blocking, no link", ratio(fast[f], fast[0]), "");
    report.row(what + " / blocking, link", ratio(slow[f], slow[0]), "");
    report.row(what + ", hidden", 100 * (1 - waiting(f) / waiting(0)), "%");
  }
}

/// The same two layers with all tokens on every rank. The sum of the input's gradient waits for the
/// product that makes it, or is hidden by the product for the weight's gradient.
std::array<Cost, 2> whole_costs(int ranks, double bytes_per_s) {
  std::array<Cost, 2> all;
  distributed::WorldOptions options;
  options.link.bytes_per_s = bytes_per_s;
  distributed::run_ranks(
      ranks,
      [&](World& w) {
        Layers l = layers_of(w);
        l.x = Tensor::empty({kTokens, kWidth});
        normal_(l.x, {1, 0, 0}, 0, 0.05);
        l.x.set_requires_grad();
        ProcessGroup& g = w.all();
        for (int i = -1; i < kPasses; ++i)
          for (const bool hides : {false, true}) {
            g.barrier().wait();
            const double begin = now(), waited = w.stats().waiting_s;
            {
              Tape tape;
              const Tensor h = hides ? distributed::copy_linear(l.x, l.up, {}, g)
                                     : linear(distributed::copy_to_group(l.x, g), l.up);
              const Tensor y = distributed::reduce_from_group(linear(h, l.down), g);
              tape.gradients(y, {l.x, l.up, l.down}, y.detach());
            }
            if (w.rank() != 0 || i < 0) continue;
            all[hides].whole.push_back(now() - begin);
            all[hides].waiting.push_back(w.stats().waiting_s - waited);
          }
      },
      options);
  return all;
}

void hidden_sums(int ranks, Report& report) {
  const std::array<Cost, 2> fast = whole_costs(ranks, 0);
  // Two sums, of the output and of the input's gradient, in a quarter of the compute time.
  const double bytes = 2 * 2.0 * sizeof(float) * kTokens * kWidth * (ranks - 1) / ranks;
  const double bandwidth = bytes / (0.25 * median(fast[0].whole));
  const std::array<Cost, 2> slow = whole_costs(ranks, bandwidth);
  const std::string what = message("{} ranks, all tokens, ", ranks);
  report.row(what + "link", 1e-9 * bandwidth, "GB/s");
  const char* const names[] = {"sums in turn", "gradient's sum hidden"};
  for (std::size_t f = 0; f < 2; ++f) {
    report.row(what + names[f] + ", no link", 1e3 * median(fast[f].whole), "ms");
    report.row(what + names[f] + ", link", 1e3 * median(slow[f].whole), "ms");
    report.row(what + names[f] + ", waiting for the link",
               1e3 * (median(slow[f].waiting) - median(fast[f].waiting)), "ms");
  }
  report.row(what + "hidden / in turn, no link", ratio(fast[1], fast[0]), "");
  report.row(what + "hidden / in turn, link", ratio(slow[1], slow[0]), "");
}

// Two layers of experts as wide as the MLP of a small model. Two of eight experts process a token.
constexpr std::int64_t kExpertTokens = 1024, kExpertWidth = 256, kExpertHidden = 512;
constexpr int kExpertPasses = 31;

/// A forward and backward pass with weight gradients in their turn, and delayed.
std::array<Cost, 2> expert_costs(int ranks, double bytes_per_s) {
  std::array<Cost, 2> all;
  distributed::WorldOptions options;
  options.link.bytes_per_s = bytes_per_s;
  distributed::run_ranks(
      ranks,
      [&](World& w) {
        const distributed::DeviceMesh mesh(w, {.ep = w.size()});
        const auto layer = [&] {
          nn::MoE moe(kExpertWidth, {.experts = 8, .ffn = kExpertHidden});
          nn::init(moe, 1);
          shard_experts(moe, mesh);
          return moe;
        };
        nn::MoE first = layer(), second = layer();
        Tensor x = Tensor::empty({kExpertTokens / w.size(), kExpertWidth});
        normal_(x, {2, static_cast<std::uint64_t>(w.rank()), 0});
        x.set_requires_grad();
        for (int i = -2; i < kExpertPasses; ++i)
          for (const bool delay : {false, true}) {
            for (nn::MoE* moe : {&first, &second})
              change_shard(*moe, [&](nn::Shard& s) { s.delay_gradients = delay; });
            w.all().barrier().wait();
            const double begin = now(), waited = w.stats().waiting_s;
            {
              Tape tape;
              const Tensor y = second(first(x).y).y;
              y.backward(y.detach());
            }
            if (w.rank() == 0 && i >= 0) {
              all[delay].whole.push_back(now() - begin);
              all[delay].waiting.push_back(w.stats().waiting_s - waited);
            }
            for (nn::MoE* moe : {&first, &second}) moe->zero_grad();
            x.set_grad({});
          }
      },
      options);
  return all;
}

void delayed_gradients(int ranks, Report& report) {
  const std::array<Cost, 2> fast = expert_costs(ranks, 0);
  // Tokens and results, and their gradients: four transfers in each layer. Together they take half
  // of the compute time.
  const double bytes =
      2 * 4.0 * 2 * sizeof(float) * kExpertTokens / ranks * kExpertWidth * (ranks - 1) / ranks;
  const double bandwidth = bytes / (0.5 * median(fast[0].whole));
  const std::array<Cost, 2> slow = expert_costs(ranks, bandwidth);
  const std::string what = message("{} ranks, experts, ", ranks);
  report.row(what + "link", 1e-9 * bandwidth, "GB/s");
  report.row(what + "spread of the passes", 100 * spread(fast[0].whole), "%");
  const char* const names[] = {"gradients in turn", "gradients delayed"};
  for (std::size_t f = 0; f < 2; ++f) {
    report.row(what + names[f] + ", no link", 1e3 * median(fast[f].whole), "ms");
    report.row(what + names[f] + ", link", 1e3 * median(slow[f].whole), "ms");
    report.row(what + names[f] + ", link, waiting", 1e3 * median(slow[f].waiting), "ms");
  }
  report.row(what + "delayed / in turn, no link", ratio(fast[1], fast[0]), "");
  report.row(what + "delayed / in turn, link", ratio(slow[1], slow[0]), "");
}

// Layers that compute for these times, tp 2 x dp 2. A layer sums its output over tp in forward and
// its gradient in backward, and waits; then the sum of its bucket over dp begins. With `gathers`
// the weights of all layers come from their owners when a step begins, and a layer waits for its
// own. Sleeping stands for compute, so that four ranks fit on two processors.
constexpr int kLayers = 12, kSteps = 3, kTurns = 6;
constexpr std::chrono::milliseconds kForward{4}, kBackward{8};
constexpr std::int64_t kActivation = 16 << 10, kBucket = 256 << 10;  // f32

void lane_step(const distributed::DeviceMesh& mesh, const std::vector<Tensor>& buckets,
               const Tensor& activation, bool gathers) {
  std::vector<distributed::Work> works, weights;
  for (int layer = 0; gathers && layer < kLayers; ++layer) {
    const Tensor& all = buckets[static_cast<std::size_t>(layer)];
    weights.push_back(mesh.dp_cp().all_gather(
        all, all.narrow(0, mesh.dp_cp().rank() * kBucket / 2, kBucket / 2)));
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    if (gathers) weights[static_cast<std::size_t>(layer)].wait();
    std::this_thread::sleep_for(kForward);
    mesh.tp().at_once().all_reduce(activation, distributed::Reduce::max).wait();
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    std::this_thread::sleep_for(kBackward);
    mesh.tp().at_once().all_reduce(activation, distributed::Reduce::max).wait();
    works.push_back(mesh.dp_cp().all_reduce(buckets[static_cast<std::size_t>(layer)]));
  }
  for (distributed::Work& work : works) work.wait();
}

Cost lane_costs(int lanes, double tp_s, double bucket_s, bool gathers) {
  Cost cost;
  distributed::WorldOptions options;
  options.lanes = lanes;
  // With two ranks, an all_reduce sends as many bytes as the tensor has.
  if (tp_s > 0) options.link.bytes_per_s = 4.0 * kActivation / tp_s;
  if (bucket_s > 0) options.data_link = {.bytes_per_s = 4.0 * kBucket / bucket_s};
  distributed::run_ranks(
      4,
      [&](World& w) {
        const distributed::DeviceMesh mesh(w, {.tp = 2});
        std::vector<Tensor> buckets;
        for (int i = 0; i < kLayers; ++i) buckets.push_back(Tensor::zeros({kBucket}));
        const Tensor activation = Tensor::zeros({kActivation});
        for (int i = -1; i < kSteps; ++i) {
          w.all().barrier().wait();
          const double begin = now(), waited = w.stats().waiting_s;
          lane_step(mesh, buckets, activation, gathers);
          if (w.rank() != 0 || i < 0) continue;
          cost.whole.push_back(now() - begin);
          cost.waiting.push_back(w.stats().waiting_s - waited);
        }
      },
      options);
  return cost;
}

/// Two links: of a layer's collectives, inside a host, and of the buckets, across hosts.
void compare_lanes(Report& report) {
  report.row("4 ranks, lanes, compute of a step",
             static_cast<double>((kLayers * (kForward + kBackward)).count()), "ms");
  struct Case {
    const char* name;
    double tp_s, bucket_s;
    bool gathers = false;
  };
  for (const Case& c : {Case{"no link", 0, 0}, Case{"buckets half of backward", 6e-4, 4e-3},
                        Case{"buckets half of backward, weights gathered", 6e-4, 4e-3, true}}) {
    const std::string what = message("4 ranks, {}, ", c.name);
    // In turns, so that other programs slow all of them alike.
    std::array<Cost, distributed::kLanes> of;
    for (int turn = 0; turn < kTurns; ++turn)
      for (int lanes = 1; lanes <= distributed::kLanes; ++lanes) {
        const Cost cost = lane_costs(lanes, c.tp_s, c.bucket_s, c.gathers);
        Cost& all = of[static_cast<std::size_t>(lanes - 1)];
        all.whole.insert(all.whole.end(), cost.whole.begin(), cost.whole.end());
        all.waiting.insert(all.waiting.end(), cost.waiting.begin(), cost.waiting.end());
      }
    for (int lanes = 1; lanes <= distributed::kLanes; ++lanes) {
      const Cost& cost = of[static_cast<std::size_t>(lanes - 1)];
      const std::string which = message("{}{} lane{}", what, lanes, lanes > 1 ? "s" : "");
      // The least: a step that sleeps is only ever slowed by other programs.
      const auto least = [](const std::vector<double>& v) {
        return *std::min_element(v.begin(), v.end());
      };
      report.row(which, 1e3 * least(cost.whole), "ms");
      report.row(which + ", waiting", 1e3 * least(cost.waiting), "ms");
      if (lanes > 1) report.row(which + " / 1 lane", least(cost.whole) / least(of[0].whole), "");
    }
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  using namespace weft;
  std::string dtype = "f32";
  bench::Report report(argc, argv, {{"--dtype", &dtype, "f32|fp8"}});
  check(dtype == "f32" || dtype == "fp8", "--dtype: must be f32 or fp8, got {}", dtype);
  bench::compare(2, dtype == "fp8", report);
  if (dtype == "f32") {
    bench::hidden_sums(2, report);
    bench::delayed_gradients(2, report);
    bench::compare_lanes(report);
  }
  return report.finish();
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
