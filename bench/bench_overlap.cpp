// Layers whose weights are spread over ranks, by a link that is as slow as it is said to be: how
// much of the waiting a ring, or a pipeline, hides behind the products.
#include <algorithm>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/core/random.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/overlap.h"
#include "weft/distributed/world.h"

namespace weft::bench {
namespace {

using distributed::Overlap;
using distributed::ProcessGroup;
using distributed::World;

constexpr std::int64_t kTokens = 512, kWidth = 512, kHidden = 2048;  // of all ranks
constexpr int kPairs = 7;

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

/// A column-parallel and a row-parallel layer, forward and backward.
void pass(const Layers& l, ProcessGroup& g, Overlap form) {
  Tape tape;
  const bool plain = form == Overlap::none;
  const Tensor h = plain ? linear(distributed::gather_rows(l.x, g), l.up)
                         : distributed::gather_linear(l.x, l.up, {}, g);
  const Tensor y = plain ? distributed::reduce_scatter_rows(linear(h, l.down), g)
                         : distributed::linear_scatter(h, l.down, g, form);
  tape.gradients(y, {l.x, l.up, l.down}, y.detach());
}

/// Median seconds of a pass, the forms taking turns; the ranks of one world.
std::vector<double> times(int ranks, double bytes_per_s) {
  const Overlap forms[] = {Overlap::none, Overlap::ring, Overlap::pipeline};
  std::vector<double> medians(3);
  distributed::WorldOptions options;
  options.link.bytes_per_s = bytes_per_s;
  distributed::run_ranks(
      ranks,
      [&](World& w) {
        const Layers l = layers_of(w);
        std::vector<double> seconds[3];
        for (int i = -1; i < kPairs; ++i)
          for (int f = 0; f < 3; ++f) {
            w.all().barrier().wait();
            const double begin = now();
            pass(l, w.all(), forms[f]);
            w.all().barrier().wait();
            if (i >= 0) seconds[f].push_back(now() - begin);
          }
        if (w.rank() != 0) return;
        for (int f = 0; f < 3; ++f) {
          std::sort(seconds[f].begin(), seconds[f].end());
          medians[static_cast<std::size_t>(f)] = seconds[f][kPairs / 2];
        }
      },
      options);
  return medians;
}

void compare(int ranks, Report& report) {
  const std::vector<double> fast = times(ranks, 0);
  // A pass moves the gathered rows four times: by this link in half of the time that it computes.
  const double bytes = 4.0 * sizeof(float) * kTokens * kWidth * (ranks - 1) / ranks;
  const double bandwidth = bytes / (0.5 * fast[0]);
  const std::vector<double> slow = times(ranks, bandwidth);
  const auto row = [&](const char* what, double value, const char* unit) {
    report.row(message("{} ranks, {}", ranks, what), value, unit);
  };
  row("link", 1e-9 * bandwidth, "GB/s");
  row("no link, blocking", 1e3 * fast[0], "ms");
  row("no link, ring", 1e3 * fast[1], "ms");
  row("no link, pipeline", 1e3 * fast[2], "ms");
  row("link, blocking", 1e3 * slow[0], "ms");
  row("link, ring", 1e3 * slow[1], "ms");
  row("link, pipeline", 1e3 * slow[2], "ms");
  const double exposed = slow[0] - fast[0];
  row("hidden by the ring", 100 * (1 - (slow[1] - fast[0]) / exposed), "%");
  row("hidden by the pipeline", 100 * (1 - (slow[2] - fast[0]) / exposed), "%");
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft;
  bench::Report report(argc, argv);
  bench::compare(2, report);
  return report.finish();
}
