#include "weft/examples/common/gpt_program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/peak_flops.h"
#include "weft/distributed/hf_folder.h"
#include "weft/distributed/launcher.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/adapter_start.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/gpt_data.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/sample.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/train/config_file.h"
#include "weft/train/launch.h"
#include "weft/train/memory.h"
#include "weft/train/terminal.h"
#include "weft/train/trainer.h"

namespace weft::examples {
namespace {

using train::print_fact;

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

void print_plan(const GptOptions& o, const GptData& data, const train::Ranks& ranks) {
  const std::int64_t step = o.batch * o.model.seq;
  print_fact("parameters", grouped(o.gpt().parameter_count()));
  if (o.lora.rank > 0)
    print_fact("trained", message("{} parameters of adapters{}", grouped(adapter_parameters(o)),
                                  o.adapter.empty() ? "" : ", from '" + o.adapter + "'"));
  print_fact("data", message("{} tokens, and {} held out for evaluation", grouped(data.tokens()),
                             grouped(data.held_out_tokens())));
  if (data.bytes_per_token > 0 && data.bytes_per_token != 1)
    print_fact("bytes per token", train::formatted("%.4f", data.bytes_per_token));
  const auto epochs = [&](double share, std::int64_t tokens) {
    return train::formatted(
        "%.3g", share * static_cast<double>(o.steps * step) / static_cast<double>(tokens));
  };
  print_fact("training", message("{} steps of {} tokens, {} in all, {} epochs", grouped(o.steps),
                                 grouped(step), grouped(o.steps * step), epochs(1, data.tokens())));
  if (data.sources.size() > 1)
    for (const GptData::Source& s : data.sources)
      print_fact("source",
                 message("{}{}: {} of the rows, {} tokens, {} epochs", s.files[0],
                         s.files.size() > 1 ? ", ..." : "", train::formatted("%.4g", data.share(s)),
                         grouped(s.training.size()), epochs(data.share(s), s.training.size())));
  const int size = ranks.is_alone() ? 0 : ranks.size();
  const auto peak = static_cast<double>(predict_peak_bytes(o, size, ranks.rank()));
  print_fact("peak memory", train::byte_count(peak) + " of tensors");
  if (o.dry_run) print_recompute(o, size, ranks.rank());
}

// Warns of settings that are allowed but seldom intended.
void print_warnings(const GptOptions& o, const GptData& data, std::int32_t highest_token) {
  const std::int64_t used = data.text ? data.text->tokenizer->vocab() : highest_token + 1;
  if (o.model.vocab >= 4 * used)
    print_fact("warning", message("--vocab {}: {} {} tokens only", grouped(o.model.vocab),
                                  !data.text              ? "the data have"
                                  : data.text->is_bytes() ? "the bytes tokenizer has"
                                                          : "the tokenizer has",
                                  grouped(used)));
  if (o.run.eval_every > 0 && !data.validation)
    print_fact("warning", "--eval-every: there are no held-out data to evaluate");
  if (const std::int64_t rows = data.training->size(); o.batch > rows)
    print_fact("warning", message("--batch {} is more than the {} rows of the data",
                                  grouped(o.batch), grouped(rows)));
  // A forward pass takes about a third of a step.
  const auto steps = static_cast<double>(o.steps),
             every = o.run.eval_every ? static_cast<double>(o.run.eval_every) : steps,
             evaluated = std::ceil(steps / every) * static_cast<double>(data.held_out_tokens());
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

// A resumed run has a copy in its checkpoints, should the folder that it began from be gone.
TextTokenizer tokenizer_of(const GptOptions& o) {
  const std::string config = o.out + "/config.toml", &path = o.data.tokenizer;
  if (!o.run.resume || path == "bytes" || io::exists(path) || !io::exists(config))
    return open_text_tokenizer(path);
  const auto settings = train::settings_of(io::read_file(config));
  const auto before = settings.find("tokenizer");
  const auto found = before != settings.end() && before->second == path ? io::find_checkpoint(o.out)
                                                                        : std::nullopt;
  if (!found) return open_text_tokenizer(path);
  return open_text_tokenizer(*found,
                             io::Json::parse(found->state(), found->folder + "/state.json"));
}

}  // namespace

int train_gpt(GptOptions options) {
  options.data.opened = std::make_shared<const TextTokenizer>(tokenizer_of(options));
  if (options.model.vocab == 0) options.model.vocab = options.data.opened->tokenizer->vocab();
  options.data.files = split_list(options.data.files);
  options.data.val_files = split_list(options.data.val_files);
  options.config = train::to_toml(options);
  // Checks all rules, cheapest first, before allocating anything whose size depends on a flag.
  options.gpt().validate();
  check(options.lora.rank == 0 || !options.run.weights.empty(),
        "--lora-rank: needs the model whose weights are kept; name it with --init");
  train::check_ranks(options);
  train::apply(options.machine);
  const GptData data = read_data(options);
  if (!options.dry_run)
    // A frozen weight has no gradient.
    train::check_least_memory(
        options,
        static_cast<double>(options.gpt().parameter_count()) * (options.lora.rank > 0 ? 0.5 : 1),
        static_cast<double>(options.model.seq * options.model.dim));
  const bool resumes = options.run.resume && io::exists(options.out + "/checkpoints");
  if (!options.run.weights.empty() && !resumes)
    check_weights(options.gpt(), distributed::open_weights(options.run.weights));
  if (options.lora.rank > 0) options.base_crc32c = fingerprint(options.run.weights);
  if (!resumes) start_of_adapter(options);  // an adapter that does not fit is refused early
  const std::int32_t highest = data.check_vocab(options.model.vocab);
  if (!options.dry_run)
    train::check_peak_memory(options, [&] {
      const auto size = static_cast<int>(options.parallel.ranks);
      return predict_peak_bytes(options, size, 0) + predict_copied_by_save(options, size, 0);
    });
  const int threads = num_threads();  // a rank that is a thread gets a share of them
  return train::run_on_ranks(options, [&](const train::Ranks& ranks) {
    if (ranks.is_first()) {
      print_plan(options, data, ranks);
      print_warnings(options, data, highest);
    }
    if (options.dry_run) return 0;
    GptTask gpt(options);
    train::Task task = gpt.task();
    task.bytes_per_token = data.bytes_per_token;
    task.state.set("data", data.description());
    if (!options.adapter.empty()) task.start = [&] { return start_of_adapter(options); };
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
    return trainer.fit(*data.training, data.validation.get());
  });
}

int train_gpt_main(GptOptions defaults, int argc, char** argv) {
  return train::guarded(defaults.program,
                        [&] { return parse(defaults, argc, argv) ? train_gpt(defaults) : 0; });
}

}  // namespace weft::examples
