#include "weft/examples/common/gpt_options.h"

#include <algorithm>
#include <vector>

#include "weft/core/error.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/model_folder.h"
#include "weft/train/flags.h"

namespace weft::examples {
namespace {

struct Preset {
  const char* name;
  std::int64_t layers, heads, dim, seq, batch;
  double lr;
  std::int64_t vocab = 0, kv_heads = 0, ffn = 0;  ///< 0: the default
  bool llama = false;                             ///< else the program's default
};
// Learning rates. tiny and small: the rate of nanoGPT's character-level configuration, which has
// the size of small. GPT-2: the rates of the GPT-3 models of similar size (Brown et al. 2020, table
// 2.1: 125M 6e-4, 350M 3e-4, 760M 2.5e-4, 1.3B 2e-4). Those models take 0.5 to 1 million tokens per
// step; --batch is set to fit a small machine. llama-1b: sizes and rate of TinyLlama 1.1B (Zhang et
// al. 2024, tables 1 and 2), whose vocabulary fits the uint16 of token files.
constexpr Preset kPresets[] = {{"tiny", 4, 4, 128, 256, 8, 1e-3},
                               {"small", 6, 6, 384, 256, 12, 1e-3},
                               {"gpt2-124m", 12, 12, 768, 1024, 4, 6e-4, 50257},
                               {"gpt2-355m", 24, 16, 1024, 1024, 4, 3e-4, 50257},
                               {"gpt2-774m", 36, 20, 1280, 1024, 4, 2.5e-4, 50257},
                               {"gpt2-1558m", 48, 25, 1600, 1024, 4, 2e-4, 50257},
                               {"llama-1b", 22, 32, 2048, 2048, 4, 4e-4, 32000, 4, 5632, true}};

// "tiny, small, ..."
std::string preset_names() {
  std::string names;
  for (const Preset& p : kPresets) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

// Reserved flags of the stable command line, whose features do not exist yet.
struct Reserved {
  const char *flag, *feature;
};
constexpr Reserved kReservedFlags[] = {
    {"--trace", "writing a trace"},
    {"--pp", "pipeline parallelism"},
    {"--cp", "context parallelism"},
};
void apply_preset(const std::string& name, GptOptions& o) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    o.model.layers = p.layers;
    o.model.heads = p.heads;
    o.model.dim = p.dim;
    o.model.seq = p.seq;
    o.batch = p.batch;
    o.optimizer.lr = p.lr;
    if (p.vocab) o.model.vocab = p.vocab;
    if (p.kv_heads) o.model.kv_heads = p.kv_heads;
    if (p.ffn) o.model.ffn = p.ffn;
    if (p.llama) o.model.arch = nn::Arch::llama;
    return;
  }
  check(false, "--preset: must be one of {}, got '{}'", preset_names(), name);
}

// --preset and --init set defaults, so they must be applied before the other flags are read.
std::string early(const std::string& flag, const std::vector<std::string>& args) {
  std::string value;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == flag && i + 1 < args.size()) value = args[i + 1];
    if (args[i].starts_with(flag + "=")) value = args[i].substr(flag.size() + 1);
  }
  return value;
}

// The model, its tokenizer and its weights; other flags may still change what they do not fix.
void apply_init(const std::string& folder, bool plans, GptOptions& o) {
  if (plans && distributed::is_hf_folder(folder)) {
    o.model = distributed::hf_folder_config(folder);
    return;
  }
  const ModelFolder found = open_model_folder(folder);
  o.model = found.config;
  o.run.weights = folder;
  if (!found.text.is_bytes()) o.data.tokenizer = found.tokenizer;
}

// The settings of an adapter; start_of_adapter() refuses others.
void apply_adapter(const std::string& folder, GptOptions& o) {
  o.lora = read_adapter(folder, o.gpt()).options;
}

// An adapter that the command line itself names, not the file of a resumed run.
void check_not_given(const train::Arguments& args) {
  const std::string adapter =
      early("--adapter",
            {args.words.begin() + static_cast<std::ptrdiff_t>(args.from_file), args.words.end()});
  check(!args.resumes || adapter.empty(),
        "--adapter: a resumed run has its weights already, got '{}'; remove the flag", adapter);
}

nn::Balance scope_of(Aux aux) {
  return aux == Aux::seq      ? nn::Balance::sequence
         : aux == Aux::global ? nn::Balance::global
                              : nn::Balance::aux;
}

// The widths of experts and shared expert, where the options leave them open: a token's experts
// together cost as much as the MLP that they replace.
void set_widths(nn::GptConfig& c) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t sharing = c.moe.router.route.topk + (c.moe.shared_ffn < 0 ? 1 : 0);
  const std::int64_t part =
      (c.ffn_dim() + sharing * kMultiple / 2) / (sharing * kMultiple) * kMultiple;
  if (c.moe.ffn == 0) c.moe.ffn = std::max(part, kMultiple);
  if (c.moe.shared_ffn < 0) c.moe.shared_ffn = c.moe.ffn;
}

}  // namespace

void GptOptions::check() const {
  weft::check(
      static_cast<double>(steps) * static_cast<double>(batch) * static_cast<double>(model.seq) <
          9e18,
      "--steps: {} steps of {} x {} tokens are more than can be counted", steps, batch, model.seq);
  train::Options::check();
  weft::check(data.chat.empty() || data.pack.empty(),
              "--chat: packs conversations by itself; remove --pack");
  weft::check(
      data.chat.empty() || !machine.graph,
      "--chat: rows of conversations differ from step to step, which --graph cannot replay");
  weft::check(data.pack.empty() || !machine.graph,
              "--pack: rows of documents differ from step to step, which --graph cannot replay");
  weft::check(model.moe.experts > 0 || (balance.seq_coeff == 0 && balance.global_coeff == 0),
              "--seq-aux-coeff: needs --experts, and so does --global-aux-coeff");
  weft::check(balance.aux != Aux::seq || balance.seq_coeff == 0,
              "--seq-aux-coeff: is the loss of --aux seq; set --aux-coeff");
  weft::check(balance.aux != Aux::global || balance.global_coeff == 0,
              "--global-aux-coeff: is the loss of --aux global; set --aux-coeff");
  weft::check(!has(model.recompute, nn::Recompute::gathered) || parallel.sp,
              "--recompute: gathered needs --sp, which gathers the inputs of products");
  weft::check(
      run.sample_every == 0 || (parallel.tp == 1 && parallel.ep == 1 && parallel.etp <= 1),
      "--sample-every: needs ranks that have all of the model; leave out --tp, --ep and --etp");
  weft::check(!machine.is_fp8() || model.seq % fp8::kMultiple == 0,
              "--seq: must be a multiple of {} with --dtype fp8, got {}", fp8::kMultiple,
              model.seq);
  weft::check(parallel.ep == 1 || model.moe.experts > 0, "--ep: needs --experts");
  weft::check(parallel.etp <= 1 || model.moe.experts > 0, "--etp: needs --experts");
  if (lora.rank > 0) check_lora();
  weft::check(!parallel.delay_weight_gradients || model.moe.experts > 0,
              "--delay-weight-gradients: needs --experts");
  const bool tokens_as_fp8 = parallel.ep_dtype == nn::TokenForm::fp8;
  weft::check(!tokens_as_fp8 || model.moe.experts > 0, "--ep-dtype: fp8 needs --experts");
  const DType dtype = machine.model_dtype();
  weft::check(!tokens_as_fp8 || dtype == DType::f32 || dtype == DType::bf16,
              "--ep-dtype: fp8 needs --dtype f32, bf16 or fp8, got {}", dtype);
  if (model.moe.experts == 0) return;
  const RouterScore score = model.moe.router.route.score;
  weft::check(balance.aux != Aux::bias || score != RouterScore::softmax,
              "--aux: bias needs --router sigmoid, got {}", word_of(nn::kRouterScoreWords, score));
  weft::check(!model.moe.router.expert_bias || score != RouterScore::softmax,
              "--expert-bias: needs --router sigmoid, got {}",
              word_of(nn::kRouterScoreWords, score));
  weft::check(!model.moe.router.sinkhorn || !counts_balance(),
              "--sinkhorn: balances by itself and needs --aux none, got {}",
              word_of(kAuxWords, balance.aux));
  weft::check(!machine.graph || model.moe.router.capacity_factor > 0,
              "--graph: with --experts needs --capacity, or the host reads how many tokens each "
              "expert got");
}

void GptOptions::check_lora() const {
  weft::check(!parallel.fsdp, "--lora-rank: does not exist yet with --fsdp; use --zero");
  weft::check(!machine.is_fp8(), "--lora-rank: needs --dtype f32, bf16, f16 or f64, got fp8");
  weft::check(parallel.tp_overlap == distributed::Overlap::none || parallel.tp == 1,
              "--lora-rank: needs --tp-overlap none");
  weft::check(lora.dropout == 0 || parallel.tp == 1,
              "--lora-dropout: does not exist yet with --tp, got {}", parallel.tp);
}

bool GptOptions::counts_balance() const { return !gpt().moe.router.balance.empty(); }

nn::GptConfig GptOptions::gpt() const {
  nn::GptConfig c = model;
  if (c.moe.experts == 0) return c;
  if (balance.aux == Aux::bias) c.moe.router.expert_bias = true;
  const auto add = [&](nn::Balance scope, double coefficient) {
    if (coefficient > 0) c.moe.router.balance.push_back({scope, coefficient});
  };
  if (balance.aux < Aux::bias) add(scope_of(balance.aux), balance.aux_coeff);
  add(nn::Balance::sequence, balance.seq_coeff);
  add(nn::Balance::global, balance.global_coeff);
  set_widths(c);
  return c;
}

GptOptions moe_defaults() {
  GptOptions o;
  o.model.arch = nn::Arch::llama;
  o.model.moe.experts = 8;  // a token uses two of them, and the shared expert
  o.model.moe.router.route.topk = 2;
  o.model.moe.shared_ffn = -1;
  o.model.moe.router.route.score = RouterScore::sigmoid;
  o.balance.aux = Aux::bias;   // no loss: overloaded experts are selected less often
  o.balance.bias_rate = 0.01;  // a run of a few hundred steps is too short for 0.001
  o.model.mtp.depths = 1;
  return o;
}

bool parse(GptOptions& o, int argc, char** argv, const ProgramLine& program) {
  train::Arguments args = train::expand_config(argc, argv, {.out = o.out, .whole = "--data"});
  if (program.adapt) program.adapt(o, args.words);
  if (const std::string init = early("--init", args.words); !init.empty()) {
    weft::check(!args.resumes,
                "--init: a resumed run has its weights already, got '{}'; remove the flag", init);
    apply_init(init, program.plans, o);
    if (const std::string adapter = early("--adapter", args.words); !adapter.empty())
      apply_adapter(adapter, o);
  }
  check_not_given(args);
  if (const std::string preset = early("--preset", args.words); !preset.empty()) {
    weft::check(!args.resumes,
                "--preset: a resumed run keeps its settings, got '{}'; remove the flag", preset);
    apply_preset(preset, o);
  }
  // Older versions evaluated all held-out tokens.
  if (args.resumes && !args.lines.contains("--eval-tokens")) o.data.eval_tokens = 0;
  train::CommandLine line(program.what, o.program);
  line.examples(
      !program.examples.empty()
          ? program.examples
          : std::vector<std::string>{
                o.program + " --data book.txt --preset tiny --steps 2000 --out runs/book",
                o.program + " --out runs/book --resume --steps 4000",
                o.program + " --data tokens/*.bin --preset gpt2-124m --device cuda --dry-run"});
  for (const Reserved& r : kReservedFlags)
    line.refuse(r.flag, r.feature, message("{} does not exist yet; remove the flag", r.feature),
                "Reserved (refused until the feature exists)");
  std::string preset;
  const std::string presets = preset_names() + ": sizes and learning rate to start from";
  line.add("--preset", preset, presets.c_str(), "Run");
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  line.words("--preset", std::move(names));
  std::string init;
  line.add(
      "--init", init,
      "folder of a model to go on from: of Hugging Face, or the --out of a run; sets the model, "
      "its weights and its tokenizer",
      "Run");
  line.add("--dry-run", o.dry_run, "check everything, print sizes and memory, and stop", "Run");
  if (program.more_flags) program.more_flags(line);
  return train::parse_options(line, o, std::move(args));
}

}  // namespace weft::examples
