// What connects the ranks of a job, counted with simulated ones.
#include <doctest/doctest.h>

#include "weft/bench/start_up.h"
#include "weft/tests/support.h"
#include "weft/train/ranks.h"

namespace weft::bench::start_up_test {
namespace {

constexpr ConnectCost kCost{.base_ms = 100, .rank_ms = 1, .hop_us = 0};

examples::GptOptions experts(int ranks) {
  examples::GptOptions o;
  o.machine.device = "meta";
  o.model.arch = nn::Arch::llama;
  o.model.layers = 2;
  o.model.heads = 8;
  o.model.dim = 32;
  o.model.seq = 16;
  o.model.vocab = 64;
  o.model.moe.experts = 8;
  o.model.moe.ffn = 16;
  o.model.moe.router.capacity_factor = 1;
  o.parallel.tp = o.parallel.ep = 8;
  o.parallel.etp = 1;
  o.parallel.sp = o.parallel.zero = true;
  o.parallel.dp = ranks / 8;
  o.batch = o.parallel.dp;
  return o;
}

}  // namespace

TEST_CASE("start_up: a step makes four communicators for any number of ranks") {
  for (const int ranks : {8, 64, 1024, 4096}) {
    const StartUp s = start_up(experts(ranks), kCost);
    CHECK(s.communicators == (ranks == 8 ? 2 : 4));
    CHECK(s.one_by_one == s.communicators);
    CHECK(s.seconds == doctest::Approx(s.communicators * (0.1 + 1e-3 * ranks)));
  }
}

TEST_CASE("start_up: connecting each list of a mesh takes thousands of steps") {
  const auto eager = [](int ranks) {
    return eager_start_up(ranks, train::degrees_of(experts(ranks)), kCost);
  };
  CHECK(eager(64).communicators == 16);
  CHECK(eager(64).one_by_one == 338);
  CHECK(eager(1024).one_by_one == 5018);
  CHECK(eager(4096).one_by_one == 19994);
  // Each list 0.1 s, and each rank 1 ms for each of the sixteen lists that name it.
  CHECK(eager(64).seconds == doctest::Approx(33.8 + 64 * 16 * 1e-3));
}

}  // namespace weft::bench::start_up_test
