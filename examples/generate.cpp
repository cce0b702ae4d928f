// Continues a prompt with a trained model: generate --checkpoint run --prompt "It is a truth".
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/continuation.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/model_folder.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/sampling.h"
#include "weft/nn/speculative.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/utf8.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"

namespace {

using namespace weft;

struct Options {
  std::string checkpoint, model, adapter, tokenizer, export_to, prompts;
  std::vector<std::string> prompt = {"\n"}, stop;
  std::int64_t tokens = 300, batch = 8, seed = 1, top_k = 0, threads = 0;
  double temperature = 0.8, top_p = 0.95;
  bool ignore_end = false, speculative = false, print_config = false, dry_run = false;
};

void check_values(const Options& o) {
  check(!o.prompt.empty(), "--prompt: must not be empty");
  for (const std::string& p : o.prompt) check(!p.empty(), "--prompt: must not be empty");
  check(o.prompts.empty() || o.prompt == Options().prompt,
        "--prompts: names a file of prompts in place of --prompt; give one of them");
  for (const std::string& s : o.stop) check(!s.empty(), "--stop: must not be empty");
  check(o.tokens >= 1, "--tokens: must be at least 1, got {}", o.tokens);
  check(o.tokens <= INT32_MAX, "--tokens: must be at most {}, got {}", INT32_MAX, o.tokens);
  check(o.batch >= 1 && o.batch <= 4096, "--batch: must be in [1, 4096], got {}", o.batch);
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
  std::vector<std::int32_t> ends;  // tokens that end a text
};

Found find_hf(const Options& o) {
  examples::ModelFolder m = examples::open_hf_model(o.model);
  examples::TextTokenizer text =
      o.tokenizer.empty() ? std::move(m.text) : examples::open_text_tokenizer(o.tokenizer);
  std::vector<std::int32_t> ends = examples::end_tokens(o.model, *text.tokenizer);
  return {m.config, std::move(m.files), std::move(text), std::move(ends)};
}

// The model in the folder, once its files are known to hold all its tensors.
Found find(const Options& o) {
  check(o.model.empty() || o.checkpoint.empty(),
        "--model: names a Hugging Face folder in place of --checkpoint; give one of them");
  if (!o.model.empty()) return find_hf(o);
  const io::Checkpoint found = checkpoint_of(o);
  const io::Json state = io::Json::parse(found.state(), found.folder + "/state.json");
  examples::check_whole_model(o.checkpoint, state);
  Found all{examples::config_from_json(state.at("model")),
            distributed::ShardFiles(found.shards("model")),
            o.tokenizer.empty() ? examples::open_text_tokenizer(found, state)
                                : examples::open_text_tokenizer(o.tokenizer),
            {}};
  examples::check_weights(all.config, all.files);
  all.ends = examples::end_tokens("", *all.text.tokenizer);
  return all;
}

std::string to_toml(const Options& o) {
  using train::toml_value;
  return message(
      "checkpoint = {}\nmodel = {}\nadapter = {}\ntokenizer = {}\nexport = {}\nprompt = "
      "{}\nprompts = {}\n"
      "stop = {}\nignore-end = {}\ntokens = "
      "{}\nbatch = {}\ntemperature = "
      "{}\ntopk = {}\ntopp = "
      "{}\n"
      "seed = {}\nthreads = {}\nspeculative = {}\n",
      toml_value(o.checkpoint), toml_value(o.model), toml_value(o.adapter), toml_value(o.tokenizer),
      toml_value(o.export_to), toml_value(o.prompt), toml_value(o.prompts), toml_value(o.stop),
      toml_value(o.ignore_end), o.tokens, o.batch, o.temperature, o.top_k, o.top_p, o.seed,
      o.threads, toml_value(o.speculative));
}

nn::SamplingOptions sampling(const Options& o, const tokenizer::Tokenizer& t) {
  return {.temperature = o.temperature,
          .top_k = o.top_k,
          .top_p = o.top_p,
          .allows = [&t](std::int64_t token) { return t.has(token); }};
}

/// Texts that share passes through the model: up to --batch of them. One that has ended makes room
/// for the next prompt. Their output stands in the order of the prompts.
class TextsTogether {
 public:
  TextsTogether(const nn::Gpt& model, const Options& o, const nn::SamplingOptions& sampling,
                const std::function<std::unique_ptr<examples::Printer>(std::size_t)>& begin)
      : model_(model), options_(o), sampling_(sampling), begin_(begin) {}

  void run(const std::vector<std::vector<std::int32_t>>& prompts) {
    while (!rows_.empty() || next_ < prompts.size()) {
      for (; std::ssize(rows_) < options_.batch && next_ < prompts.size(); ++next_) add(prompts);
      step();
    }
  }

 private:
  struct Row {
    examples::Continuation text;
    examples::Printer* printer;
    std::int64_t drawn = 0;
  };

  void add(const std::vector<std::vector<std::int32_t>>& prompts) {
    printers_.push_back(begin_(next_));
    rows_.push_back(std::make_unique<Row>(examples::Continuation(model_), printers_.back().get()));
    rows_.back()->text.append(prompts[next_]);
    if (next_ == shown_) printers_.back()->show();
  }

  void step() {
    std::vector<examples::Continuation::Turn> turns;
    for (const auto& row : rows_)
      turns.push_back({&row->text, static_cast<std::uint64_t>(row->drawn)});
    const std::vector<std::int32_t> tokens = examples::Continuation::next_of(
        turns, sampling_, static_cast<std::uint64_t>(options_.seed));
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      Row& row = *rows_[k];
      ++row.drawn;
      if (!row.printer->print({&tokens[k], 1}) || row.drawn == options_.tokens)
        row.printer->finish();
    }
    std::erase_if(rows_, [](const auto& row) { return row->printer->has_finished(); });
    while (shown_ < printers_.size() && printers_[shown_]->has_finished())
      if (++shown_ < printers_.size()) printers_[shown_]->show();
  }

  const nn::Gpt& model_;
  const Options& options_;
  const nn::SamplingOptions& sampling_;
  std::function<std::unique_ptr<examples::Printer>(std::size_t)> begin_;
  std::vector<std::unique_ptr<Row>> rows_;
  std::vector<std::unique_ptr<examples::Printer>> printers_;  // of the prompts so far
  std::size_t next_ = 0, shown_ = 0;                          // prompts
};

nn::Speculator::Stats several_a_pass(nn::Speculator& speculator,
                                     std::span<const std::int32_t> prompt, const Options& o,
                                     examples::Printer& printer) {
  speculator.start(prompt);
  while (speculator.stats().tokens < o.tokens &&
         printer.print(speculator.next(o.tokens - speculator.stats().tokens))) {
  }
  return speculator.stats();
}

// To stderr, so that it is not mixed into the text.
void print_stats(const nn::Speculator::Stats& stats) {
  std::fprintf(stderr,
               "tokens per forward pass %.2f (%lld tokens in %lld passes, %lld of %lld drafts)\n",
               stats.tokens_per_pass(), static_cast<long long>(stats.tokens),
               static_cast<long long>(stats.passes), static_cast<long long>(stats.accepted),
               static_cast<long long>(stats.drafted));
}

struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<std::int32_t>> tokens;
  std::int64_t longest = 0;  // tokens
};

Prompts encode(const Options& o, const tokenizer::Tokenizer& t, std::int64_t vocab) {
  Prompts all;
  const char* flag = "--prompt";
  all.texts = o.prompt;
  if (!o.prompts.empty()) {
    flag = "--prompts";
    all.texts.clear();
    std::istringstream lines(io::read_file(o.prompts));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();  // a file of Windows
      if (!line.empty()) all.texts.push_back(line);
    }
    check(!all.texts.empty(), "--prompts: '{}' must have a prompt in each line, got none",
          o.prompts);
  }
  for (const std::string& text : all.texts) {
    // Without the tokens around a text, such as "<s>", as training encodes it.
    std::vector<std::int32_t> tokens = t.encode(text);
    check(!tokens.empty(), "{}: the tokenizer makes no token of it, got {}", flag,
          io::json_quote(tokenizer::shown(text)));
    examples::check_tokens(tokens, vocab);
    all.longest = std::max(all.longest, std::ssize(tokens));
    all.tokens.push_back(std::move(tokens));
  }
  return all;
}

void generate(const Options& o) {
  if (!o.export_to.empty()) {
    const Found found = find(o);
    const StateDict weights = found.files.state_dict();
    if (const auto merger = examples::open_adapter(o.adapter, found.config, found.files))
      for (const auto& [name, tensor] : weights) merger->add_to(name, 0, tensor);
    io::save_safetensors(o.export_to, weights);
    std::printf("wrote %s\n", o.export_to.c_str());
    return;
  }
  Found found = find(o);
  const nn::GptConfig config = found.config;
  check(!o.speculative || config.mtp.depths > 0,
        "--speculative: the checkpoint has no multi-token prediction; remove the flag, or train a "
        "model with --mtp 1");
  if (o.dry_run) {
    std::printf(
        "%s",
        nn::to_string(examples::load_model(config, found.files, config.seq, o.adapter)).c_str());
    return;
  }
  const std::shared_ptr<const tokenizer::Tokenizer> text = found.text.tokenizer;
  check(
      !found.text.is_bytes() || config.vocab <= text->vocab(),
      "--checkpoint: the model writes {} different tokens, more than the bytes tokenizer has, {}; "
      "name its own with --tokenizer",
      config.vocab, text->vocab());
  const Prompts prompts = encode(o, *text, config.vocab);
  const examples::Ends ends{o.ignore_end ? std::vector<std::int32_t>{} : found.ends, o.stop};
  const nn::Gpt model =
      examples::load_model(config, found.files, prompts.longest + o.tokens, o.adapter);
  std::optional<nn::Speculator> speculator;  // made before anything is printed: it checks the model
  const nn::SamplingOptions choice = sampling(o, *text);
  if (o.speculative) speculator.emplace(model, choice, static_cast<std::uint64_t>(o.seed));
  // A printer that has the prompt, and an empty line before all but the first one.
  const auto begin = [&](std::size_t i) {
    const std::string& prompt = prompts.texts[i];
    auto printer = std::make_unique<examples::Printer>(*text, prompts.tokens[i], ends, false);
    if (i > 0) printer->emit("\n");
    // The stream holds the bytes of an incomplete character, and prints them with the rest of it.
    printer->emit(
        std::string_view(prompt).substr(0, prompt.size() - tokenizer::incomplete_utf8(prompt)));
    return printer;
  };
  if (!speculator) return TextsTogether(model, o, choice, begin).run(prompts.tokens);
  for (std::size_t i = 0; i < prompts.texts.size(); ++i) {
    const std::unique_ptr<examples::Printer> printer = begin(i);
    printer->show();
    const nn::Speculator::Stats stats = several_a_pass(*speculator, prompts.tokens[i], o, *printer);
    printer->finish();
    print_stats(stats);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("generate", [&] {
    Options o;
    train::CommandLine line("Continues a prompt with a trained model.", "generate");
    line.add("--checkpoint", o.checkpoint, "folder of a run (--out of train_gpt) or of a step");
    line.add("--tokenizer", o.tokenizer,
             "bytes, or the file or folder of a tokenizer; empty: the one in the checkpoint");
    line.add("--model", o.model, "Hugging Face folder, in place of --checkpoint");
    line.add("--adapter", o.adapter,
             "folder of an adapter of the model: of PEFT, or of a run with --lora-rank");
    line.add("--export", o.export_to, "write the whole model to this .safetensors file, and stop");
    line.add("--prompt", o.prompt, "text to go on from; several: one result after the other");
    line.add("--prompts", o.prompts, "file with a prompt in each line, in place of --prompt");
    line.add("--stop", o.stop, "text before which the result ends; several: the first that comes");
    line.add("--ignore-end", o.ignore_end, "go on after a token that ends a text");
    line.add("--tokens", o.tokens, "most tokens to add");
    line.add("--batch", o.batch, "texts that share passes through the model");
    line.add("--temperature", o.temperature, "0: always the likeliest");
    line.add("--topk", o.top_k, "choose among this many; 0: all");
    line.add("--topp", o.top_p, "choose among the likeliest with this probability together");
    line.add("--seed", o.seed, "seed of the draws");
    line.add("--threads", o.threads, "threads; 0: all processors");
    line.add("--speculative", o.speculative,
             "draft with the multi-token prediction of the model: several tokens in a pass");
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
  });
}
