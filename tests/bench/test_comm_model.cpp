// Compares simulated ranks with real ones: the same collectives in a training step, with the same
// bytes and the same memory.
#include <doctest/doctest.h>

#include <map>

#include "weft/bench/comm_layouts.h"
#include "weft/bench/comm_trace.h"
#include "weft/core/allocator.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/message_world.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::bench::comm_model_test {
namespace {

using distributed::FlightEntry;
using distributed::World;

struct Sent {
  std::int64_t calls = 0, bytes = 0;
  bool operator==(const Sent&) const = default;
};
using ByGroup = std::map<std::string, Sent>;

ByGroup by_group(const std::vector<FlightEntry>& entries) {
  ByGroup sums;
  for (const FlightEntry& e : entries) {
    Sent& s = sums[message("{} {}", e.group, distributed::name(e.kind))];
    ++s.calls;
    s.bytes += e.bytes_sent;
  }
  return sums;
}

std::string text(const ByGroup& sums) {
  std::string out;
  for (const auto& [name, s] : sums)
    out += message("{}: {} calls, {} bytes\n", name, s.calls, s.bytes);
  return out;
}

std::int64_t bytes_of(const ByGroup& sums) {
  std::int64_t total = 0;
  for (const auto& [name, s] : sums) total += s.bytes;
  return total;
}

// The bytes that this rank has sent, counted by the backend as it moves tensors.
std::int64_t moved(const World& w) {
  return std::string(w.backend()) == "mpi" ? distributed::bytes_moved(w) : w.stats().bytes_sent;
}

examples::GptOptions small() {
  examples::GptOptions o;
  o.model.layers = 2;
  o.model.heads = 4;
  o.model.dim = 32;
  o.model.seq = 16;
  o.model.vocab = 67;
  o.batch = 8;
  o.machine.threads = 1;
  return o;
}

// With a capacity each expert gets the same number of rows for any data.
examples::GptOptions experts() {
  examples::GptOptions o = small();
  o.model.arch = nn::Arch::llama;
  o.model.moe.experts = 4;
  o.model.moe.ffn = 16;
  o.model.moe.shared_ffn = 16;
  o.model.moe.router.route.score = RouterScore::sigmoid;
  o.balance.aux = examples::Aux::bias;
  o.model.moe.router.capacity_factor = 1.25;
  return o;
}

data::Batch batch(const examples::GptOptions& o, std::int64_t rows, Device device) {
  const Shape shape{rows, o.model.seq};
  if (device.is_meta())
    return {Tensor::empty(shape, DType::i32, device), Tensor::empty(shape, DType::i32, device)};
  return {Tensor::full(shape, 3, DType::i32), Tensor::full(shape, 5, DType::i32)};
}

struct Step {
  ByGroup sums;
  std::map<std::string, std::int64_t> by_axis;
  std::int64_t by_lane[distributed::kLanes] = {};
  std::int64_t moved = 0, peak_bytes = 0;
  std::int64_t host_bytes = 0;  ///< of a plan: tables of experts' rows, on the host on any device
};

Step second_step(World& w, const examples::GptOptions& o, Device device) {
  const std::int64_t host = memory_stats(kCpu).live_bytes;
  const train::Ranks ranks(w, o);
  examples::GptStep gpt(o, ranks);
  const data::Batch rows = batch(o, ranks.rows(), device);
  gpt.step(1, rows);
  gpt.step.optimizer().wait();
  Step s;
  const auto count = [&](std::int64_t sign) {
    for (int lane = 0; lane < distributed::kLanes; ++lane)
      s.by_lane[lane] += sign * w.stats(static_cast<distributed::Lane>(lane)).bytes_sent;
    s.moved += sign * moved(w);
  };
  count(-1);
  const std::vector<FlightEntry> entries = record_step(w, gpt.step, 2, rows);
  gpt.step.optimizer().wait();
  count(1);
  s.sums = by_group(entries);
  s.by_axis = bytes_by_axis(entries);
  s.peak_bytes = memory_stats(device).peak_bytes;
  if (device.is_meta()) s.host_bytes = memory_stats(kCpu).live_bytes - host;
  return s;
}

// Each rank compares itself with its plan.
void check_layout(World& w, const std::string& what, examples::GptOptions o) {
  const Step real = second_step(w, o, kCpu);
  const std::int64_t stays = memory_stats(kCpu).live_bytes;
  CAPTURE(what);
  CAPTURE(w.size());
  CAPTURE(w.rank());
  o.machine.device = "meta";
  o.parallel.rank = w.rank();
  const auto plan = distributed::fake_world(w.rank(), w.size());
  const Step planned = second_step(*plan, o, kMeta);
  CHECK_MESSAGE(planned.sums == real.sums,
                message("planned:\n{}moved:\n{}", text(planned.sums), text(real.sums)));
  CHECK(bytes_of(planned.sums) == real.moved);
  CHECK(planned.by_axis == real.by_axis);
  for (int lane = 0; lane < distributed::kLanes; ++lane)
    CHECK(planned.by_lane[lane] == real.by_lane[lane]);
  CHECK(bytes_of(real.sums) > 0);
  CHECK(examples::predict_peak_bytes(o, w.size(), w.rank()) ==
        planned.peak_bytes + planned.host_bytes);
  // Threads share one process and its memory. The difference is the backend's own memory.
  if (std::string(w.backend()) == "mpi")
    CHECK(real.peak_bytes - stays == planned.peak_bytes + planned.host_bytes);
}

// The layouts of bench_comm_model --layouts.
void check_eight(World& w) {
  for (const bool zero : {false, true}) {
    examples::GptOptions o = small();
    o.parallel.zero = zero;
    check_layout(w, "dp", o);
    o.parallel.tp = 4;
    check_layout(w, "tp 4", o);
    o = experts();
    o.parallel.zero = zero;
    o.parallel.ep = 4;
    check_layout(w, "ep 4", o);
  }
  examples::GptOptions o = small();
  o.parallel.fsdp = true;
  check_layout(w, "dp, fsdp", o);
  o = experts();
  o.parallel.fsdp = true;
  o.parallel.ep = 4;
  check_layout(w, "ep 4, fsdp", o);
  o = experts();
  o.parallel.zero = o.parallel.sp = true;
  o.parallel.tp = 2;
  o.parallel.ep = 4;
  o.parallel.etp = 1;
  check_layout(w, "tp 2, sp, ep 4, zero", o);
}

}  // namespace

TEST_CASE("comm_model: bytes by group equal the bytes that ranks move") {
  test::distributed_test({2, 4, 8}, [](World& w) {
    if (w.size() == 8) return check_eight(w);
    for (const bool zero : {false, true}) {
      const std::string with = zero ? ", zero" : "";
      examples::GptOptions o = small();
      o.parallel.zero = zero;
      check_layout(w, "dp" + with, o);
      o.parallel.bucket_size = 5000;
      check_layout(w, "dp, more buckets" + with, o);
      o.parallel.bucket_size = 0;
      o.batch = 16;
      o.micro_batch = 2;
      check_layout(w, "dp, micro-batches" + with, o);
      o = small();
      o.parallel.zero = zero;
      for (const std::int64_t tp : {2, 4}) {
        if (tp > w.size()) continue;
        o.parallel.tp = tp;
        o.parallel.sp = false;
        check_layout(w, message("tp {}{}", tp, with), o);
        o.parallel.sp = true;
        check_layout(w, message("tp {} sp{}", tp, with), o);
      }
      o = experts();
      o.parallel.zero = zero;
      o.parallel.tp = w.size();
      o.parallel.sp = true;
      check_layout(w, message("tp {} sp, capacity{}", w.size(), with), o);
      o.parallel.tp = 1;
      o.parallel.sp = false;
      o.parallel.ep = w.size();
      check_layout(w, "ep" + with, o);
      o.parallel.ep = 2;
      o.model.mtp.depths = 1;
      check_layout(w, "ep 2, mtp" + with, o);
      if (w.size() < 4) continue;
      o.parallel.tp = 2;
      o.parallel.sp = true;
      check_layout(w, "tp 2 sp ep 2, mtp" + with, o);
    }
  });
}

TEST_CASE("comm_model: --bucket-size sets the number of gradient buckets") {
  examples::GptOptions o = small();
  o.machine.device = "meta";
  o.parallel.dp = 2;
  for (const bool every : {false, true}) {
    o.parallel.bucket_size = every ? 1 : 0;
    const auto world = distributed::fake_world(0, 2);
    const train::Ranks ranks(*world, o);
    examples::GptStep gpt(o, ranks);
    CHECK(gpt.step.optimizer().ddp()->buckets().size() ==
          (every ? gpt.gpt.model.parameters().size() : 1));
  }
}

TEST_CASE("comm_model: a recorder that is too short is an error") {
  examples::GptOptions o = small();
  o.machine.device = "meta";
  o.parallel.dp = 2;
  const auto world = distributed::fake_world(0, 2, {.recorded = 1});
  const train::Ranks ranks(*world, o);
  examples::GptStep gpt(o, ranks);
  CHECK(test::error_of([&] { record_step(*world, gpt.step, 1, batch(o, ranks.rows(), kMeta)); }) ==
        "record_step: the step made 3 collectives, but the world keeps 1");
}

TEST_CASE("comm_model: a step of many ranks") {
  examples::GptOptions o = small();
  o.machine.device = "meta";
  o.model.arch = nn::Arch::llama;
  o.parallel.dp = 64;
  o.parallel.tp = 2;
  o.parallel.sp = true;
  o.parallel.zero = true;
  o.batch = 256;
  o.micro_batch = 2;
  const StepTrace trace = trace_step(o);
  CHECK(trace.tokens == 256 * 16);
  CHECK(trace.groups.at("tp") == std::vector<int>{0, 1});
  CHECK(trace.groups.at("dp_cp").size() == 64);
  CHECK(trace.groups.at("world").size() == 128);
  CHECK(trace.flops == doctest::Approx(o.gpt().flops_per_token() * 4096 / 128));
  CHECK(trace.phases.size() == trace.calls.size());
  // Computation progresses from event to event until its end.
  double last = 0;
  int waits = 0, calls = 0;
  for (const StepEvent& e : trace.events) {
    CHECK(e.share >= last);
    last = e.share;
    e.kind == StepEvent::Kind::call ? ++calls : ++waits;
  }
  CHECK(last == 1);
  CHECK(calls == static_cast<int>(trace.calls.size()));
  CHECK(waits == calls);
  // Two micro-batches; a dense layer gathers and scatters twice in each direction.
  std::map<train::Phase, int> of_tp, of_dp;
  for (std::size_t i = 0; i < trace.calls.size(); ++i)
    ++(trace.calls[i].group == std::string("tp") ? of_tp : of_dp)[trace.phases[i]];
  CHECK(of_tp[train::Phase::forward] > 2 * 4 * 2);
  CHECK(of_tp[train::Phase::backward] > 2 * 4 * 2);
  CHECK(of_dp[train::Phase::forward] == 0);
  CHECK(of_dp[train::Phase::backward] > 0);
  // With free links the step only computes; with slow links it waits for every collective.
  std::vector<double> us(trace.calls.size(), 0.0);
  CHECK(play_steps(trace.events, us, 100).step_us == doctest::Approx(100));
  us.assign(us.size(), 1e6);
  CHECK(play_steps(trace.events, us, 100).step_us >= 1e6 * static_cast<double>(us.size() - 2));
}

TEST_CASE("comm_model: one rank has no collectives") {
  examples::GptOptions o = small();
  o.machine.device = "meta";
  o.parallel.dp = 1;
  CHECK(test::error_of([&] { trace_step(o); }) ==
        "--dp, --tp, --ranks: must be at least 2 ranks, which have collectives, got 1");
}

}  // namespace weft::bench::comm_model_test
