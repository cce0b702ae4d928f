#include "weft/examples/common/options.h"

#include <algorithm>
#include <cstdio>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/examples/common/command_line.h"
#include "weft/examples/common/config_file.h"
#include "weft/io/json.h"

namespace weft::train {
namespace {

struct Preset {
  const char* name;
  std::int64_t layers, heads, dim, seq, batch;
};
constexpr Preset kPresets[] = {{"tiny", 4, 4, 128, 256, 8},
                               {"small", 6, 6, 384, 256, 12},
                               {"gpt2-124m", 12, 12, 768, 1024, 4}};

// Flags and words of the stable command line whose feature does not exist yet.
struct Reserved {
  const char *flag, *feature;
};
constexpr Reserved kReservedFlags[] = {
    {"--trace", "writing a trace"},
    {"--pp", "pipeline parallelism"},
    {"--cp", "context parallelism"},
    {"--fsdp", "sharded parameters"},
};
struct ReservedWord {
  const char *name, *word;
};
constexpr ReservedWord kReservedWords[] = {{"optimizer", "muon"}, {"dtype", "fp8"}};

enum class OnOff : std::uint8_t { automatic, on, off };
constexpr Word<OnOff> kOnOffWords[] = {
    {"auto", OnOff::automatic}, {"on", OnOff::on}, {"off", OnOff::off}};
OnOff on_off(const std::optional<bool>& v) {
  return !v ? OnOff::automatic : *v ? OnOff::on : OnOff::off;
}
std::optional<bool> from_on_off(OnOff v) {
  return v == OnOff::automatic ? std::nullopt : std::optional(v == OnOff::on);
}

// "a, b or c"
template <class E, std::size_t N>
std::string alternatives(const Word<E> (&words)[N]) {
  std::string out;
  for (std::size_t i = 0; i < N; ++i)
    out += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i].name);
  return out;
}

// Makes a flag of each field.
struct Bind {
  CommandLine& line;
  const char* heading = "";

  void group(const char* name) { heading = name; }
  template <class T>
  void operator()(const char* name, T& value, const char* help, const Rule& rule = {}) {
    line.add(flag(name), value, help, heading, rule.first);
  }
  void operator()(const char* name, std::optional<bool>& value, const char* help,
                  const Rule& rule = {}) {
    add(name, kOnOffWords, on_off(value), help, rule,
        [&value](OnOff v) { value = from_on_off(v); });
  }
  template <class E, std::size_t N>
  void operator()(const char* name, E& value, const Word<E> (&words)[N], const char* help,
                  const Rule& rule = {}) {
    add(name, words, value, help, rule, [&value](E v) { value = v; });
  }

 private:
  static std::string flag(const char* name) { return std::string("--") + name; }
  template <class E, std::size_t N, class Set>
  void add(const char* name, const Word<E> (&words)[N], E now, const char* help, const Rule& rule,
           Set set) {
    line.add_word(flag(name), word_of(words, now), message("{} ({})", help, alternatives(words)),
                  heading, rule.first, [name, &words, set](const std::string& word) {
                    for (const ReservedWord& r : kReservedWords)
                      check(r.name != std::string_view(name) || word != r.word,
                            "--{}: {} does not exist yet; use {}", name, word, alternatives(words));
                    set(value_of(words, word, message("--{}:", name)));
                  });
  }
};

struct ToToml {
  std::string out;

  void group(const char*) {}
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& = {}) {
    out += message("{} = {}\n", name, toml_value(value));
  }
  void operator()(const char* name, const std::optional<bool>& value, const char*,
                  const Rule& = {}) {
    (*this)(name, std::string(word_of(kOnOffWords, on_off(value))), "");
  }
  template <class E, std::size_t N>
  void operator()(const char* name, const E& value, const Word<E> (&words)[N], const char*,
                  const Rule& = {}) {
    (*this)(name, std::string(word_of(words, value)), "");
  }
};

// Where the fields are, in order.
struct Addresses {
  std::vector<const void*> at;

  void group(const char*) {}
  template <class T>
  void operator()(const char*, T& value, const char*, const Rule& = {}) {
    at.push_back(&value);
  }
  template <class E, std::size_t N>
  void operator()(const char*, E& value, const Word<E> (&)[N], const char*, const Rule& = {}) {
    at.push_back(&value);
  }
};

// Throws for the first field that is not what its rule says.
struct CheckRules {
  const std::vector<const void*>& defaults;
  std::size_t next = 0;

  void group(const char*) {}
  template <class T>
  void operator()(const char* name, const T& value, const char*, const Rule& rule = {}) {
    const std::string who = message("--{}:", name);
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, double>)
      detail::check_number(who, value, rule);
    if constexpr (std::is_same_v<T, std::string>) check_text(who, value);
    if constexpr (std::is_same_v<T, std::vector<std::string>>)
      for (const std::string& item : value) check_text(who, item);
    check_needs(who, value, rule);
  }
  template <class E, std::size_t N>
  void operator()(const char* name, const E& value, const Word<E> (&)[N], const char*,
                  const Rule& rule = {}) {
    check_needs(message("--{}:", name), value, rule);
  }

 private:
  // config.toml must be able to say it.
  static void check_text(const std::string& who, const std::string& value) {
    check(io::find_invalid_utf8(value) == std::string::npos, "{} must be UTF-8, got '{}'", who,
          value);
  }
  template <class T>
  void check_needs(const std::string& who, const T& value, const Rule& rule) {
    if (value == *static_cast<const T*>(defaults[next++])) return;
    for (const Rule::Need& need : rule.needed) check(need.holds, "{} needs --{}", who, need.what);
  }
};

void apply_preset(const std::string& name, Options& o) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    o.model.layers = p.layers;
    o.model.heads = p.heads;
    o.model.dim = p.dim;
    o.model.seq = p.seq;
    o.step.batch = p.batch;
    if (name == "gpt2-124m") o.model.vocab = 50257;
    return;
  }
  check(false, "--preset: must be one of tiny, small, gpt2-124m, got '{}'", name);
}

// A preset sets defaults, so it has to be known before the other flags are read.
std::string preset_of(const std::vector<std::string>& args) {
  std::string name;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--preset" && i + 1 < args.size()) name = args[i + 1];
    if (args[i].rfind("--preset=", 0) == 0) name = args[i].substr(9);
  }
  return name;
}

void check_layout(const Options& o, Device device) {
  const ParallelOptions& p = o.parallel;
  if (!device.is_meta())
    check(p.ranks <= kMostThreads, "--ranks: must be at most {}, got {}", kMostThreads, p.ranks);
  check(p.rank == 0 || device.is_meta(), "--rank: needs --device meta, got {}", device);
  check(std::max<std::int64_t>(p.dp, 1) * p.tp <= kMostRanks,
        "--dp: with --tp must be at most {} ranks, got {} x {}", kMostRanks, p.dp, p.tp);
  check(p.ep == 1 || o.model.moe.experts > 0, "--ep: needs --experts");
  check(
      !p.zero || o.step.state_dtype != DType::f16,
      "--zero: the scales of f16 states would be those of a slice; use --state-dtype f32 or bf16");
  check(p.backend != Backend::fake || device.is_meta(),
        "--backend: fake needs --device meta, got {}", device);
  check(p.backend != Backend::nccl || device.is_cuda(),
        "--backend: nccl needs --device cuda, got {}", device);
  check(!device.is_cuda() || p.backend == Backend::nccl || p.ranks <= kMaxGpuRanks,
        "--ranks: must be at most {} on one GPU, got {}", kMaxGpuRanks, p.ranks);
  const bool several = p.ranks > 1 || p.dp > 1 || p.tp > 1;
  check(!several || !o.machine.graph, "--graph: does not exist yet for several ranks");
}

// Rules between settings.
void check_together(const Options& o) {
  const StepOptions& s = o.step;
  const nn::GptConfig& m = o.model;
  check(o.data.tokenizer == "bytes", "--tokenizer: only 'bytes' exists yet, got '{}'",
        o.data.tokenizer);
  check(static_cast<double>(s.steps) * static_cast<double>(s.batch) * static_cast<double>(m.seq) <
            9e18,
        "--steps: {} steps of {} x {} tokens are more than can be counted", s.steps, s.batch,
        m.seq);
  check(s.min_lr <= s.lr, "--min-lr: must be at most --lr {}, got {}", s.lr, s.min_lr);
  check(s.master_weights == optim::MasterWeights::f32 || o.machine.dtype == DType::bf16,
        "--master-weights: remainder needs --dtype bf16, got {}", o.machine.dtype);
  check(m.pattern.find_first_not_of("ad") == std::string::npos,
        "--pattern: must consist of a (attention) and d (gated delta net), got '{}'", m.pattern);
  const Device device = Device::parse(o.machine.device);
  if (device.is_cuda()) cuda::check_device(device);
  if (m.moe.experts > 0) {
    const RouterScore score = m.moe.router.route.score;
    check(o.balance.aux != Aux::bias || score != RouterScore::softmax,
          "--aux: bias needs --router sigmoid, got {}", word_of(nn::kRouterScoreWords, score));
    check(!m.moe.router.expert_bias || score != RouterScore::softmax,
          "--expert-bias: needs --router sigmoid, got {}", word_of(nn::kRouterScoreWords, score));
    check(!m.moe.router.sinkhorn || !o.counts_balance(),
          "--sinkhorn: balances by itself and needs --aux none, got {}",
          word_of(kAuxWords, o.balance.aux));
    check(!o.machine.graph || m.moe.router.capacity_factor > 0,
          "--graph: with --experts needs --capacity, or the host reads how many tokens each expert "
          "got");
  }
  check_layout(o, device);
  const std::int64_t micro = s.micro_batch ? s.micro_batch : s.batch;
  check(s.batch % micro == 0, "--micro-batch: must divide --batch {}, got {}", s.batch, micro);
}

void check_options(Options& o) {
  Options plain;
  Addresses defaults;
  plain.fields(defaults);
  CheckRules rules{defaults.at};
  o.fields(rules);
  check_together(o);
}

}  // namespace

Parsed parse_options(const Options& defaults, int argc, char** argv) {
  Parsed parsed{.options = defaults};
  Options& o = parsed.options;
  std::vector<std::string> args = expand_config(argc, argv);
  if (const std::string preset = preset_of(args); !preset.empty()) apply_preset(preset, o);
  CommandLine line("Trains a GPT on text. All times are seconds, all sizes bytes.", o.program);
  Bind bind{line};
  o.fields(bind);
  for (const Reserved& r : kReservedFlags)
    line.refuse(r.flag, r.feature, message("{} does not exist yet; remove the flag", r.feature),
                "Reserved (refused until the feature exists)");
  std::string preset;
  bool print_config = false;
  line.add("--preset", preset, "tiny, small or gpt2-124m: sizes to start from", "Run");
  std::string config;  // taken out of the command line by expand_config(); here for --help
  line.add("--config", config, "TOML file with the same names; a flag wins", "Run");
  line.add("--print-config", print_config, "print a complete --config file and stop", "Run");
  line.add("--dry-run", o.run.dry_run, "check everything, print sizes and memory, and stop", "Run");
  if (!line.parse(std::move(args))) {
    parsed.exit_status = 0;
    return parsed;
  }
  check_options(o);
  if (print_config) {
    std::fputs(to_toml(o).c_str(), stdout);
    parsed.exit_status = 0;
  }
  return parsed;
}

std::string to_toml(const Options& options) {
  ToToml toml;
  Options copy = options;
  copy.fields(toml);
  return toml.out;
}

}  // namespace weft::train
