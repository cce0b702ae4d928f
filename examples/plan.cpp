// Says where the memory of a training step goes, and what would take less: plan --preset gpt2-124m
// --device cuda --fit 24GiB. It takes the flags of train_gpt, and with --moe first those of
// train_moe; it needs neither the data nor the machine.
#include <cstdio>
#include <cstdlib>

#include "weft/core/error.h"
#include "weft/examples/common/gpt_plan.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/file.h"
#include "weft/io/memory_plot.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"
#include "weft/train/terminal.h"

using namespace weft;
using examples::Alternative;
using examples::GptOptions;
using train::byte_count;
using train::formatted;
using train::MemoryPlan;
using train::print_fact;

namespace {

struct PlanOptions {
  bool moe = false;
  std::string fit, json, svg;
  examples::Rates rates;
};

// A plan needs no such device.
void plan_on_meta(std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool joined = words[i].starts_with("--device=");
    if (!joined && (words[i] != "--device" || i + 1 == words.size())) continue;
    std::string& word = joined ? words[i] : words[i + 1];
    const std::string name = joined ? word.substr(9) : word;
    const Device device = Device::parse(name);
    word = (joined ? "--device=" : "") + std::string(device.is_gpu() ? "meta:cuda" : "meta");
  }
}

void adapt(GptOptions& o, std::vector<std::string>& words) {
  if (train::switched_on(words, "--moe")) {
    GptOptions moe = examples::moe_defaults();
    moe.program = o.program;
    moe.machine.device = o.machine.device;
    o = std::move(moe);
  }
  plan_on_meta(words);
}

examples::ProgramLine program_line(PlanOptions& p) {
  return {
      .what =
          "Plans the memory of a training step: where it goes, and what would take less. Flags "
          "are those of train_gpt.",
      .examples = {"plan --preset gpt2-124m --device cuda --dtype bf16 --fit 24GiB",
                   "plan --moe --preset small --dp 4 --ep 2 --zero --svg memory.svg",
                   "plan --preset llama-1b --device cuda --dp 8 --tp 2 --rank 5 --json plan.json",
                   "plan --init Llama-3.1-8B --seq 4096 --device cuda --dtype bf16 --dp 8 --fsdp"},
      .more_flags =
          [&p](train::CommandLine& line) {
            line.add("--moe", p.moe, "begin with the options of train_moe", "Plan");
            line.add("--fit", p.fit, "find the cheapest changes that fit: 24GiB, 80GB", "Plan");
            line.add("--json", p.json, "file for all numbers", "Plan");
            line.add("--svg", p.svg, "picture of the live bytes over the step", "Plan");
            line.add("--tflops", p.rates.tflops,
                     "10^12 FLOP/s that a rank reaches, an assumption for costs", "Plan");
            line.add("--link", p.rates.link,
                     "10^9 bytes/s that a rank sends, an assumption for costs", "Plan");
            line.add("--host-link", p.rates.host,
                     "10^9 bytes/s that a rank offloads, an assumption for costs", "Plan");
          },
      .adapt = adapt,
      .plans = true};
}

// "-1.2 MB", "0".
std::string difference(std::int64_t bytes, const char* plus) {
  return bytes == 0 ? "0" : (bytes < 0 ? "-" : plus) + train::short_byte_count(std::abs(bytes));
}

void print_step(const GptOptions& o, const MemoryPlan& plan) {
  print_fact(
      "parameters",
      message("{} of this rank, {} in all", train::with_separators(plan.parameters),
              train::with_separators(o.gpt().parameter_count() + examples::adapter_parameters(o))));
  print_fact("rank",
             message("{} of {}, {} micro-batches", plan.rank, plan.ranks, plan.micro_batches));
  print_fact("peak memory",
             message("{} of tensors on {}", byte_count(static_cast<double>(plan.peak.total())),
                     plan.device.is_gpu() ? "the GPU" : "the CPU"));
  if (plan.bytes_copied)
    print_fact("checkpoint", message("{} more of the host's memory while one is written; none with "
                                     "--async-save off",
                                     byte_count(static_cast<double>(plan.bytes_copied))));
  print_fact("work", message("{} TFLOP a step, {} sent{}", formatted("%.4g", plan.flops * 1e-12),
                             byte_count(static_cast<double>(plan.bytes_sent)),
                             plan.bytes_offloaded
                                 ? message(", {} offloaded or read back",
                                           byte_count(static_cast<double>(plan.bytes_offloaded)))
                                 : std::string()));
}

void print_blocks(const GptOptions& o, const MemoryPlan& plan) {
  const examples::BlockBytes block = examples::block_activations(o, plan);
  if (block.measured > 0)
    print_fact("a block keeps",
               message("{} of activations for a micro-batch{}", byte_count(block.measured),
                       block.closed > 0 ? message("; by formula {}", byte_count(block.closed))
                                        : std::string()));
}

void print_alternatives(const MemoryPlan& now, const std::vector<Alternative>& all) {
  if (!all.empty())
    std::printf("\n%-28s %9s %9s %6s %8s %10s %10s  %s\n", "change", "peak", "saves", "ranks",
                "FLOPs", "sent", "offloaded", "numbers");
  for (const Alternative& a : all) {
    std::printf("%-28s %9s %9s %6d %+7.1f%% %10s %10s  %s\n", a.flags.c_str(),
                train::short_byte_count(a.plan.peak.total()).c_str(),
                difference(now.peak.total() - a.plan.peak.total(), "").c_str(), a.plan.ranks,
                100 * (a.plan.flops / now.flops - 1),
                difference(a.plan.bytes_sent - now.bytes_sent, "+").c_str(),
                difference(a.plan.bytes_offloaded - now.bytes_offloaded, "+").c_str(),
                a.rounds ? "rounded" : "same");
  }
}

io::Json to_json(const Alternative& a) {
  return io::Json::object()
      .set("flags", a.flags)
      .set("same_numbers", !a.rounds)
      .set("cost_s", a.cost_s)
      .set("plan", train::to_json(a.plan));
}

void write_svg(const MemoryPlan& plan, const std::string& path) {
  std::vector<io::MemoryMark> marks;
  for (const MemoryPlan::Mark& m : plan.marks) marks.push_back({name_of(m.phase), m.event});
  io::write_memory_svg(plan.course, marks, path,
                       message("Memory of a step of rank {} of {}", plan.rank, plan.ranks));
  print_fact("picture", path);
}

int run(GptOptions o, const PlanOptions& p) {
  if (o.model.vocab == 0)
    o.model.vocab = examples::open_text_tokenizer(o.data.tokenizer).tokenizer->vocab();
  const std::int64_t fit = p.fit.empty() ? 0 : examples::parse_bytes("--fit", p.fit);
  check(p.rates.tflops > 0, "--tflops: must be above 0, got {}", p.rates.tflops);
  check(p.rates.link > 0, "--link: must be above 0, got {}", p.rates.link);
  check(p.rates.host > 0, "--host-link: must be above 0, got {}", p.rates.host);
  o.gpt().validate();
  train::check_ranks(o);
  const MemoryPlan plan = examples::plan_memory(o);
  print_step(o, plan);
  print_blocks(o, plan);
  const auto share = [&](std::int64_t of) {
    return static_cast<double>(of) / static_cast<double>(plan.parameters);
  };
  train::ParameterBytes closed =
      train::parameter_bytes(o, plan.ranks, {share(plan.in_fp8), share(plan.in_experts)});
  if (o.lora.rank > 0) closed.gradient = closed.optimizer = 0;  // those of adapters alone
  std::printf("\n%s", train::memory_table(plan, closed).c_str());
  const std::vector<Alternative> all = examples::alternatives(o, plan, p.rates);
  print_alternatives(plan, all);
  io::Json json = train::to_json(plan);
  io::Json changes = io::Json(io::Json::Array{});
  for (const Alternative& a : all) changes.push_back(to_json(a));
  json.set("changes", std::move(changes));
  if (!p.svg.empty()) write_svg(plan, p.svg);
  if (fit > 0) {
    const Alternative best = examples::cheapest_fit(o, plan, p.rates, fit);
    const std::string peak = byte_count(static_cast<double>(best.plan.peak.total()));
    print_fact("fits " + p.fit,
               best.flags.empty() ? "as it is"
                                  : message("with {}: {} on {} rank{}, {} ms a step", best.flags,
                                            peak, best.plan.ranks, best.plan.ranks == 1 ? "" : "s",
                                            formatted("%+.3g", 1e3 * best.cost_s)));
    json.set("fit", to_json(best));
  }
  if (!p.json.empty()) io::write_file(p.json, json.dump() + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("plan", [&] {
    PlanOptions p;
    GptOptions o;
    o.program = "plan";
    o.machine.device = "meta";
    return parse(o, argc, argv, program_line(p)) ? run(o, p) : 0;
  });
}
