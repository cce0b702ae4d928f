// Estimates a training step on a cluster: the collectives of one rank's step, recorded on the meta
// device, with the costs of a link model. See docs/comm_model.md.
#include <map>

#include "weft/bench/comm_estimate.h"
#include "weft/bench/comm_layouts.h"
#include "weft/bench/comm_trace.h"
#include "weft/bench/harness.h"
#include "weft/bench/start_up.h"
#include "weft/distributed/comm_cost.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/train/command_line.h"

namespace weft::bench {
namespace {

using distributed::Cluster, distributed::FlightEntry;

struct Settings {
  std::string cluster = "h100-8", json;
  std::int64_t devices = 8;
  double base_us = 6.6, hop_us = 0.6, hop_across_us = 2.7;
  double inside = 0, across = 0;  // 1e9 bytes/s
  std::int64_t lanes = distributed::kLanes;
  bool trees = false, start_up = false, layouts = false;
  ConnectCost connect;
  double tflops = 0, utilisation = 0.4;
};

// Rates by the vendors' data, and latencies of the cost model of PyTorch's DTensor: assumptions.
void apply_cluster(const std::string& name, Settings& s) {
  const bool h100 = name == "h100-8";
  check(h100 || name == "a100-8", "--cluster: must be one of h100-8, a100-8, got '{}'", name);
  s.inside = h100 ? 450 : 300;
  s.across = h100 ? 50 : 25;
  s.tflops = h100 ? 989 : 312;
}

// Returns false when --help was printed.
bool parse(std::vector<std::string> args, Settings& s) {
  apply_cluster(s.cluster, s);
  constexpr std::string_view kJoined = "--cluster=";
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with(kJoined)) apply_cluster(args[i].substr(kJoined.size()), s);
    if (args[i] == "--cluster" && i + 1 < args.size()) apply_cluster(args[i + 1], s);
  }
  train::CommandLine line(
      "Estimates a training step on a cluster: bench_comm_model [these flags] -- [flags of "
      "train_gpt]\nThe ranks are --dp times --tp. All defaults are assumptions: enter the rates "
      "of your machines.",
      "bench_comm_model");
  line.add("--cluster", s.cluster,
           "h100-8 or a100-8: hosts of 8 GPUs, NVLink inside, one InfiniBand port per GPU; "
           "sets the defaults below to the vendors' rates");
  line.add("--devices-per-host", s.devices, "devices that share a host");
  line.add("--inside", s.inside, "1e9 bytes/s that a device sends inside its host");
  line.add("--across", s.across, "1e9 bytes/s that a device sends to other hosts");
  line.add("--base-us", s.base_us, "microseconds before a collective begins");
  line.add("--hop-us", s.hop_us, "microseconds of a message inside a host");
  line.add("--hop-across-us", s.hop_across_us, "microseconds of a message across hosts");
  line.add("--trees", s.trees, "all_reduce by a tree where that is faster than a ring");
  line.add("--lanes", s.lanes,
           "as train_gpt's: 1 to 3 queues of collectives, which overlap, each with the full "
           "bandwidth");
  line.add("--layouts", s.layouts,
           "print memory, bytes and time of a dense model of 7B and one of 16 experts of 1B, in "
           "several layouts on 8 to 4096 ranks; flags of train_gpt change all of them");
  line.add(
      "--start-up", s.start_up,
      "print what connects 8 to 4096 ranks and a prediction of the time, with --dp as large as "
      "needed, and no step");
  line.add("--connect-ms", s.connect.base_ms, "milliseconds of a communicator's creation");
  line.add("--connect-rank-ms", s.connect.rank_ms, "the same for each of its ranks");
  line.add("--tflops", s.tflops, "1e12 operations/s of a device at its peak (bf16, dense)");
  line.add("--utilisation", s.utilisation, "fraction of the peak that compute alone reaches");
  line.add("--json", s.json, "file for the rows");
  if (!line.parse(std::move(args))) return false;
  check(s.devices >= 1 && s.devices <= 1 << 20, "--devices-per-host: must be at least 1, got {}",
        s.devices);
  check(s.lanes >= 1 && s.lanes <= distributed::kLanes, "--lanes: must be in [1, {}], got {}",
        distributed::kLanes, s.lanes);
  for (const auto& [flag, value] : {std::pair{"--inside", s.inside},
                                    {"--across", s.across},
                                    {"--tflops", s.tflops},
                                    {"--utilisation", s.utilisation}})
    check(value > 0, "{}: must be above 0, got {}", flag, value);
  for (const auto& [flag, value] : {std::pair{"--base-us", s.base_us},
                                    {"--hop-us", s.hop_us},
                                    {"--hop-across-us", s.hop_across_us},
                                    {"--connect-ms", s.connect.base_ms},
                                    {"--connect-rank-ms", s.connect.rank_ms}})
    check(value >= 0, "{}: must be at least 0, got {}", flag, value);
  check(!s.start_up || s.json.empty(), "--json: needs a step or --layouts, not --start-up");
  check(!s.start_up || !s.layouts, "--layouts: prints a table of its own; remove --start-up");
  check(s.utilisation <= 1, "--utilisation: must be at most 1, got {}", s.utilisation);
  return true;
}

void print_start_up(Settings s, examples::GptOptions options) {
  s.connect.hop_us = s.hop_across_us;
  std::printf("%-6s | %28s | %28s\n%-6s | %9s %9s %8s | %9s %9s %8s\n", "", "each list when made",
              "as Weft does", "ranks", "a rank", "in a row", "seconds", "a rank", "in a row",
              "seconds");
  for (const int ranks : {8, 64, 512, 1024, 4096}) {
    const std::int64_t tp = options.parallel.tp,
                       etp = options.parallel.etp ? options.parallel.etp : tp;
    if (ranks % tp != 0 || ranks % (options.parallel.ep * etp) != 0) continue;
    options.parallel.dp = ranks / options.parallel.tp;
    options.batch = options.parallel.dp * std::max<std::int64_t>(options.micro_batch, 1);
    const StartUp eager = eager_start_up(ranks, train::degrees_of(options), s.connect),
                  own = start_up(options, s.connect);
    std::printf("%-6d | %9d %9lld %8.1f | %9d %9lld %8.1f\n", ranks, eager.communicators,
                static_cast<long long>(eager.one_by_one), eager.seconds, own.communicators,
                static_cast<long long>(own.one_by_one), own.seconds);
  }
}

struct Total {
  std::int64_t calls = 0, bytes = 0;
  double us = 0, exposed_us = 0;
};

Cluster cluster_of(const Settings& s) {
  return {.devices_per_host = static_cast<int>(s.devices),
          .base_us = s.base_us,
          .inside = {s.hop_us, 1e9 * s.inside},
          .across = {s.hop_across_us, 1e9 * s.across},
          .trees = s.trees};
}

void estimate(const Settings& s, const examples::GptOptions& options) {
  const Cluster cluster = cluster_of(s);
  const StepTrace trace = trace_step(options);
  const Estimate estimate(trace, cluster, s.tflops * s.utilisation);
  const std::vector<double>& us = estimate.collectives_us();
  const double compute_us = estimate.compute_us();
  const StepTimes times = estimate.times(static_cast<int>(s.lanes));

  std::map<std::pair<std::string, std::string>, Total> totals;
  for (std::size_t i = 0; i < us.size(); ++i) {
    const FlightEntry& e = trace.calls[i];
    if (trace.groups.at(e.group).size() == 1) continue;
    Total& t = totals[{e.group, name(e.kind)}];
    ++t.calls;
    t.bytes += e.bytes_sent;
    t.us += us[i];
    t.exposed_us += times.exposed_us[i];
  }
  std::vector<std::string> no_flags{"bench_comm_model"};
  if (!s.json.empty()) no_flags.insert(no_flags.end(), {"--json", s.json});
  std::vector<char*> argv;
  for (std::string& a : no_flags) argv.push_back(a.data());
  Report report(static_cast<int>(argv.size()), argv.data());
  std::printf("%-8s %5s %-6s %-14s %7s %12s %12s %12s\n", "group", "ranks", "link", "kind", "calls",
              "MB sent", "us", "exposed us");
  for (const auto& [key, t] : totals) {
    const auto& [group, kind] = key;
    const std::vector<int>& ranks = trace.groups.at(group);
    std::printf("%-8s %5zu %-6s %-14s %7lld %12.3f %12.1f %12.1f\n", group.c_str(), ranks.size(),
                crosses_hosts(cluster, ranks) ? "across" : "inside", kind.c_str(),
                static_cast<long long>(t.calls), 1e-6 * static_cast<double>(t.bytes), t.us,
                t.exposed_us);
    const std::string what = group + " " + kind;
    report.add(what + ": calls", static_cast<double>(t.calls), "");
    report.add(what + ": sent", static_cast<double>(t.bytes), "B");
    report.add(what + ": takes", t.us, "us");
    report.add(what + ": exposed", t.exposed_us, "us");
  }
  const double exposed_us = times.all_exposed_us();
  const int ranks = train::ranks_of(options);
  const double rate = static_cast<double>(trace.tokens) / (1e-6 * times.step_us);
  report.row("ranks", ranks, "");
  report.row("compute", 1e-3 * compute_us, "ms");
  report.row("exposed communication", 1e-3 * exposed_us, "ms");
  report.row("exposed with one lane", 1e-3 * estimate.times(1).all_exposed_us(), "ms");
  report.row("step", 1e-3 * times.step_us, "ms");
  report.row("share of the step", 100 * exposed_us / times.step_us, "%");
  report.row("rate", rate, "tokens/s");
  report.row("rate of a device", rate / ranks, "tokens/s");
  check(report.finish() == 0, "--json: cannot write {}", s.json);
}

int run(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto split = std::find(args.begin(), args.end(), "--");
  Settings settings;
  if (!parse({args.begin(), split}, settings)) return 0;
  examples::GptOptions options;
  options.program = "bench_comm_model";
  options.machine.device = "meta";
  std::vector<char*> rest{argv[0]};
  for (auto a = split; a != args.end(); ++a)
    if (a != split) rest.push_back(argv[1 + (a - args.begin())]);
  if (!examples::parse(options, static_cast<int>(rest.size()), rest.data())) return 0;
  check(options.machine.device == "meta", "--device: must be meta, got {}", options.machine.device);
  if (options.model.vocab == 0) options.model.vocab = 256;
  options.gpt().validate();
  if (settings.layouts)
    print_layouts(cluster_of(settings), settings.tflops * settings.utilisation,
                  static_cast<int>(settings.lanes), {rest.begin() + 1, rest.end()}, settings.json);
  else if (settings.start_up)
    print_start_up(settings, options);
  else
    estimate(settings, options);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) try {
  return weft::bench::run(argc, argv);
} catch (const weft::Error& e) {
  return weft::bench::failed(argv[0], e);
}
