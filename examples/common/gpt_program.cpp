#include "weft/examples/common/gpt_program.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "weft/core/error.h"
#include "weft/core/gemm_check.h"
#include "weft/core/parallel.h"
#include "weft/data/packed_documents.h"
#include "weft/data/text.h"
#include "weft/data/token_windows.h"
#include "weft/data/tokenizer.h"
#include "weft/distributed/mpi_world.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/train/launch.h"
#include "weft/train/memory.h"
#include "weft/train/trainer.h"

namespace weft::examples {
namespace {

using data::TokenStream;
using data::TokenWindows;

// Text files are bytes for the tokenizer; a .bin file holds token ids.
TokenStream read_tokens(const std::vector<std::string>& paths) {
  check(!paths.empty(), "--data: name at least one file");
  for (const std::string& path : paths)
    check(distributed::launched_ranks() <= 1 || !std::filesystem::is_fifo(path),
          "--data: processes cannot share the pipe '{}'; give a file", path);
  const auto is_tokens = [](const std::string& p) { return p.ends_with(".bin"); };
  if (std::none_of(paths.begin(), paths.end(), is_tokens))
    return TokenStream::of_bytes(data::read_text(paths));
  check(paths.size() == 1, "--data: a .bin file must be the only one, got {} files", paths.size());
  return data::open_token_file(paths[0]);
}

// The tokens that end a document: the bytes of a text, or one token id.
std::vector<std::int32_t> document_end(const GptOptions& o) {
  if (!o.data.files[0].ends_with(".bin")) {
    std::vector<std::int32_t> bytes;
    for (const char c : o.data.pack) bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
  }
  std::int32_t token = -1;
  const char* const end = o.data.pack.data() + o.data.pack.size();
  const auto read = std::from_chars(o.data.pack.data(), end, token);
  check(read.ec == std::errc() && read.ptr == end && token >= 0,
        "--pack: with a .bin file must be the number of a token, got '{}'", o.data.pack);
  return {token};
}

std::unique_ptr<data::Dataset> dataset_of(const GptOptions& o, const TokenStream& tokens,
                                          TokenWindows::Tail tail) {
  if (o.data.pack.empty()) return std::make_unique<TokenWindows>(tokens, o.model.seq, tail);
  return std::make_unique<data::PackedDocuments>(tokens, o.model.seq, document_end(o));
}

void print_plan(const GptOptions& o, std::int64_t data_tokens, const train::Ranks& ranks) {
  std::printf("parameters       %lld\n", static_cast<long long>(o.gpt().parameter_count()));
  std::printf("data             %lld tokens\n", static_cast<long long>(data_tokens));
  std::printf("training         %lld steps of %lld tokens, %.1f million in all\n",
              static_cast<long long>(o.steps), static_cast<long long>(o.batch * o.model.seq),
              static_cast<double>(o.steps * o.batch * o.model.seq) * 1e-6);
  const int size = ranks.is_alone() ? 0 : ranks.size();
  std::printf("peak memory      %.1f MB of tensors\n",
              static_cast<double>(predict_peak_bytes(o, size, ranks.rank())) * 1e-6);
}

// Peak FLOP/s of the CPU with this process's threads, measured when the library computes products
// in f32; else 0. Warns if matrix products are far below it.
double measure_peak(const GptOptions& o, int threads) {
  if (!Device::parse(o.machine.device).is_cpu() || o.machine.dtype != DType::f32) return 0;
  const std::optional<GemmCheck> rates = check_gemm_speed();
  if (!rates) return 0;
  if (const std::string warning = gemm_warning(*rates); !warning.empty())
    std::fprintf(stderr, "%s: %s\n", o.program.c_str(), warning.c_str());
  return distributed::launched_ranks() > 1 ? 0 : rates->multiply_add * threads;
}

}  // namespace

int train_gpt(GptOptions options) {
  if (options.model.vocab == 0) options.model.vocab = data::ByteTokenizer().vocab();
  options.config = train::to_toml(options);
  // Checks all rules, cheapest first, before allocating anything whose size depends on a flag.
  options.gpt().validate();
  train::check_ranks(options);
  train::apply(options.machine);
  const TokenStream tokens = read_tokens(options.data.files);
  const auto [train_tokens, val_tokens] = data::split_tokens(tokens, options.data.val_fraction);
  const auto training = dataset_of(options, train_tokens, TokenWindows::Tail::dropped);
  std::unique_ptr<data::Dataset> validation;
  if (val_tokens.size() > 1)
    validation = dataset_of(options, val_tokens, TokenWindows::Tail::padded);
  if (!options.dry_run)
    train::check_least_memory(options, static_cast<double>(options.gpt().parameter_count()),
                              static_cast<double>(options.model.seq * options.model.dim));
  if (!options.run.weights.empty())
    check_weights(options.gpt(), distributed::PieceFiles({options.run.weights}));
  data::check_vocab(tokens, options.model.vocab);
  if (!options.dry_run)
    train::check_peak_memory(options, [&] {
      return predict_peak_bytes(options, static_cast<int>(options.parallel.ranks), 0);
    });
  const int threads = num_threads();  // a rank that is a thread gets a share of them
  return train::run_on_ranks(options, [&](const train::Ranks& ranks) {
    if (ranks.is_first()) print_plan(options, tokens.size(), ranks);
    if (options.dry_run) return 0;
    GptTask gpt(options);
    train::Task task = gpt.task();
    if (ranks.is_first()) task.peak_flops = measure_peak(options, threads);
    train::Trainer trainer(task, options, ranks);
    return trainer.fit(*training, validation.get());
  });
}

int train_gpt_main(GptOptions defaults, int argc, char** argv) {
  return train::guarded(defaults.program,
                        [&] { return parse(defaults, argc, argv) ? train_gpt(defaults) : 0; });
}

}  // namespace weft::examples
