#include "weft/examples/common/gpt_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "weft/core/error.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/train/flags.h"
#include "weft/train/ranks.h"

namespace weft::examples {
namespace {

// The options with every number said: changes then leave the rest as it is.
GptOptions explicit_options(GptOptions o) {
  o.parallel.dp = train::ranks_of(o) / o.parallel.tp;
  o.parallel.ranks = 0;
  if (o.micro_batch == 0) o.micro_batch = o.batch / o.parallel.dp;
  return o;
}

bool has_f32_moments(const GptOptions& o) {
  return o.optimizer.kind == optim::Kind::adamw && o.optimizer.state_dtype == DType::f32;
}

// The flags of a change that was made; empty: it is in effect already, or means nothing here.
using Flags = std::string;

// "--tp 2 --dp 4" and then "--tp 4 --dp 2": a later value of a flag replaces the earlier one.
Flags merged(const Flags& earlier, const Flags& later) {
  std::vector<std::pair<std::string, std::string>> all;  // flag, value
  for (const Flags* flags : {&earlier, &later}) {
    std::istringstream in(*flags);
    for (std::string word; in >> word;) {
      if (!word.starts_with("--")) {
        all.back().second = ' ' + word;
        continue;
      }
      std::erase_if(all, [&](const auto& f) { return f.first == word; });
      all.emplace_back(word, "");
    }
  }
  Flags text;
  for (const auto& [flag, value] : all) text += (text.empty() ? "" : " ") + flag + value;
  return text;
}

std::string ranks_text(const GptOptions& o, const char* flag, std::int64_t degree) {
  return message("{} {} --dp {}", flag, degree, o.parallel.dp);
}

// Of the ranks there are, if half of --dp is whole.
Flags double_tp(GptOptions& o) {
  o.parallel.tp *= 2;
  if (o.parallel.dp % 2 == 0) o.parallel.dp /= 2;
  return ranks_text(o, "--tp", o.parallel.tp);
}

Flags double_ep(GptOptions& o) {
  if (o.model.moe.experts == 0) return {};
  o.parallel.ep *= 2;
  const std::int64_t etp = o.parallel.etp ? o.parallel.etp : o.parallel.tp;
  if (o.parallel.dp * o.parallel.tp % (o.parallel.ep * etp) != 0) {
    o.parallel.dp *= 2;
    o.micro_batch = std::min(o.micro_batch, o.batch / o.parallel.dp);
  }
  return ranks_text(o, "--ep", o.parallel.ep);
}

Flags halve_micro_batch(GptOptions& o) {
  if (o.micro_batch % 2 != 0) return {};
  o.micro_batch /= 2;
  return message("--micro-batch {}", o.micro_batch);
}

template <class T>
Flags set_to(T& setting, T value, const char* flags, bool may = true) {
  return may && std::exchange(setting, value) != value ? flags : "";
}

// Adds to what is offloaded.
template <train::OffloadWhat kWhat>
Flags offload(GptOptions& o) {
  if (o.offload.has(kWhat)) return {};
  o.offload.what = static_cast<train::OffloadWhat>(static_cast<unsigned>(o.offload.what) |
                                                   static_cast<unsigned>(kWhat));
  return message("--offload {}", word_of(train::kOffloadWords, o.offload.what));
}

// What takes less memory, one row each. A change that contradicts other options is left out.
struct Change {
  bool rounds;  ///< the numbers of the run change
  Flags (*apply)(GptOptions&);
};
constexpr Change kChanges[] = {
    {false, halve_micro_batch},
    {false,
     [](GptOptions& o) {
       return set_to(o.model.recompute, nn::Recompute::selective, "--recompute selective",
                     o.model.recompute == nn::Recompute::none);
     }},
    {false,
     [](GptOptions& o) {
       return set_to(o.model.recompute, nn::Recompute::full, "--recompute full");
     }},
    {false, offload<train::OffloadWhat::activations>},
    {false, offload<train::OffloadWhat::states>},
    {false,
     [](GptOptions& o) {
       const bool neither = o.offload.what == train::OffloadWhat::none;
       offload<train::OffloadWhat::activations>(o);
       return neither ? offload<train::OffloadWhat::states>(o) : Flags();
     }},
    {false,
     [](GptOptions& o) { return set_to(o.parallel.zero, true, "--zero", o.parallel.dp > 1); }},
    {false, [](GptOptions& o) { return set_to(o.parallel.sp, true, "--sp", o.parallel.tp > 1); }},
    {false, double_tp},
    {false, double_ep},
    {false,
     [](GptOptions& o) {
       return set_to(o.optimizer.master_weights, optim::MasterWeights::remainder,
                     "--master-weights remainder",
                     o.machine.model_dtype() == DType::bf16 &&
                         o.optimizer.master_weights == optim::MasterWeights::f32);
     }},
    {false,
     [](GptOptions& o) {
       return set_to(o.machine.fp8_weights, true, "--fp8-weights", o.machine.is_fp8());
     }},
    {true,
     [](GptOptions& o) {
       return set_to(o.machine.dtype, DType::bf16, "--dtype bf16",
                     !is_half(o.machine.model_dtype()));
     }},
    {true, [](GptOptions& o) { return set_to(o.machine.dtype, DType::e4m3, "--dtype fp8"); }},
    {true,
     [](GptOptions& o) {
       return set_to(o.optimizer.state_dtype, DType::bf16, "--state-dtype bf16",
                     has_f32_moments(o));
     }},
    {true,
     [](GptOptions& o) {
       return set_to(o.optimizer.state_dtype, DType::f16, "--state-dtype f16", has_f32_moments(o));
     }},
    {true,
     [](GptOptions& o) {
       return set_to(o.optimizer.state_dtype, DType::e4m3, "--state-dtype fp8", has_f32_moments(o));
     }},
};

double cost_of(const train::MemoryPlan& plan, const Rates& rates) {
  return plan.flops / (1e12 * rates.tflops) +
         static_cast<double>(plan.bytes_sent) / (1e9 * rates.link) +
         static_cast<double>(plan.bytes_offloaded) / (1e9 * rates.host);
}

std::optional<Alternative> try_changes(const GptOptions& options,
                                       const std::vector<const Change*>& changes,
                                       const train::MemoryPlan& now, const Rates& rates) {
  GptOptions o = explicit_options(options);
  Alternative found;
  for (const Change* c : changes) {
    const Flags flags = c->apply(o);
    if (flags.empty()) return std::nullopt;
    found.flags = merged(found.flags, flags);
    found.rounds |= c->rounds;
  }
  try {
    train::check_options(o);
    o.gpt().validate();
    found.plan = plan_memory(o);
  } catch (const Error&) {  // such as 2 heads for 4 ranks
    return std::nullopt;
  }
  found.cost_s = cost_of(found.plan, rates) - cost_of(now, rates);
  return found;
}

// Of as many changes.
bool is_cheaper(const Alternative& a, const Alternative& b) {
  const auto order = [](const Alternative& x) {
    return std::tuple(x.plan.ranks, x.rounds, x.cost_s, x.plan.peak.total());
  };
  return order(a) < order(b);
}

// The cheapest of all sets of `count` changes from `from` on. Those that double or halve may come
// several times; the others do nothing the second time.
void search_fit(const GptOptions& o, const train::MemoryPlan& now, const Rates& rates,
                std::int64_t bytes, std::vector<const Change*>& chosen, int count,
                const Change* from, std::optional<Alternative>& best) {
  if (count == 0) {
    std::optional<Alternative> tried = try_changes(o, chosen, now, rates);
    if (tried && tried->plan.peak.total() <= bytes && (!best || is_cheaper(*tried, *best)))
      best = std::move(tried);
    return;
  }
  for (const Change* c = from; c != std::end(kChanges); ++c) {
    chosen.push_back(c);
    search_fit(o, now, rates, bytes, chosen, count - 1, c, best);
    chosen.pop_back();
  }
}

// Bytes per token that a block of attention and an MLP keeps. Of the whole width: the residual
// stream and its norm, twice; --sp divides the first. Divided by --tp: queries, keys, values and
// the output of attention; the hidden layer of the MLP, with its gate, before and after the
// activation. The log-sum-exp of attention and the statistics of norms are a few numbers more.
double closed_block(const GptOptions& o) {
  const nn::GptConfig c = o.gpt();
  if (c.attention != nn::AttentionKind::mha || c.has_delta() || c.moe.experts > 0 || c.qk_norm ||
      c.attn_gate || c.clip_qkv > 0 || c.rotary_dim > 0 || c.zero_centered_norm ||
      o.parallel.tp_overlap != distributed::Overlap::none || o.machine.is_fp8() ||
      o.lora.rank > 0 || c.recompute_every != 1 || c.recompute_layers != 0 ||
      o.offload.has(train::OffloadWhat::activations))
    return 0;
  const auto dim = static_cast<double>(c.dim), ffn = static_cast<double>(c.ffn_dim()),
             kv = static_cast<double>(c.kv_head_count() * c.head_dim()),
             tp = static_cast<double>(o.parallel.tp), stream = 2 * dim / (o.parallel.sp ? tp : 1);
  const auto width = static_cast<double>(size_of(o.machine.model_dtype()));
  using nn::Recompute;
  if (has(c.recompute, Recompute::full)) return stream * width;
  // With --sp the products keep gathered rows, or this rank's rows from which to gather them.
  const bool norms = has(c.recompute, Recompute::norms);
  const double inputs = !o.parallel.sp                           ? (norms ? 0 : 2 * dim)
                        : !has(c.recompute, Recompute::gathered) ? 2 * dim
                        : norms                                  ? 0
                                                                 : 2 * dim / tp;
  const auto heads = static_cast<double>(c.heads * c.head_dim());
  const double attention = (has(c.recompute, Recompute::attention) ? 1 : 2) * heads + 2 * kv;
  const double hidden =
      (is_gated(c.mlp_activation()) ? 3 : 2) * ffn - (has(c.recompute, Recompute::mlp) ? ffn : 0);
  return (stream + inputs + (attention + hidden) / tp) * width;
}

}  // namespace

train::MemoryPlan plan_memory(const GptOptions& o) {
  GptTask gpt(o);
  const Tensor row = Tensor::empty({1, o.model.seq}, DType::i32);
  data::Batch rows{row, row, {}};
  if (!o.data.pack.empty()) {  // a row is one document
    rows.positions = Tensor::empty({1, o.model.seq}, DType::i32);
    for (std::int64_t i = 0; i < o.model.seq; ++i)
      rows.positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  }
  const int ranks = train::ranks_of(o);
  return train::plan_memory(gpt.task(), o, rows, ranks > 1 ? ranks : 0,
                            static_cast<int>(o.parallel.rank));
}

BlockBytes block_activations(const GptOptions& options, const train::MemoryPlan& plan) {
  GptOptions o = explicit_options(options);
  BlockBytes bytes;
  const double rows = static_cast<double>(o.micro_batch * o.model.seq);
  bytes.closed = rows * closed_block(o);
  const nn::GptConfig c = o.gpt();
  for (std::int64_t i = 1; i < c.layers; ++i)
    if (c.mixer(i) != c.mixer(0) || c.has_experts(i) != c.has_experts(0)) return bytes;
  if (c.layers < 2) return bytes;
  --o.model.layers;
  o.model.moe_layers.resize(o.model.moe_layers.empty() ? 0 : o.model.moe_layers.size() - 1);
  constexpr int kActivation = static_cast<int>(Category::activation);
  bytes.measured = static_cast<double>(plan.before_backward.by_category[kActivation] -
                                       plan_memory(o).before_backward.by_category[kActivation]);
  return bytes;
}

std::vector<Alternative> alternatives(const GptOptions& options, const train::MemoryPlan& plan,
                                      const Rates& rates) {
  std::vector<Alternative> all;
  for (const Change& c : kChanges)
    if (std::optional<Alternative> a = try_changes(options, {&c}, plan, rates))
      all.push_back(std::move(*a));
  return all;
}

Alternative cheapest_fit(const GptOptions& options, const train::MemoryPlan& plan,
                         const Rates& rates, std::int64_t bytes) {
  if (plan.peak.total() <= bytes) return {.flags = "", .rounds = false, .plan = plan, .cost_s = 0};
  constexpr int kMostChanges = 3;
  std::optional<Alternative> best;
  for (int count = 1; count <= kMostChanges; ++count) {
    std::vector<const Change*> chosen;
    std::optional<Alternative> found;
    search_fit(options, plan, rates, bytes, chosen, count, std::begin(kChanges), found);
    const auto price = [](const Alternative& a) { return std::pair(a.plan.ranks, a.rounds); };
    if (found && (!best || price(*found) < price(*best))) best = std::move(found);
    if (best && best->plan.ranks <= plan.ranks && !best->rounds) break;
  }
  check(best.has_value(), "--fit: no {} changes together bring {} bytes down to {}", kMostChanges,
        plan.peak.total(), bytes);
  return std::move(*best);
}

std::int64_t parse_bytes(const std::string& flag, const std::string& text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"", 1},         {"kB", 1e3},     {"MB", 1e6},
                             {"GB", 1e9},     {"TB", 1e12},    {"KiB", 0x1p10},
                             {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  for (const Unit& u : kUnits)
    if (read.ec == std::errc() && std::string(read.ptr, end) == u.name && number > 0 &&
        number * u.bytes < 0x1p62)
      return static_cast<std::int64_t>(number * u.bytes);
  throw Error(message("{}: must be a size such as 24GiB or 80GB, got '{}'", flag, text));
}

}  // namespace weft::examples
