#include "weft/core/error.h"
#include "weft/train/memory_plan.h"
#include "weft/train/terminal.h"

namespace weft::train {
namespace {

io::Json to_json(const LiveBytes& live) {
  io::Json out = io::Json::object();
  for (int i = 0; i < kCategories; ++i)
    out.set(name(static_cast<Category>(i)), live.by_category[i]);
  return out;
}

// "backward of micro-batch 1 of 4".
std::string moment_of(const MemoryPlan& plan) {
  const MemoryPlan::Mark& m = plan.at_peak();
  if (m.phase == Phase::update) return "the update";
  return message("the {} of micro-batch {}{}", name_of(m.phase), m.micro_batch,
                 plan.micro_batches > 1 ? message(" of {}", plan.micro_batches) : std::string());
}

}  // namespace

std::string memory_table(const MemoryPlan& plan, const ParameterBytes& closed) {
  const double closed_of[kCategories] = {closed.weight, closed.gradient, 0, closed.optimizer, 0, 0};
  const std::int64_t total = plan.peak.total();
  const auto n = static_cast<double>(std::max<std::int64_t>(plan.parameters, 1));
  std::string out = message("The peak is in {}\n\n", moment_of(plan));
  out += "category       at the peak    share  bytes a parameter  closed form\n";
  const auto row = [&](const char* name, std::int64_t bytes, double form) {
    const auto size = static_cast<double>(bytes);
    out += formatted("%-14s%12s %7.1f%% %18.3f", name, short_byte_count(bytes).c_str(),
                     100 * size / static_cast<double>(total), size / n) +
           (form > 0 ? formatted("%13.3f\n", form) : "\n");
  };
  for (int i = 0; i < kCategories; ++i)
    if (plan.peak.by_category[i] > 0)
      row(name(static_cast<Category>(i)), plan.peak.by_category[i], closed_of[i]);
  row("total", total, 0);
  const auto add_columns = [&](const auto& text_of) {
    for (int i = 0; i < kCategories; ++i)
      if (plan.peak.by_category[i] > 0) out += formatted("%14s", text_of(i).c_str());
  };
  out += formatted("\n%-10s", "module");
  add_columns([](int i) { return std::string(name(static_cast<Category>(i))); });
  out += formatted("%12s\n", "total");
  for (const MemoryPlan::Module& m : plan.modules) {
    out += formatted("%-10s", m.name.c_str());
    add_columns([&](int i) {
      return m.live.by_category[i] == 0 ? std::string() : short_byte_count(m.live.by_category[i]);
    });
    out += formatted("%12s\n", short_byte_count(m.live.total()).c_str());
  }
  return out;
}

io::Json to_json(const MemoryPlan& plan) {
  io::Json modules = io::Json(io::Json::Array{});
  for (const MemoryPlan::Module& m : plan.modules)
    modules.push_back(io::Json::object().set("name", m.name).set("live", to_json(m.live)));
  return io::Json::object()
      .set("device", to_string(plan.device))
      .set("ranks", plan.ranks)
      .set("rank", plan.rank)
      .set("micro_batches", plan.micro_batches)
      .set("parameters", plan.parameters)
      .set("in_fp8", plan.in_fp8)
      .set("in_experts", plan.in_experts)
      .set("peak_bytes", plan.peak.total())
      .set("phase", name_of(plan.at_peak().phase))
      .set("micro_batch", plan.at_peak().micro_batch)
      .set("by_category", to_json(plan.peak))
      .set("modules", std::move(modules))
      .set("flops", plan.flops)
      .set("bytes_sent", plan.bytes_sent)
      .set("bytes_offloaded", plan.bytes_offloaded)
      .set("bytes_copied", plan.bytes_copied);
}

}  // namespace weft::train
