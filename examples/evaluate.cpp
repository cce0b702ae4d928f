// Evaluates a model: the loss of texts, and questions with several answers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/data/document_reader.h"
#include "weft/data/text.h"
#include "weft/distributed/hf_folder.h"
#include "weft/examples/common/model_folder.h"
#include "weft/examples/common/score.h"
#include "weft/io/file.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"
#include "weft/train/options.h"
#include "weft/train/terminal.h"

namespace {

using namespace weft;

struct Options {
  std::string model, adapter, tokenizer, choices;
  std::vector<std::string> data;
  std::int64_t seq = 0, stride = 0, limit = 0, threads = 0;
};

constexpr std::int64_t kDefaultSeq = 2048;

void evaluate_text(const Options& o, const nn::Gpt& model, const tokenizer::Tokenizer& t) {
  data::check_holds_text("--data", o.data);
  const std::vector<std::int32_t> tokens = t.encode(data::read_text(o.data));
  check(tokens.size() >= 2, "--data: must have at least 2 tokens, got {}", tokens.size());
  examples::check_tokens(tokens, model.config.vocab);
  const examples::TextScore s = examples::score_text(model, t, tokens, o.stride);
  train::print_fact("tokens", train::with_separators(s.tokens));
  train::print_fact(
      "loss", train::formatted("%.6f", s.nats / static_cast<double>(s.tokens)) + " nats per token");
  train::print_fact("perplexity", train::formatted("%.6g", s.perplexity()));
  if (s.bytes > 0) train::print_fact("bits per byte", train::formatted("%.6f", s.bits_per_byte()));
}

void evaluate_choices(const Options& o, const nn::Gpt& model, const tokenizer::Tokenizer& t,
                      std::int32_t begin) {
  check(!io::is_directory(o.choices), "--choices: '{}' is a folder", o.choices);
  std::ifstream file(o.choices);
  check_system(file.good(), "--choices: cannot read '{}'", o.choices);
  std::int64_t number = 0, questions = 0, right = 0, right_by_length = 0;
  for (std::string line; std::getline(file, line) && (o.limit == 0 || questions < o.limit);) {
    const std::string what = message("{} line {}", o.choices, ++number);
    if (data::is_blank(line)) continue;
    const examples::Choice c = examples::choice_from(line, what);
    const examples::Chosen chosen = [&] {
      try {
        return examples::choose(model, t, c, begin);
      } catch (const Error& e) {
        throw Error(message("{}: {}", what, std::string(e.what())), e.fault());
      }
    }();
    ++questions;
    right += chosen.by_sum == c.answer;
    right_by_length += chosen.by_length == c.answer;
  }
  check(questions > 0, "--choices: '{}' must have a question in each line, got none", o.choices);
  const auto n = static_cast<double>(questions);
  const auto show = [&](const char* name, std::int64_t hits) {
    const double share = static_cast<double>(hits) / n;
    const double error = questions > 1 ? std::sqrt(share * (1 - share) / (n - 1)) : 0;
    train::print_fact(name, train::formatted("%.4f", share) + train::formatted(" +- %.4f", error));
  };
  train::print_fact("questions", train::with_separators(questions));
  show("acc", right);
  show("acc_norm", right_by_length);
}

int evaluate(const Options& o) {
  check(!o.model.empty(), "--model: name the folder of a model");
  check(!o.data.empty() || !o.choices.empty(), "--data: name texts, or questions with --choices");
  check(o.seq >= 0, "--seq: must be at least 0, got {}", o.seq);
  check(o.stride >= 0, "--stride: must be at least 0, got {}", o.stride);
  check(o.limit >= 0, "--limit: must be at least 0, got {}", o.limit);
  check(o.stride == 0 || !o.data.empty(), "--stride: needs --data, got {}", o.stride);
  check(o.limit == 0 || !o.choices.empty(), "--limit: needs --choices, got {}", o.limit);
  check(o.threads >= 0 && o.threads <= train::kMostThreads, "--threads: must be in [0, {}], got {}",
        train::kMostThreads, o.threads);
  if (o.threads) set_num_threads(static_cast<int>(o.threads));
  examples::ModelFolder found = examples::open_model_folder(o.model);
  check(o.seq <= found.config.seq, "--seq: must be at most the model's {}, got {}",
        found.config.seq, o.seq);
  // Bytes would be other tokens to a model that learnt from a tokenizer's.
  check(!o.tokenizer.empty() || !found.tokenizer.empty() || !distributed::is_hf_folder(o.model) ||
            found.config.vocab <= found.text.tokenizer->vocab(),
        "--model: '{}' holds no tokenizer that can be read; name one with --tokenizer", o.model);
  if (!o.tokenizer.empty()) found.text = examples::open_text_tokenizer(o.tokenizer);
  const tokenizer::Tokenizer& t = *found.text.tokenizer;
  const std::int64_t seq = o.seq ? o.seq : std::min(found.config.seq, kDefaultSeq);
  check(o.stride <= seq, "--stride: must be at most --seq {}, got {}", seq, o.stride);
  nn::Gpt model = examples::load_model(found.config, found.files, seq, o.adapter);
  model.config.seq = seq;  // without the places for multi-token prediction
  if (!o.data.empty()) evaluate_text(o, model, t);
  if (o.choices.empty()) return 0;
  const std::vector<std::int32_t> ends = examples::end_tokens(o.model, t);
  evaluate_choices(o, model, t, ends.empty() ? -1 : ends[0]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("evaluate", [&] {
    Options o;
    train::CommandLine line(
        "Evaluates a model: perplexity and bits per byte of texts, accuracy on questions.",
        "evaluate");
    line.examples({"evaluate --model runs/book --data other_book.txt --stride 128",
                   "evaluate --model Llama-3.2-1B --choices questions.jsonl"});
    line.add("--model", o.model, "Hugging Face folder, --out folder of a run, or step folder");
    line.add("--adapter", o.adapter,
             "folder of an adapter of the model: of PEFT, or of a run with --lora-rank");
    line.add("--tokenizer", o.tokenizer, "file or folder of a tokenizer; empty: the model's");
    line.add("--data", o.data, "text files");
    line.add("--seq", o.seq, "tokens that the model sees; 0: the model's, at most 2048");
    line.add("--stride", o.stride,
             "tokens between the beginnings of two windows: fewer give each token more before it; "
             "0: --seq");
    line.add("--choices", o.choices,
             "file with {\"context\": ..., \"choices\": [...], \"answer\": 0} in each line");
    line.add("--limit", o.limit, "questions, the first ones; 0: all");
    line.add("--threads", o.threads, "threads; 0: all processors");
    std::string config;
    line.add("--config", config, "TOML file with the same names; a flag wins");
    if (!line.parse(train::expand_config(argc, argv))) return 0;
    return evaluate(o);
  });
}
