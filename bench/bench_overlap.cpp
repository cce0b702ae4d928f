// Layers whose weights are spread over ranks, by a link that is as slow as it is said to be: how
// much of the waiting a ring, or a pipeline, hides behind the products.
#include <algorithm>
#include <array>

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
constexpr int kPasses = 15;

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

/// Of one pass on rank 0.
struct Cost {
  double seconds = 0, waiting = 0;
};
using Costs = std::array<Cost, 3>;  // of none, ring, pipeline

/// The least of each over passes of which the forms take turns: other programs only add to it.
Costs costs(int ranks, double bytes_per_s) {
  const Overlap forms[] = {Overlap::none, Overlap::ring, Overlap::pipeline};
  Costs least;
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
            pass(l, w.all(), forms[f]);
            const Cost c{now() - begin, w.stats().waiting_s - waited};
            if (w.rank() != 0 || i < 0) continue;
            Cost& best = least[f];
            best.seconds = i == 0 ? c.seconds : std::min(best.seconds, c.seconds);
            best.waiting = i == 0 ? c.waiting : std::min(best.waiting, c.waiting);
          }
      },
      options);
  return least;
}

void compare(int ranks, Report& report) {
  const Costs fast = costs(ranks, 0);
  // By this link, what a blocking pass moves takes a quarter of the time that it computes: with two
  // ranks a ring has half of a product to hide a transfer behind.
  const double bytes = 4.0 * sizeof(float) * kTokens * kWidth * (ranks - 1) / ranks;
  const double bandwidth = bytes / (0.25 * fast[0].seconds);
  const Costs slow = costs(ranks, bandwidth);
  report.row(message("{} ranks, link", ranks), 1e-9 * bandwidth, "GB/s");
  const char* const names[] = {"blocking", "ring", "pipeline"};
  for (std::size_t f = 0; f < 3; ++f) {
    const std::string what = message("{} ranks, {}", ranks, names[f]);
    report.row(what + ", no link", 1e3 * fast[f].seconds, "ms");
    report.row(what + ", link", 1e3 * slow[f].seconds, "ms");
    report.row(what + ", waiting for the link", 1e3 * (slow[f].waiting - fast[f].waiting), "ms");
    if (f > 0)
      report.row(
          what + ", hidden",
          100 * (1 - (slow[f].waiting - fast[f].waiting) / (slow[0].waiting - fast[0].waiting)),
          "%");
  }
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft;
  bench::Report report(argc, argv);
  bench::compare(2, report);
  return report.finish();
}
