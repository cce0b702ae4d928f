// Talks with a model on the terminal: chat --model Qwen2.5-0.5B-Instruct.
#include "weft/tokenizer/chat.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/examples/common/continuation.h"
#include "weft/examples/common/model_folder.h"
#include "weft/examples/common/open_chat.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"
#include "weft/train/options.h"

namespace {

using namespace weft;

struct Options {
  std::string model, adapter, tokenizer, format = "auto", system;
  std::int64_t tokens = 512, context = 4096, seed = 1, top_k = 0, threads = 0;
  double temperature = 0.7, top_p = 0.9;
};

void check_values(const Options& o) {
  check(!o.model.empty(), "--model: name the folder of a model");
  check(o.tokens >= 1 && o.tokens <= INT32_MAX, "--tokens: must be in [1, {}], got {}", INT32_MAX,
        o.tokens);
  check(o.context >= 2 && o.context <= INT32_MAX, "--context: must be in [2, {}], got {}",
        INT32_MAX, o.context);
  check(o.temperature >= 0 && std::isfinite(o.temperature),
        "--temperature: must be at least 0, got {}", o.temperature);
  check(o.top_k >= 0, "--topk: must be at least 0, got {}", o.top_k);
  check(o.top_p > 0 && o.top_p <= 1, "--topp: must be in (0, 1], got {}", o.top_p);
  check(o.seed >= 0, "--seed: must be at least 0, got {}", o.seed);
  check(o.threads >= 0 && o.threads <= train::kMostThreads, "--threads: must be in [0, {}], got {}",
        train::kMostThreads, o.threads);
}

/// A conversation with a model. The oldest turns are forgotten when the context is full.
class Conversation {
 public:
  Conversation(const Options& o, examples::ModelFolder found)
      : options_(o),
        text_(o.tokenizer.empty() ? std::move(found.text)
                                  : examples::open_text_tokenizer(o.tokenizer)),
        tokenizer_(*text_.tokenizer),
        chat_(tokenizer_, examples::open_chat("--template", o.format, o.model, tokenizer_)),
        model_(examples::load_model(found.config, found.files, o.context, o.adapter)),
        reply_(model_) {
    ends_.tokens = examples::end_tokens(o.model, tokenizer_);
    ends_.tokens.push_back(chat_.end());
    examples::check_tokens(ends_.tokens, model_.config.vocab);
    forget();
  }

  void forget() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  }

  void answer(const std::string& line) {
    const std::vector<std::int32_t> prompt = prompt_with({"user", line});
    reply_.set(prompt);
    const nn::SamplingOptions choice{
        .temperature = options_.temperature,
        .top_k = options_.top_k,
        .top_p = options_.top_p,
        .allows = [this](std::int64_t token) { return tokenizer_.has(token); }};
    examples::Printer printer(tokenizer_, prompt, ends_);
    const std::int64_t room = model_.config.seq - std::ssize(prompt);
    for (std::int64_t i = 0; i < std::min(options_.tokens, room); ++i) {
      const std::int32_t token =
          reply_.next(choice, static_cast<std::uint64_t>(options_.seed), drawn_++);
      if (!printer.print({&token, 1})) break;
    }
    printer.finish();
    messages_.push_back({"assistant", printer.text()});
  }

 private:
  // The tokens of the conversation with one more message, without the oldest turns if a reply would
  // have no room. A message that is refused leaves the conversation as it was.
  std::vector<std::int32_t> prompt_with(const tokenizer::ChatMessage& next) {
    const std::size_t first = options_.system.empty() ? 0 : 1;
    const std::int64_t most = model_.config.seq - std::min(options_.tokens, model_.config.seq / 4);
    std::vector<tokenizer::ChatMessage> kept = messages_;
    kept.push_back(next);
    while (true) {
      std::vector<std::int32_t> tokens = chat_.write(kept, true).tokens;
      examples::check_tokens(tokens, model_.config.vocab);
      if (std::ssize(tokens) <= most) {
        messages_ = std::move(kept);
        return tokens;
      }
      check(kept.size() - first >= 3,
            "message: must have at most {} tokens with what is around it, got {}", most,
            tokens.size());
      const auto begin = kept.begin() + static_cast<std::ptrdiff_t>(first);
      kept.erase(begin, begin + 2);
    }
  }

  const Options& options_;
  examples::TextTokenizer text_;
  const tokenizer::Tokenizer& tokenizer_;
  tokenizer::ChatWriter chat_;
  nn::Gpt model_;
  examples::Continuation reply_;
  examples::Ends ends_;
  std::vector<tokenizer::ChatMessage> messages_;
  std::uint64_t drawn_ = 0;
};

int chat(const Options& o) {
  check_values(o);
  if (o.threads) set_num_threads(static_cast<int>(o.threads));
  Conversation conversation(o, examples::open_model_folder(o.model));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto ask = [&] {
    if (terminal) examples::put_text("> ");
    std::fflush(stdout);
  };
  const auto answer = [&](const std::string& line) {
    try {
      conversation.answer(line);
    } catch (const Error& e) {  // a message that is too long; the next one may be shorter
      if (!terminal || e.fault() != Fault::user) throw;
      std::fprintf(stderr, "chat: %s\n", e.what());
    }
  };
  if (terminal) examples::put_text("/new begins anew, /quit or Ctrl-D ends\n");
  ask();
  for (std::string line; std::getline(std::cin, line); ask()) {
    if (line == "/quit") return 0;
    if (line == "/new")
      conversation.forget();
    else if (!line.empty())
      answer(line);
  }
  if (terminal) examples::put_text("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("chat", [&] {
    Options o;
    train::CommandLine line(
        "Talks with a model: reads a message from each line, and prints the replies.", "chat");
    line.examples({"chat --model Qwen2.5-0.5B-Instruct",
                   "chat --model runs/tuned --template chatml --system 'Answer in one sentence.'"});
    line.add("--model", o.model, "Hugging Face folder, --out folder of a run, or step folder");
    line.add("--adapter", o.adapter,
             "folder of an adapter of the model: of PEFT, or of a run with --lora-rank");
    line.add("--tokenizer", o.tokenizer, "file or folder of a tokenizer; empty: the model's");
    line.add("--template", o.format,
             "chatml, llama3, mistral, llama2 or deepseek; auto: as the folder or tokenizer says");
    line.add("--system", o.system, "message before the conversation; empty: none");
    line.add("--tokens", o.tokens, "most tokens of a reply");
    line.add("--context", o.context,
             "tokens that the model sees, at most its own; older turns are forgotten");
    line.add("--temperature", o.temperature, "0: always the likeliest");
    line.add("--topk", o.top_k, "choose among this many; 0: all");
    line.add("--topp", o.top_p, "choose among the likeliest with this probability together");
    line.add("--seed", o.seed, "seed of the draws");
    line.add("--threads", o.threads, "threads; 0: all processors");
    std::string config;
    line.add("--config", config, "TOML file with the same names; a flag wins");
    if (!line.parse(train::expand_config(argc, argv))) return 0;
    return chat(o);
  });
}
