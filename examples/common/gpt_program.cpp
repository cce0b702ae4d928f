#include "weft/examples/common/gpt_program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/peak_flops.h"
#include "weft/data/packed_documents.h"
#include "weft/data/text.h"
#include "weft/data/token_windows.h"
#include "weft/distributed/launcher.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/sample.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/file.h"
#include "weft/tokenizer/utf8.h"
#include "weft/train/launch.h"
#include "weft/train/memory.h"
#include "weft/train/terminal.h"
#include "weft/train/trainer.h"

namespace weft::examples {
namespace {

using data::TokenStream;
using data::TokenWindows;
using train::print_fact;

bool is_token_file(const std::string& path) { return path.ends_with(".bin"); }

// A comma separates paths, unless a file has that name.
std::vector<std::string> split_list(const std::vector<std::string>& given) {
  std::vector<std::string> paths;
  for (const std::string& text : given) {
    if (text.find(',') == std::string::npos || std::filesystem::exists(text)) {
      paths.push_back(text);
      continue;
    }
    std::string path;
    for (std::istringstream list(text); std::getline(list, path, ',');)
      if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

// Whether these are .bin files. Errors name `flag`.
bool check_paths(const char* flag, const std::vector<std::string>& paths) {
  check(!paths.empty(), "{}: name at least one file", flag);
  for (const std::string& path : paths)
    check(distributed::launched_ranks() <= 1 || !std::filesystem::is_fifo(path),
          "{}: processes cannot share the pipe '{}'; give a file", flag, path);
  const auto shards = std::count_if(paths.begin(), paths.end(), is_token_file);
  check(shards == 0 || shards == static_cast<std::ptrdiff_t>(paths.size()),
        "{}: must be text files or .bin files, got {} of {} with tokens", flag, shards,
        paths.size());
  return shards > 0;
}

// Text files are bytes for the tokenizer; a .bin file holds token ids.
TokenStream read_tokens(const char* flag, const std::vector<std::string>& paths) {
  if (!check_paths(flag, paths)) return TokenStream::of_bytes(data::read_text(paths));
  std::vector<TokenStream> parts;
  for (const std::string& path : paths) parts.push_back(data::open_token_file(path));
  return TokenStream::joined(std::move(parts));
}

struct Data {
  TokenStream training, held_out;
  const TextTokenizer* text;  ///< what the tokens mean; null: unknown
  double bytes_per_token;     ///< 0: unknown
};

// Text files that --tokenizer encodes. The held-out part is the same text whatever the tokenizer,
// up to the character in which it would begin.
std::pair<TokenStream, TokenStream> encode_files(const DataOptions& o) {
  check_paths("--data", o.files);
  const std::string text = data::read_text(o.files);
  if (!o.val_files.empty()) {
    check_paths("--val-data", o.val_files);
    return {encode_text(*o.opened, text), encode_text(*o.opened, data::read_text(o.val_files))};
  }
  const std::string_view all = text;
  const auto held = data::held_out_size(static_cast<std::int64_t>(all.size()), o.val_fraction);
  std::size_t cut = all.size() - static_cast<std::size_t>(held);
  if (held > 0) cut -= tokenizer::incomplete_utf8(all.substr(0, cut));
  return {encode_text(*o.opened, all.substr(0, cut)), encode_text(*o.opened, all.substr(cut))};
}

Data read_data(const DataOptions& o) {
  check(!o.files.empty(), "--data: name at least one file");
  const bool bytes = !is_token_file(o.files[0]), is_encoded = bytes && !o.opened->is_bytes();
  check(o.val_files.empty() || is_token_file(o.val_files[0]) != bytes,
        "--val-data: must be {} as --data, got '{}'", bytes ? "text" : "a .bin file",
        o.val_files.empty() ? "" : o.val_files[0]);
  auto [training, held_out] = [&]() -> std::pair<TokenStream, TokenStream> {
    if (is_encoded) return encode_files(o);
    const TokenStream all = read_tokens("--data", o.files);
    if (o.val_files.empty()) return data::split_tokens(all, o.val_fraction);
    return {all, read_tokens("--val-data", o.val_files)};
  }();
  // The first token is not a target.
  if (o.eval_tokens > 0 && held_out.size() > o.eval_tokens)
    held_out = held_out.slice(0, o.eval_tokens + 1);
  const bool is_known = bytes || !o.opened->is_bytes();
  const double mean = bytes && !is_encoded ? 1 : o.bytes_per_token;
  return {training, held_out, is_known ? o.opened.get() : nullptr,
          mean == 0 && is_known ? bytes_per_target(*o.opened, held_out) : mean};
}

// The tokens that end a document: the bytes of a text, or one token, by its id or its text.
std::vector<std::int32_t> document_end(const GptOptions& o) {
  if (!is_token_file(o.data.files[0])) {
    check(o.data.opened->is_bytes(),
          "--pack: with --tokenizer needs .bin files, where a token ends each document");
    std::vector<std::int32_t> bytes;
    for (const char c : o.data.pack) bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
  }
  // A number first: "2" is the token 2, not the one of the digit.
  std::int32_t token = -1;
  const char* const end = o.data.pack.data() + o.data.pack.size();
  const auto read = std::from_chars(o.data.pack.data(), end, token);
  if (read.ec == std::errc() && read.ptr == end && token >= 0) return {token};
  const auto named = o.data.opened->tokenizer->find(o.data.pack);
  check(named.has_value(),
        "--pack: with a .bin file must be the number of a token, or its text in --tokenizer, got "
        "'{}'",
        o.data.pack);
  return {*named};
}

std::unique_ptr<data::Dataset> dataset_of(const GptOptions& o, const TokenStream& tokens,
                                          TokenWindows::Tail tail) {
  if (o.data.pack.empty()) return std::make_unique<TokenWindows>(tokens, o.model.seq, tail);
  return std::make_unique<data::PackedDocuments>(tokens, o.model.seq, document_end(o));
}

std::string grouped(std::int64_t n) { return train::with_separators(n); }

// What each part of --recompute saves of the peak, alone and in the chosen blocks.
void print_recompute(GptOptions o, int ranks, int rank) {
  const auto peak = [&](nn::Recompute r) {
    o.model.recompute = r;
    return predict_peak_bytes(o, ranks, rank);
  };
  const std::int64_t whole = peak(nn::Recompute::none);
  for (const Word<nn::Recompute>& w : nn::kRecomputeWords) {
    if (w.value == nn::Recompute::none || (w.value == nn::Recompute::gathered && !o.parallel.sp))
      continue;
    if (const std::int64_t saved = whole - peak(w.value); saved != 0)
      print_fact(message("recompute {}", w.name).c_str(),
                 message("saves {} bytes of {}", grouped(saved), grouped(whole)));
  }
}

void print_plan(const GptOptions& o, const Data& data, const train::Ranks& ranks) {
  const std::int64_t step = o.batch * o.model.seq;
  print_fact("parameters", grouped(o.gpt().parameter_count()));
  print_fact("data", message("{} tokens, and {} held out for evaluation",
                             grouped(data.training.size()), grouped(data.held_out.size())));
  if (data.bytes_per_token > 0 && data.bytes_per_token != 1)
    print_fact("bytes per token", train::formatted("%.4f", data.bytes_per_token));
  const double epochs = static_cast<double>(o.steps) * static_cast<double>(step) /
                        static_cast<double>(data.training.size());
  print_fact("training",
             message("{} steps of {} tokens, {} in all, {} epochs", grouped(o.steps), grouped(step),
                     grouped(o.steps * step), train::formatted("%.3g", epochs)));
  const int size = ranks.is_alone() ? 0 : ranks.size();
  const auto peak = static_cast<double>(predict_peak_bytes(o, size, ranks.rank()));
  print_fact("peak memory", train::byte_count(peak) + " of tensors");
  if (o.dry_run) print_recompute(o, size, ranks.rank());
}

// Warns of settings that are allowed but seldom intended.
void print_warnings(const GptOptions& o, const Data& data, std::int64_t training_rows,
                    std::int32_t highest_token) {
  const std::int64_t used = data.text ? data.text->tokenizer->vocab() : highest_token + 1;
  if (o.model.vocab >= 4 * used)
    print_fact("warning", message("--vocab {}: {} {} tokens only", grouped(o.model.vocab),
                                  !data.text              ? "the data have"
                                  : data.text->is_bytes() ? "the bytes tokenizer has"
                                                          : "the tokenizer has",
                                  grouped(used)));
  if (o.batch > training_rows)
    print_fact("warning", message("--batch {} is more than the {} rows of the data",
                                  grouped(o.batch), grouped(training_rows)));
  // A forward pass takes about a third of a step.
  const auto steps = static_cast<double>(o.steps),
             every = o.run.eval_every ? static_cast<double>(o.run.eval_every) : steps,
             evaluated = std::ceil(steps / every) * static_cast<double>(data.held_out.size());
  if (evaluated / 3 > steps * static_cast<double>(o.batch * o.model.seq))
    print_fact("warning", "evaluations take longer than the training; see --eval-tokens");
}

// Peak FLOP/s of the CPU with this process's threads; 0 if unknown.
double peak_flops(const GptOptions& o, int threads) {
  if (!Device::parse(o.machine.device).is_cpu() || o.machine.dtype != DType::f32 ||
      distributed::launched_ranks() > 1)
    return 0;
  return measure_thread_flops() * threads;
}

}  // namespace

int train_gpt(GptOptions options) {
  options.data.opened =
      std::make_shared<const TextTokenizer>(open_text_tokenizer(options.data.tokenizer));
  if (options.model.vocab == 0) options.model.vocab = options.data.opened->tokenizer->vocab();
  options.data.files = split_list(options.data.files);
  options.data.val_files = split_list(options.data.val_files);
  options.config = train::to_toml(options);
  // Checks all rules, cheapest first, before allocating anything whose size depends on a flag.
  options.gpt().validate();
  train::check_ranks(options);
  train::apply(options.machine);
  const Data data = read_data(options.data);
  const auto training = dataset_of(options, data.training, TokenWindows::Tail::dropped);
  std::unique_ptr<data::Dataset> validation;
  if (data.held_out.size() > 1)
    validation = dataset_of(options, data.held_out, TokenWindows::Tail::padded);
  if (!options.dry_run)
    train::check_least_memory(options, static_cast<double>(options.gpt().parameter_count()),
                              static_cast<double>(options.model.seq * options.model.dim));
  const bool resumes = options.run.resume && io::exists(options.out + "/checkpoints");
  if (!options.run.weights.empty() && !resumes)
    check_weights(options.gpt(), distributed::ShardFiles({options.run.weights}));
  const std::int32_t highest = std::max(data::check_vocab(data.training, options.model.vocab),
                                        data::check_vocab(data.held_out, options.model.vocab));
  if (!options.dry_run)
    train::check_peak_memory(options, [&] {
      return predict_peak_bytes(options, static_cast<int>(options.parallel.ranks), 0);
    });
  const int threads = num_threads();  // a rank that is a thread gets a share of them
  return train::run_on_ranks(options, [&](const train::Ranks& ranks) {
    if (ranks.is_first()) {
      print_plan(options, data, ranks);
      print_warnings(options, data, training->size(), highest);
    }
    if (options.dry_run) return 0;
    GptTask gpt(options);
    train::Task task = gpt.task();
    task.bytes_per_token = data.bytes_per_token;
    task.sample = [&] {
      // The prompt is a line break, or GPT-2's end-of-text token.
      const std::vector<std::int32_t> line =
          data.text ? data.text->tokenizer->encode("\n") : std::vector<std::int32_t>{50256};
      const std::int64_t first =
          line.empty() ? 0 : std::min<std::int64_t>(line[0], options.model.vocab - 1);
      return sample_text(sample_tokens(gpt.model, static_cast<std::int32_t>(first), 200,
                                       static_cast<std::uint64_t>(options.machine.seed)),
                         data.text ? data.text->tokenizer.get() : nullptr);
    };
    if (ranks.is_first()) task.peak_flops = peak_flops(options, threads);
    train::Trainer trainer(task, options, ranks);
    return trainer.fit(*training, validation.get());
  });
}

int train_gpt_main(GptOptions defaults, int argc, char** argv) {
  return train::guarded(defaults.program,
                        [&] { return parse(defaults, argc, argv) ? train_gpt(defaults) : 0; });
}

}  // namespace weft::examples
