// Continues a prompt with a trained model: generate --checkpoint run --prompt "It is a truth".
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/model_folder.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/checkpoint.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/fp8.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/sampling.h"
#include "weft/nn/speculative.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/utf8.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"

namespace {

using namespace weft;

struct Options {
  std::string checkpoint, model, tokenizer, export_to, prompt = "\n";
  std::int64_t tokens = 300, seed = 1, top_k = 0, threads = 0;
  double temperature = 0.8, top_p = 0.95;
  bool speculative = false, print_config = false, dry_run = false;
};

void check_values(const Options& o) {
  check(!o.prompt.empty(), "--prompt: must not be empty");
  check(o.tokens >= 1, "--tokens: must be at least 1, got {}", o.tokens);
  check(o.tokens <= INT32_MAX, "--tokens: must be at most {}, got {}", INT32_MAX, o.tokens);
  check(o.temperature >= 0 && std::isfinite(o.temperature),
        "--temperature: must be at least 0, got {}", o.temperature);
  check(o.top_k >= 0, "--topk: must be at least 0, got {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "--topp: must be in (0, 1], got {}", o.top_p);
  check(o.seed >= 0, "--seed: must be at least 0, got {}", o.seed);
  check(o.threads >= 0 && o.threads <= train::kMostThreads, "--threads: must be in [0, {}], got {}",
        train::kMostThreads, o.threads);
}

io::Checkpoint checkpoint_of(const Options& o) {
  check(!o.checkpoint.empty(),
        "--checkpoint: name the --out folder of a run, or a step folder; or a Hugging Face folder "
        "with --model");
  if (io::exists(o.checkpoint + "/state.json")) return io::open_checkpoint(o.checkpoint);
  const std::optional<io::Checkpoint> found = io::find_checkpoint(o.checkpoint);
  check(found.has_value(), "--checkpoint: no checkpoint in '{}'", o.checkpoint);
  return *found;
}

struct Found {
  nn::GptConfig config;
  distributed::ShardFiles files;
  examples::TextTokenizer text;
};

Found find_hf(const Options& o) {
  examples::ModelFolder m = examples::open_hf_model(o.model);
  return {m.config, std::move(m.files),
          o.tokenizer.empty() ? std::move(m.text) : examples::open_text_tokenizer(o.tokenizer)};
}

// The model in the folder, once its files are known to hold all its tensors.
Found find(const Options& o) {
  check(o.model.empty() || o.checkpoint.empty(),
        "--model: names a Hugging Face folder in place of --checkpoint; give one of them");
  if (!o.model.empty()) return find_hf(o);
  const io::Checkpoint found = checkpoint_of(o);
  const io::Json state = io::Json::parse(found.state(), found.folder + "/state.json");
  Found all{examples::config_from_json(state.at("model")),
            distributed::ShardFiles(found.shards("model")),
            o.tokenizer.empty() ? examples::open_text_tokenizer(found, state)
                                : examples::open_text_tokenizer(o.tokenizer)};
  examples::check_weights(all.config, all.files);
  return all;
}

// Tables and caches get the length that is needed, not the model's maximum: that number comes from
// a file and may be anything.
nn::Gpt load(Found found, std::int64_t tokens) {
  nn::GptConfig& c = found.config;
  const std::int64_t seq = std::clamp(tokens + c.mtp.depths, c.mtp.depths + 1, c.seq);
  if (c.arch == nn::Arch::llama) c.seq = seq;  // gpt2 has a trained embedding for every position
  nn::Gpt model(c);
  StateDict weights = found.files.state_dict();
  std::erase_if(weights, [](const auto& entry) { return nn::is_fp8_state(entry.first); });
  model.load_state_dict(weights);
  model.config.seq = seq;
  model.eval();
  return model;
}

Tensor to_ids(std::span<const std::int32_t> tokens) {
  return Tensor::from(tokens, {1, static_cast<std::int64_t>(tokens.size())});
}

std::string to_toml(const Options& o) {
  using train::toml_value;
  return message(
      "checkpoint = {}\nmodel = {}\ntokenizer = {}\nexport = {}\nprompt = {}\ntokens = "
      "{}\ntemperature = "
      "{}\ntopk = {}\ntopp = "
      "{}\n"
      "seed = {}\nthreads = {}\nspeculative = {}\n",
      toml_value(o.checkpoint), toml_value(o.model), toml_value(o.tokenizer),
      toml_value(o.export_to), toml_value(o.prompt), o.tokens, o.temperature, o.top_k, o.top_p,
      o.seed, o.threads, toml_value(o.speculative));
}

nn::SamplingOptions sampling(const Options& o, const tokenizer::Tokenizer& t) {
  return {.temperature = o.temperature,
          .top_k = o.top_k,
          .top_p = o.top_p,
          .allows = [&t](std::int64_t token) { return t.has(token); }};
}

/// Prints the tokens after a prompt as text, whole characters at a time.
class Printer {
 public:
  /// The stream reads the prompt too: a space is left out only where a text begins.
  Printer(const tokenizer::Tokenizer& t, std::span<const std::int32_t> prompt) : stream_(t) {
    for (const std::int32_t token : prompt) stream_.next(token);
  }
  void print(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) put(stream_.next(token));
    std::fflush(stdout);
  }
  void finish() { put(stream_.finish() + "\n"); }

 private:
  static void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
  tokenizer::StreamDecoder stream_;
};

void one_by_one(const nn::Gpt& model, std::vector<std::int32_t> text, const Options& o,
                const nn::SamplingOptions& sampling, Printer& printer) {
  const auto window = static_cast<std::size_t>(model.config.seq);
  nn::KvCache cache(model.config, 1, model.config.seq, model.embed.weight.dtype());
  std::span<const std::int32_t> fresh(text);
  if (fresh.size() > window) fresh = fresh.last(window);
  for (std::int64_t i = 0; i < o.tokens; ++i) {
    if (cache.length() + static_cast<std::int64_t>(fresh.size()) > cache.capacity()) {
      // The window is full: continue from its second half.
      cache.truncate(0);
      fresh = std::span<const std::int32_t>(text).last(window / 2 + 1);
    }
    const Tensor logits = model.decode(to_ids(fresh), cache).select(0, 0);
    const RandomKey key{static_cast<std::uint64_t>(o.seed), stream_of("generate"),
                        static_cast<std::uint64_t>(i)};
    text.push_back(static_cast<std::int32_t>(nn::sample_token(logits, sampling, key)));
    fresh = std::span<const std::int32_t>(text).last(1);
    printer.print(fresh);
  }
}

nn::Speculator::Stats several_a_pass(nn::Speculator& speculator,
                                     std::span<const std::int32_t> prompt, const Options& o,
                                     Printer& printer) {
  speculator.start(prompt);
  while (speculator.stats().tokens < o.tokens)
    printer.print(speculator.next(o.tokens - speculator.stats().tokens));
  return speculator.stats();
}

void generate(const Options& o) {
  if (!o.export_to.empty()) {
    io::save_safetensors(o.export_to, find(o).files.state_dict());
    std::printf("wrote %s\n", o.export_to.c_str());
    return;
  }
  Found found = find(o);
  const nn::GptConfig config = found.config;
  check(!o.speculative || config.mtp.depths > 0,
        "--speculative: the checkpoint has no multi-token prediction; remove the flag, or train a "
        "model with --mtp 1");
  if (o.dry_run) {
    std::printf("%s", nn::to_string(load(std::move(found), config.seq)).c_str());
    return;
  }
  const std::shared_ptr<const tokenizer::Tokenizer> text = found.text.tokenizer;
  check(
      !found.text.is_bytes() || config.vocab <= text->vocab(),
      "--checkpoint: the model writes {} different tokens, more than the bytes tokenizer has, {}; "
      "name its own with --tokenizer",
      config.vocab, text->vocab());
  // Without the tokens around a text, such as "<s>", as training encodes it.
  const std::vector<std::int32_t> prompt = text->encode(o.prompt);
  check(!prompt.empty(), "--prompt: the tokenizer makes no token of it, got {}",
        io::json_quote(tokenizer::shown(o.prompt)));
  for (const std::int32_t token : prompt)
    check(token < config.vocab,
          "--tokenizer: gives the token {}, and the model has {}: it is another model's", token,
          config.vocab);
  const nn::Gpt model = load(std::move(found), static_cast<std::int64_t>(prompt.size()) + o.tokens);
  std::optional<nn::Speculator> speculator;  // made before anything is printed: it checks the model
  const nn::SamplingOptions choice = sampling(o, *text);
  if (o.speculative) speculator.emplace(model, choice, static_cast<std::uint64_t>(o.seed));
  Printer printer(*text, prompt);
  // The stream holds the bytes of an incomplete character, and prints them with the rest of it.
  std::fwrite(o.prompt.data(), 1, o.prompt.size() - tokenizer::incomplete_utf8(o.prompt), stdout);
  if (!speculator) {
    one_by_one(model, prompt, o, choice, printer);
    printer.finish();
    return;
  }
  const nn::Speculator::Stats stats = several_a_pass(*speculator, prompt, o, printer);
  printer.finish();
  std::fflush(stdout);
  // To stderr, so that it is not mixed into the text.
  std::fprintf(stderr,
               "tokens per forward pass %.2f (%lld tokens in %lld passes, %lld of %lld drafts)\n",
               stats.tokens_per_pass(), static_cast<long long>(stats.tokens),
               static_cast<long long>(stats.passes), static_cast<long long>(stats.accepted),
               static_cast<long long>(stats.drafted));
}

}  // namespace

int main(int argc, char** argv) try {
  set_log_handler([](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  Options o;
  train::CommandLine line("Continues a prompt with a trained model.", "generate");
  line.add("--checkpoint", o.checkpoint, "folder of a run (--out of train_gpt) or of a step");
  line.add("--tokenizer", o.tokenizer,
           "bytes, or the file or folder of a tokenizer; empty: the one in the checkpoint");
  line.add("--model", o.model, "Hugging Face folder, in place of --checkpoint");
  line.add("--export", o.export_to, "write the whole model to this .safetensors file, and stop");
  line.add("--prompt", o.prompt, "text to go on from");
  line.add("--tokens", o.tokens, "tokens to add");
  line.add("--temperature", o.temperature, "0: always the likeliest");
  line.add("--topk", o.top_k, "choose among this many; 0: all");
  line.add("--topp", o.top_p, "choose among the likeliest with this probability together");
  line.add("--seed", o.seed, "seed of the draws");
  line.add("--threads", o.threads, "threads; 0: all processors");
  line.add("--speculative", o.speculative,
           "draft with the multi-token prediction of the model: the same text in fewer passes");
  std::string config;  // expand_config() has removed it from the arguments; declared for --help
  line.add("--config", config, "TOML file with the same names; a flag wins");
  line.add("--print-config", o.print_config, "print a complete --config file and stop");
  line.add("--dry-run", o.dry_run, "load the model, print its tree, and stop");
  if (!line.parse(train::expand_config(argc, argv))) return 0;
  check_values(o);
  if (o.print_config) {
    std::fputs(to_toml(o).c_str(), stdout);
    return 0;
  }
  if (o.threads) set_num_threads(static_cast<int>(o.threads));
  generate(o);
  return 0;
} catch (const weft::Error& e) {
  std::fprintf(stderr, "generate: %s\n", e.what());
  return static_cast<int>(e.fault());
} catch (const std::exception& e) {
  std::fprintf(stderr, "generate: %s\n", e.what());
  return 1;
}
