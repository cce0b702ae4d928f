// A whole training step of small GPTs (forward, backward, clipping, AdamW), and generation of one
// token at a time. The same with --deterministic, whose cost docs/determinism.md quotes.
//
// With --model NAME: a number of steps of a model in bench/models.h, as bench/peers/gpt.py runs
// them in PyTorch; the result is one line of JSON. These also run on a GPU: --device cuda, and with
// --graph on as one captured step that is replayed. --kernels FILE profiles one more step: the file
// has the work of each kernel, whose time bench/gpu/model.py predicts. --bytes on adds the bytes
// that the kernels of a step move to the line of JSON. On --device meta:cuda nothing is computed,
// so a step of any size can be recorded. --pause N stops the process (SIGSTOP) before the first
// timed step and after every N; bench/peers/turns.py continues it when it is this program's turn.
// --products on runs the products of each step alone (bench/product_sequence.h), by the engine that
// WEFT_GEMM names.
#include <algorithm>
#include <csignal>

#include "weft/bench/harness.h"
#include "weft/bench/product_sequence.h"
#include "weft/bench/train_run.h"
#include "weft/io/json.h"
#include "weft/weft.h"

using namespace weft;

namespace {

struct Model {
  const char* name;
  nn::GptConfig config;
  std::int64_t batch;
};

const Model kModels[] = {
    {"gpt2 4x128, batch 16 x 128",
     {.layers = 4, .heads = 4, .dim = 128, .seq = 128, .vocab = 256},
     16},
    {"llama 4x128, batch 16 x 128",
     {.arch = nn::Arch::llama, .layers = 4, .heads = 4, .dim = 128, .seq = 128, .vocab = 256},
     16},
    {"gpt2 6x384, batch 8 x 256",
     {.layers = 6, .heads = 6, .dim = 384, .seq = 256, .vocab = 256},
     8},
};

/// Seconds of one step after warm-up.
double step_seconds(const Model& m) {
  nn::Gpt model(m.config);
  nn::init(model, 1);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  Tensor ids = Tensor::empty({m.batch, m.config.seq}, DType::i32);
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 37 % m.config.vocab);
  return bench::median(7, [&] {
    const double start = bench::now();
    {
      Tape tape;
      const Tensor loss = model.loss(model.hidden(ids), model.head, ids);
      loss.backward();
    }
    optimizer.step(optim::measure_clip(model.named_parameters(), 1.0));
    optimizer.zero_grad();
    return bench::now() - start;
  });
}

double decode_seconds(const Model& m) {
  nn::Gpt model(m.config);
  model.eval();
  const std::int64_t tokens = m.config.seq - 1;
  const Tensor one = Tensor::zeros({1, 1}, DType::i32);
  return bench::median(5, [&] {
    nn::KvCache cache(m.config, 1, m.config.seq);
    const double start = bench::now();
    for (std::int64_t i = 0; i < tokens; ++i) model.decode(one, cache);
    return (bench::now() - start) / static_cast<double>(tokens);
  });
}

void write_losses(const std::string& path, const std::vector<double>& losses) {
  std::FILE* f = std::fopen(path.c_str(), "w");
  check(f != nullptr, "--losses: cannot write {}", path);
  for (const double loss : losses) std::fprintf(f, "%.9g\n", loss);
  check(std::fclose(f) == 0, "--losses: cannot write {}", path);
}

// Writes a row for each kernel of each op with its operands, longest first.
void write_kernels(const std::string& path, const bench::TrainRun& run,
                   const bench::TrainResult& result) {
  std::vector<Profiler::Entry> kernels = result.kernels;
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const auto& a, const auto& b) { return a.work.seconds > b.work.seconds; });
  io::Json rows;
  for (const Profiler::Entry& e : kernels) {
    io::Json row = io::Json::object();
    row.set("phase", e.phase).set("op", e.op).set("kernel", e.kernel).set("operands", e.operands);
    row.set("calls", e.work.calls).set("launches", e.work.launches);
    row.set("seconds", e.work.seconds).set("flops", e.work.flops).set("bytes", e.work.bytes);
    rows.push_back(std::move(row));
  }
  io::Json out = io::Json::object();
  out.set("model", run.model).set("device", run.device).set("dtype", run.dtype);
  out.set("step_tokens", bench::step_model(run.model).step_tokens());
  out.set("step_seconds", result.kernels_seconds).set("kernels", std::move(rows));
  std::FILE* f = std::fopen(path.c_str(), "w");
  check(f != nullptr, "--kernels: cannot write {}", path);
  std::fprintf(f, "%s\n", out.dump().c_str());
  check(std::fclose(f) == 0, "--kernels: cannot write {}", path);
}

double step_bytes(const bench::TrainResult& result) {
  double bytes = 0;
  for (const Profiler::Entry& e : result.kernels) bytes += e.work.bytes;
  return bytes;
}

int run_one_model(const bench::TrainRun& run, const std::string& losses_file,
                  const std::string& kernels_file) {
  const bench::TrainResult result = bench::train(run);
  if (!losses_file.empty()) write_losses(losses_file, result.losses);
  if (!kernels_file.empty()) write_kernels(kernels_file, run, result);
  io::Json milliseconds;
  for (const double s : result.seconds) milliseconds.push_back(1e3 * s);
  const std::int64_t tokens = bench::step_model(run.model).step_tokens();
  io::Json out = io::Json::object();
  out.set("model", run.model).set("device", run.device).set("dtype", run.dtype);
  if (run.graph) out.set("graph", true);
  out.set("threads", num_threads()).set("step_tokens", tokens);
  out.set("step_ms", milliseconds);
  out.set("tokens_per_s", static_cast<double>(tokens) / result.median_seconds());
  out.set("peak_rss_mib", result.peak_rss_mib).set("peak_bytes", result.peak_bytes);
  if (run.kernels) out.set("step_bytes", step_bytes(result));
  out.set("host_syncs", result.host_syncs).set("last_loss", result.losses.back());
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

int run_products(const bench::TrainRun& run) {
  const bench::ProductSequence step(bench::step_model(run.model));
  io::Json milliseconds;
  for (int i = -run.warmup; i < run.steps; ++i) {
    if (run.pause > 0 && i >= 0 && i % run.pause == 0) std::raise(SIGSTOP);
    const double start = bench::now();
    step.run();
    if (i >= 0) milliseconds.push_back(1e3 * (bench::now() - start));
  }
  io::Json out = io::Json::object();
  out.set("model", run.model).set("threads", num_threads());
  out.set("gflop", step.flops() * 1e-9).set("step_ms", milliseconds);
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  bench::TrainRun run;
  std::string steps, warmup, pause, losses, graph, kernels, bytes, weights, products;
  const std::vector<bench::Flag> of_model{
      {"--model", &run.model, "NAME"},
      {"--device", &run.device, "cpu|cuda|meta:cuda"},
      {"--dtype", &run.dtype, "f32|bf16|f16|fp8"},
      {"--fp8-recipe", &run.fp8_recipe, "current|current-pow2|delayed|block"},
      {"--fp8-weights", &weights, "on|off"},
      {"--graph", &graph, "on|off"},
      {"--steps", &steps, "N"},
      {"--warmup", &warmup, "N"},
      {"--pause", &pause, "N"},
      {"--init", &run.init_file, "FILE"},
      {"--export", &run.export_file, "FILE"},
      {"--data", &run.data_file, "FILE"},
      {"--losses", &losses, "FILE"},
      {"--kernels", &kernels, "FILE"},
      {"--bytes", &bytes, "on|off"},
      {"--products", &products, "on|off"}};
  std::vector<std::string> unset;
  for (const bench::Flag& flag : of_model) unset.push_back(*flag.value);
  bench::Report report(argc, argv, of_model);
  for (std::size_t i = 0; run.model.empty() && i < unset.size(); ++i)
    check(*of_model[i].value == unset[i], "{}: needs --model", of_model[i].name);
  if (!steps.empty()) run.steps = bench::whole_number("--steps", steps, 1);
  if (!warmup.empty()) run.warmup = bench::whole_number("--warmup", warmup, 0);
  if (!pause.empty()) run.pause = bench::whole_number("--pause", pause, 0);
  const auto is_on = [](const char* flag, const std::string& word) {
    check(word.empty() || word == "on" || word == "off", "{}: must be on or off, got {}", flag,
          word);
    return word == "on";
  };
  run.graph = is_on("--graph", graph);
  run.fp8_weights = is_on("--fp8-weights", weights);
  run.kernels = is_on("--bytes", bytes) || !kernels.empty();
  const bool only_products = is_on("--products", products);
  if (!run.model.empty()) {
    check(!report.has_file(),
          "--json: is for the table of all models; with --model the result is printed");
    return only_products ? run_products(run) : run_one_model(run, losses, kernels);
  }

  for (const Model& m : kModels) {
    const auto tokens = static_cast<double>(m.batch * m.config.seq);
    const std::string name = m.name;
    reset_peak();
    const double seconds = step_seconds(m);
    report.row(name + ": step", 1e3 * seconds, "ms");
    report.row(name + ": rate", tokens / seconds, "tokens/s");
    report.row(name + ": arithmetic", tokens * m.config.flops_per_token() / seconds / 1e9,
               "GFLOP/s");
    report.row(name + ": peak memory", static_cast<double>(memory_stats().peak_bytes) / 1048576,
               "MiB");
    set_deterministic(true);
    report.row(name + ": rate, deterministic", tokens / step_seconds(m), "tokens/s");
    set_deterministic(false);
    report.row(name + ": generation", 1 / decode_seconds(m), "tokens/s");
  }
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
