#include "weft/bench/comm_layouts.h"

#include <cstdio>
#include <sstream>

#include "weft/bench/comm_estimate.h"
#include "weft/bench/harness.h"
#include "weft/examples/common/gpt_task.h"

namespace weft::bench {
namespace {

using Words = std::vector<std::string>;

struct Layout {
  const char *name, *flags;
};
struct Model {
  const char *name, *flags;
  std::vector<Layout> layouts;
};

// A layout is a row of this table: its flags of train_gpt, without --dp, which follows from the
// number of ranks.
const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"dense 7B",
       "--arch llama --dtype bf16 --layers 32 --dim 4096 --heads 32 --ffn 11008 --seq 4096 --vocab "
       "32000 --recompute full",
       {{"dp", ""},
        {"dp, zero", "--zero"},
        {"dp, fsdp", "--fsdp"},
        {"tp 8", "--tp 8"},
        {"tp 8, sp, zero", "--tp 8 --sp --zero"}}},
      {"16 x 1B",
       "--arch llama --dtype bf16 --layers 16 --dim 2048 --heads 16 --ffn 10240 --seq 4096 --vocab "
       "32000 --experts 16 --topk 2 --expert-ffn 10240 --capacity 1.25 --recompute full",
       {{"dp, zero", "--zero"},
        {"ep 8", "--ep 8"},
        {"ep 8, zero", "--ep 8 --zero"},
        {"ep 8, fsdp", "--ep 8 --fsdp"},
        {"tp 4, sp, ep 8, zero", "--tp 4 --sp --ep 8 --etp 1 --zero"}}},
  };
  return all;
}

Words words_of(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

examples::GptOptions options_of(const Model& model, const Layout& layout, int ranks,
                                const Words& more) {
  Words words{"bench_comm_model", "--device", "meta"};
  const std::string size = message("--batch {} --micro-batch 1", ranks);
  for (const Words& list : {words_of(model.flags), words_of(layout.flags), words_of(size), more})
    words.insert(words.end(), list.begin(), list.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  examples::GptOptions options;
  options.program = "bench_comm_model";
  check(examples::parse(options, static_cast<int>(argv.size()), argv.data()),
        "--layouts: prints a table, not --help");
  options.parallel.dp = ranks / options.parallel.tp;
  options.gpt().validate();
  return options;
}

bool fits(const examples::GptOptions& o, int ranks) {
  const std::int64_t etp = o.parallel.etp ? o.parallel.etp : o.parallel.tp;
  return ranks % o.parallel.tp == 0 && ranks % (o.parallel.ep * etp) == 0;
}

std::string axis_of(const std::string& group) {
  if (group == "edp" || group.starts_with("dp")) return "dp";
  if (group.find("ep") != std::string::npos) return "ep";
  if (group.starts_with("tp") || group.starts_with("etp")) return "tp";
  return group == "mp" ? "tp" : group;
}

}  // namespace

std::map<std::string, std::int64_t> bytes_by_axis(
    const std::vector<distributed::FlightEntry>& step) {
  std::map<std::string, std::int64_t> bytes;
  for (const distributed::FlightEntry& e : step) bytes[axis_of(e.group)] += e.bytes_sent;
  return bytes;
}

void print_layouts(const distributed::Cluster& cluster, double tflops, int lanes,
                   const Words& flags, const std::string& json) {
  std::vector<Row> rows;
  for (const Model& model : models()) {
    std::printf("%s\n%5s  %-21s %9s | %8s %8s %8s MB sent | %9s | exposed ms: %8s %8s\n",
                model.name, "ranks", "layout", "GB a rank", "dp", "tp", "ep", "compute", "1 lane",
                message("{} lanes", lanes).c_str());
    for (const int ranks : {8, 64, 512, 4096})
      for (const Layout& layout : model.layouts) {
        const examples::GptOptions options = options_of(model, layout, ranks, flags);
        if (!fits(options, ranks)) continue;
        const StepTrace trace = trace_step(options);
        const Estimate estimate(trace, cluster, tflops);
        const double memory = static_cast<double>(examples::predict_peak_bytes(options, ranks, 0));
        const double one = estimate.times(1).all_exposed_us(),
                     several = estimate.times(lanes).all_exposed_us();
        std::map<std::string, std::int64_t> bytes = bytes_by_axis(trace.calls);
        const auto sent = [&](const char* axis) { return 1e-6 * static_cast<double>(bytes[axis]); };
        std::printf(
            "%5d  %-21s %9.2f | %8.0f %8.0f %8.0f         | %9.1f |             %8.1f %8.1f\n",
            ranks, layout.name, 1e-9 * memory, sent("dp"), sent("tp"), sent("ep"),
            1e-3 * estimate.compute_us(), 1e-3 * one, 1e-3 * several);
        const std::string what = message("{}, {} ranks, {}: ", model.name, ranks, layout.name);
        rows.push_back({what + "memory of a rank", memory, "B"});
        for (const auto& [axis, n] : bytes)
          rows.push_back({what + "sent along " + axis, static_cast<double>(n), "B"});
        rows.push_back({what + "compute", estimate.compute_us(), "us"});
        rows.push_back({what + "exposed, 1 lane", one, "us"});
        rows.push_back({what + message("exposed, {} lanes", lanes), several, "us"});
      }
  }
  if (json.empty()) return;
  std::string program = "bench_comm_model", flag = "--json", file = json;
  char* argv[] = {program.data(), flag.data(), file.data()};
  Report report(3, argv);
  for (const Row& row : rows) report.add(row.name, row.value, row.unit);
  check(report.finish() == 0, "--json: cannot write {}", json);
}

}  // namespace weft::bench
