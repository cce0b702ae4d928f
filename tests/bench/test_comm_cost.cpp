// The cost model of one collective and the timeline of one step.
#include <doctest/doctest.h>

#include <numeric>

#include "weft/bench/comm_timeline.h"
#include "weft/distributed/comm_cost.h"
#include "weft/distributed/device_mesh.h"
#include "weft/tests/support.h"

namespace weft::bench::comm_cost_test {
namespace {

using distributed::Cluster, distributed::Collective;
using Kind = StepEvent::Kind;

// The constants of the cost model in PyTorch's DTensor, with 2^30 bytes per GB.
Cluster reference() {
  const double rate = 87.7 * (1 << 30);
  return {
      .devices_per_host = 8, .base_us = 6.6, .inside = {0.6, rate}, .across = {2.7, 0.22 * rate}};
}

std::vector<int> first(int n, int stride = 1) {
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r * stride);
  return ranks;
}

double us(const Cluster& c, Collective kind, std::int64_t bytes, const std::vector<int>& ranks) {
  return collective_us(c, kind, bytes, ranks);
}

void check_us(double got, double expected) { CHECK(std::abs(got - expected) < 1e-3); }

}  // namespace

TEST_CASE("comm_cost: ring collectives on a bf16 matrix of 4096 x 4096") {
  constexpr std::int64_t kBytes = 2 * 4096 * 4096;
  const Cluster c = reference();
  for (const auto& [n, once, twice] :
       {std::tuple{2, 185.364, 364.128}, {4, 275.646, 544.693}, {8, 322.587, 638.575}}) {
    check_us(us(c, Collective::all_gather, kBytes, first(n)), once);
    check_us(us(c, Collective::reduce_scatter, kBytes, first(n)), once);
    check_us(us(c, Collective::all_reduce, kBytes, first(n)), twice);
  }
  check_us(us(c, Collective::all_gather, kBytes, first(2, 8)), 819.137);
}

TEST_CASE("comm_cost: the other collectives equal hand-computed times") {
  Cluster c{.devices_per_host = 4, .base_us = 5, .inside = {1, 1e6}, .across = {10, 1e5}};
  const std::vector<int> host = first(4), four_hosts = first(4, 4), two_hosts{0, 1, 4, 5};
  check_us(us(c, Collective::broadcast, 100, host), 5 + 3 * 1 + 100);
  check_us(us(c, Collective::broadcast, 100, four_hosts), 5 + 3 * 10 + 1000);
  for (const Collective pair : {Collective::exchange, Collective::send, Collective::receive})
    check_us(us(c, pair, 100, host), 5 + 1 + 100);
  check_us(us(c, Collective::barrier, 0, host), 5 + 2 * 1);
  check_us(us(c, Collective::barrier, 0, first(5)), 5 + 3 * 10);
  // A quarter goes to each other rank.
  check_us(us(c, Collective::all_to_all, 400, host), 5 + 3 * 1 + 300);
  check_us(us(c, Collective::all_to_all, 400, four_hosts), 5 + 3 * 10 + 3000);
  check_us(us(c, Collective::all_to_all, 400, two_hosts), 5 + 1 + 2 * 10 + 2000);
  c.across.bytes_per_s = 1e9;  // now the transfers within the host take longer
  check_us(us(c, Collective::all_to_all, 400, two_hosts), 5 + 1 + 2 * 10 + 100);
}

TEST_CASE("comm_cost: a tree is used where it is faster") {
  Cluster c{.devices_per_host = 64, .base_us = 5, .inside = {1, 1e6}, .across = {1, 1e6}};
  check_us(us(c, Collective::all_reduce, 8, first(64)), 5 + 2 * (63 + 8 * 63 / 64.0));
  c.trees = true;
  check_us(us(c, Collective::all_reduce, 8, first(64)), 5 + 2 * (6 + 8));
  check_us(us(c, Collective::all_reduce, 8, first(65)), 5 + 2 * (7 + 8));
  const double ring = 5 + 2 * (63 + 64000.0 * 63 / 64);
  check_us(us(c, Collective::all_reduce, 64000, first(64)), ring);
}

TEST_CASE("comm_cost: finds groups that cross hosts and costs nothing for one rank") {
  const Cluster c = reference();
  const auto crosses = [&](int world, const distributed::Degrees& d, const char* group) {
    return crosses_hosts(c, distributed::rank_lists(world, d, group)[0]);
  };
  CHECK(!crosses(16, {.tp = 8}, "tp"));
  CHECK(crosses(16, {.tp = 8}, "dp"));
  CHECK(!crosses(8, {.tp = 2}, "dp"));
  CHECK(crosses(32, {.tp = 16}, "tp"));
  CHECK(!crosses(16, {.tp = 2, .ep = 4, .etp = 1}, "ep"));
  CHECK(crosses(16, {.tp = 2, .ep = 4, .etp = 1}, "edp"));
  for (const Collective kind :
       {Collective::all_reduce, Collective::all_to_all, Collective::barrier})
    CHECK(us(c, kind, 1000, {3}) == 0);
  Cluster none = c;
  none.devices_per_host = 0;
  CHECK(test::error_of([&] {
          us(none, Collective::barrier, 0, {0, 1});
        }) ==
        "collective_us: a cluster needs devices and bandwidths above 0, got 0 per host, "
        "94167157964.8 and 20716774752.256 bytes/s");
}

TEST_CASE("comm_timeline: computation hides a collective until its wait") {
  // Called halfway through the computation and waited for there, then at the end.
  StepTimes t = play_steps({{Kind::call, 0, 0.5}, {Kind::wait, 0, 0.5}}, {30}, 100);
  CHECK(t.step_us == 130);
  CHECK(t.exposed_us[0] == 30);
  t = play_steps({{Kind::call, 0, 0.5}, {Kind::wait, 0, 1}}, {30}, 100);
  CHECK(t.step_us == 100);
  CHECK(t.exposed_us[0] == 0);
  t = play_steps({{Kind::call, 0, 0.5}, {Kind::wait, 0, 1}}, {80}, 100);
  CHECK(t.step_us == 130);
  CHECK(t.exposed_us[0] == 30);
}

TEST_CASE("comm_timeline: collectives on one lane run in order and each is charged its own time") {
  // The second collective is waited for at once, after the rest of the first one.
  const StepTimes t = play_steps(
      {{Kind::call, 0, 0.5}, {Kind::call, 1, 0.6}, {Kind::wait, 1, 0.6}, {Kind::wait, 0, 1}},
      {30, 5}, 100);
  CHECK(t.exposed_us[0] == doctest::Approx(20));
  CHECK(t.exposed_us[1] == doctest::Approx(5));
  CHECK(t.step_us == doctest::Approx(125));
}

TEST_CASE("comm_timeline: a collective on a separate lane does not wait for the others") {
  // 40 of the first one overlap with the remaining computation.
  const StepTimes t = play_steps(
      {{Kind::call, 0, 0.5}, {Kind::call, 1, 0.6}, {Kind::wait, 1, 0.6}, {Kind::wait, 0, 1}},
      {70, 5}, 100, {1, 0});
  CHECK(t.exposed_us[0] == doctest::Approx(15));
  CHECK(t.exposed_us[1] == doctest::Approx(5));
  CHECK(t.step_us == doctest::Approx(120));
}

TEST_CASE("comm_timeline: the next step waits for a collective of the previous one") {
  // 70 from the end of one step, where nothing overlaps, to 40 % of the next step.
  const StepTimes t = play_steps({{Kind::wait, 0, 0.4, true}, {Kind::call, 0, 1}}, {70}, 100);
  CHECK(t.exposed_us[0] == doctest::Approx(30));
  CHECK(t.step_us == doctest::Approx(130));
}

}  // namespace weft::bench::comm_cost_test
