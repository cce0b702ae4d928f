// Changes of the options that save memory: what each saves and costs, and the cheapest that fits.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/core/fields.h"
#include "weft/examples/common/gpt_plan.h"
#include "weft/tests/memory_plan_support.h"
#include "weft/tests/support.h"

namespace weft::examples::memory_plan_test {
using train::MemoryPlan;

TEST_CASE("memory plan: what changes save and cost") {
  GptOptions o = small();
  o.machine.device = "meta";
  o.model.dim = 64;
  o.model.layers = 4;
  o.model.seq = 64;
  const MemoryPlan now = plan_memory(o);
  std::vector<std::string> flags;
  for (const Alternative& a : alternatives(o, now, {})) {
    flags.push_back(a.flags);
    if (a.flags == "--recompute full") {
      CHECK(a.plan.peak.total() < now.peak.total());
      CHECK(a.plan.flops > 1.2 * now.flops);
      CHECK(a.cost_s > 0);
      CHECK(!a.rounds);
    }
    if (a.flags == "--tp 2 --dp 1") CHECK(a.plan.bytes_sent > 0);
    if (a.flags == "--dtype bf16") CHECK(a.rounds);
  }
  CHECK(flags == std::vector<std::string>{
                     "--micro-batch 2", "--recompute selective", "--recompute full",
                     "--offload activations", "--offload states", "--offload activations,states",
                     "--tp 2 --dp 1", "--dtype bf16", "--dtype fp8", "--state-dtype bf16",
                     "--state-dtype f16", "--state-dtype fp8"});
  CHECK(cheapest_fit(o, now, {}, now.peak.total()).flags.empty());
  const std::int64_t little_less = now.peak.total() - 1;
  CHECK(cheapest_fit(o, now, {}, little_less).flags == "--micro-batch 2");
  CHECK(cheapest_fit(o, now, {}, now.peak.total() * 13 / 20).flags == "--recompute full");
  // A change that doubles or halves may come twice, and its last value is shown. More ranks would
  // be one change.
  o.model.recompute = nn::Recompute::full;
  o.offload.what = value_of(train::kOffloadWords, "activations,states", "--offload");
  const MemoryPlan full = plan_memory(o);
  o.micro_batch = 1;
  const std::int64_t least = plan_memory(o).peak.total();
  o.micro_batch = 0;
  const Alternative twice = cheapest_fit(o, full, {}, least);
  CHECK(twice.flags == "--micro-batch 1");
  CHECK(twice.plan.peak.total() == least);
  CHECK(cheapest_fit(o, full, {}, least - 1).flags != "--micro-batch 1");
  CHECK(test::error_of([&] { cheapest_fit(o, now, {}, 1000); }) ==
        message("--fit: no 3 changes together bring {} bytes down to 1000", now.peak.total()));
}

TEST_CASE("memory plan: what offload saves and moves") {
  GptOptions o = small();
  o.machine.device = "meta";
  o.model.dim = 256;
  o.model.seq = 512;
  o.model.layers = 4;
  const MemoryPlan now = plan_memory(o);
  CHECK(now.bytes_offloaded == 0);
  const Rates rates{.tflops = 1, .link = 1, .host = 4};
  const std::vector<Alternative> all = alternatives(o, now, rates);
  const auto row = [&](const std::string& flags) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.flags == flags; });
    REQUIRE(found != all.end());
    CHECK(!found->rounds);
    CHECK(found->plan.flops == now.flops);
    CHECK(std::abs(found->cost_s - static_cast<double>(found->plan.bytes_offloaded) / 4e9) < 1e-9);
    return found->plan;
  };
  const MemoryPlan activations = row("--offload activations"), states = row("--offload states"),
                   both = row("--offload activations,states");
  // m and v are read and written; what blocks keep goes once and comes back once.
  CHECK(states.bytes_offloaded == 2 * 8 * now.parameters);
  CHECK(now.peak.by_category[kOptimizer] - states.peak.by_category[kOptimizer] ==
        2 * tensors_of(o, 4));
  CHECK(activations.peak.total() < now.peak.total() * 3 / 4);
  CHECK(activations.bytes_offloaded / 2 > now.peak.total() - activations.peak.total());
  CHECK(both.bytes_offloaded == activations.bytes_offloaded + states.bytes_offloaded);
  CHECK(both.peak.total() < std::min(activations.peak.total(), states.peak.total()));
  // Micro-batches of which the plan runs a part.
  o.batch = 32;
  o.micro_batch = 4;
  o.offload.what = train::OffloadWhat::activations;
  const MemoryPlan many = plan_memory(o);
  CHECK(many.bytes_offloaded == 8 * activations.bytes_offloaded);
  // One that is on already is not offered; the other is added to it.
  std::vector<std::string> flags;
  for (const Alternative& a : alternatives(o, many, rates))
    if (a.flags.starts_with("--offload")) flags.push_back(a.flags);
  CHECK(flags == std::vector<std::string>{"--offload activations,states"});
  // A GPU's states go to the host and come back.
  o.machine.device = "meta:cuda";
  o.offload.what = train::OffloadWhat::states;
  CHECK(plan_memory(o).bytes_offloaded == 2 * 8 * now.parameters);
}

TEST_CASE("memory plan: sizes of memory") {
  CHECK(parse_bytes("--fit", "24GiB") == std::int64_t{24} << 30);
  CHECK(parse_bytes("--fit", "80GB") == 80'000'000'000);
  CHECK(parse_bytes("--fit", "1.5kB") == 1500);
  CHECK(parse_bytes("--fit", "512") == 512);
  for (const char* bad : {"", "GiB", "-1GB", "24 GiB", "24gb", "nan", "1e30TB"})
    CHECK(test::error_of([&] { parse_bytes("--fit", bad); }) ==
          message("--fit: must be a size such as 24GiB or 80GB, got '{}'", bad));
}

}  // namespace weft::examples::memory_plan_test
