// Collectives over ranks that are threads of this process: their time, the bytes they move, and how
// much of the time overlaps with compute. Under mpirun: the same collectives over its processes.
#include <algorithm>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/core/random.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"

namespace weft::bench {
namespace {

using distributed::ProcessGroup;
using distributed::World;
constexpr int kBatches = 9;

struct Timing {
  double median_s, best_s;
};

/// Seconds per f() on this rank, over batches in which all ranks take part.
template <class F>
Timing time_together(World& w, int repeats, F f) {
  f();
  std::vector<double> seconds;
  for (int batch = 0; batch < kBatches; ++batch) {
    w.all().barrier().wait();
    const double begin = now();
    for (int i = 0; i < repeats; ++i) f();
    seconds.push_back((now() - begin) / repeats);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[kBatches / 2], seconds[0]};
}

void each_collective(World& w, Report& report) {
  ProcessGroup& g = w.all();
  const int n = g.size(), next = (g.rank() + 1) % n, last = (g.rank() + n - 1) % n;
  const auto row = [&](const std::string& name, std::int64_t bytes, int repeats, auto f) {
    const std::int64_t before = w.stats().bytes_sent;
    f();
    const auto sent = static_cast<double>(w.stats().bytes_sent - before);
    const Timing t = time_together(w, repeats, f);
    if (w.rank() != 0) return;
    const std::string what = message("{} ranks, {} {} B", n, name, bytes);
    report.row(what, 1e6 * t.median_s, "us");
    report.row(what + ", best", 1e6 * t.best_s, "us");
    if (bytes >= 1 << 20) report.row(what + ", sent by each", 1e-9 * sent / t.median_s, "GB/s");
  };
  const Tensor one = Tensor::zeros({1});
  row("all_reduce, thread woken,", 4, 500, [&] { g.all_reduce(one).wait(); });
  row("barrier", 0, 500, [&] { g.at_once().barrier().wait(); });
  for (const std::int64_t bytes : {4, 4 << 10, 256 << 10, 4 << 20}) {
    const int repeats = bytes < 1 << 16 ? 500 : bytes < 1 << 20 ? 50 : 10;
    const std::int64_t elements = bytes / 4;
    const Tensor x = Tensor::zeros({elements}), y = Tensor::zeros({elements});
    const Tensor whole = Tensor::zeros({elements * n});
    row("all_reduce", bytes, repeats, [&] { g.at_once().all_reduce(x).wait(); });
    row("all_gather of", bytes, repeats, [&] { g.at_once().all_gather(whole, x).wait(); });
    row("reduce_scatter to", bytes, repeats, [&] { g.at_once().reduce_scatter(x, whole).wait(); });
    row("broadcast", bytes, repeats, [&] { g.at_once().broadcast(x, 0).wait(); });
    row("exchange", bytes, repeats, [&] { g.at_once().exchange(y, last, x, next).wait(); });
    if (elements % n == 0)
      row("all_to_all", bytes, repeats, [&] { g.at_once().all_to_all(y, x).wait(); });
  }
}

/// The fraction of a step spent waiting, either for each collective at once or for all at the end.
/// On a slow link, with communication as long as compute.
void share_of_waiting(int ranks, Report& report) {
  distributed::WorldOptions options;
  options.link.latency_s = 2e-3;
  run_ranks(
      ranks,
      [&](World& w) {
        const Tensor x = Tensor::zeros({1 << 14}), y = Tensor::ones({1 << 16});
        const auto compute = [&] {
          const double begin = now();
          while (now() - begin < 2e-3) (void)(y * y);
        };
        for (const bool blocking : {true, false}) {
          const double before = w.stats().waiting_s;
          const double begin = now();
          for (int step = 0; step < 5; ++step) {
            distributed::Work works[8];
            for (distributed::Work& work : works) {
              compute();
              work = w.all().all_reduce(x);
              if (blocking) work.wait();
            }
            for (distributed::Work& work : works) work.wait();
          }
          if (w.rank() == 0)
            report.row(message("{} ranks, waiting, {}", w.size(),
                               blocking ? "each at once" : "all in the end"),
                       100 * (w.stats().waiting_s - before) / (now() - begin), "%");
        }
      },
      options);
}

/// A layer with experts on all ranks and a shared expert, forward and backward, on a slow link: how
/// much of the token exchange the shared expert hides when it is computed meanwhile.
void shared_expert(int ranks, Report& report) {
  distributed::WorldOptions options;
  options.link.latency_s = 5e-3;
  run_ranks(
      ranks,
      [&](World& w) {
        const distributed::DeviceMesh mesh(w, {.ep = w.size()});
        nn::MoE moe(256, {.experts = 8, .ffn = 16, .shared_ffn = 1024});
        shard_experts(moe, mesh);
        Tensor x = rand_normal({256, 256});
        const Tensor dy = rand_normal(x.shape());
        x.set_requires_grad();
        for (const bool overlap : {false, true}) {
          change_shard(moe, [&](nn::Shard& s) { s.overlap_shared = overlap; });
          // Of the passes alone: time_together() waits for the other ranks too.
          std::vector<double> waits;
          const Timing t = time_together(w, 2, [&] {
            const double before = w.stats().waiting_s;
            Tape tape;
            moe(x).y.backward(dy);
            moe.zero_grad();
            x.set_grad({});
            waits.push_back(w.stats().waiting_s - before);
          });
          if (w.rank() != 0) continue;
          const std::string what =
              message("{} ranks, experts, shared one {}", w.size(), overlap ? "meanwhile" : "last");
          report.row(what, 1e3 * t.median_s, "ms");
          report.row(what + ", waiting", 1e3 * median(waits), "ms");
        }
      },
      options);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  using namespace weft;
  bench::Report report(argc, argv);
  if (distributed::is_launched()) {
    const auto world = distributed::world_of_launch();
    bench::each_collective(*world, report);
    return world->rank() == 0 ? report.finish() : 0;
  }
  for (const int ranks : {2, 4}) {
    distributed::run_ranks(ranks,
                           [&](distributed::World& w) { bench::each_collective(w, report); });
    bench::share_of_waiting(ranks, report);
    if (ranks == 2) bench::shared_expert(ranks, report);
  }
  return report.finish();
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
