#include "weft/bench/train_run.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>

#include "weft/bench/harness.h"
#include "weft/core/cuda.h"
#include "weft/data/text.h"
#include "weft/train/train_step.h"
#include "weft/weft.h"

namespace weft::bench {
namespace {

class Batches {
 public:
  Batches(const StepModel& model, const std::string& data_file) : model_(model) {
    if (data_file.empty()) return;
    text_ = data::read_text({data_file});
    check(static_cast<std::int64_t>(text_.size()) > model.tokens,
          "--data: needs more than {} bytes, got {}", model.tokens, text_.size());
    check(model.config.vocab >= 256, "--data: needs a vocabulary of at least 256, got {}",
          model.config.vocab);
  }

  data::Batch at(std::int64_t step) const {
    const Shape shape{model_.batch, model_.tokens};
    data::Batch out{Tensor::empty(shape, DType::i32), Tensor::empty(shape, DType::i32)};
    for (std::int64_t r = 0; r < model_.batch; ++r)
      for (std::int64_t t = 0; t <= model_.tokens; ++t) {
        const std::int32_t token = at(step * model_.batch + r, t);
        const std::int64_t place = r * model_.tokens + t;
        if (t < model_.tokens) out.inputs.data<std::int32_t>()[place] = token;
        if (t > 0) out.targets.data<std::int32_t>()[place - 1] = token;
      }
    return out;
  }

 private:
  std::int32_t at(std::int64_t row, std::int64_t t) const {
    if (text_.empty()) {
      const auto i = static_cast<std::uint32_t>(row * (model_.tokens + 1) + t);
      return static_cast<std::int32_t>((i * 2654435761u >> 8) %
                                       static_cast<std::uint32_t>(model_.config.vocab));
    }
    const auto places = static_cast<std::int64_t>(text_.size()) - model_.tokens;
    const std::int64_t first = row * 1000003 % places;
    return static_cast<unsigned char>(text_[static_cast<std::size_t>(first + t)]);
  }

  const StepModel& model_;
  std::string text_;
};

/// VmHWM: the peak resident memory of the process.
double peak_rss_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kib = 0; word == "VmHWM:" && status >> kib) return kib / 1024;
  return 0;
}

DType parse_dtype(const std::string& name) {
  const DType dtype = value_of(train::kModelDTypeWords, name, "--dtype:");
  check(dtype != DType::f64, "--dtype: must be f32, bf16, f16 or fp8, got f64");
  return dtype;
}

train::Options options_of(const TrainRun& run, std::int64_t batch) {
  train::Options o{.steps = run.warmup + run.steps, .batch = batch};
  o.optimizer.lr = o.optimizer.min_lr = run.lr;
  o.optimizer.schedule = optim::Schedule::Kind::constant;
  o.optimizer.warmup = 0;
  o.optimizer.beta2 = 0.999;
  o.optimizer.weight_decay = 0.01;
  o.machine.device = run.device;
  o.machine.dtype = parse_dtype(run.dtype);
  o.machine.fp8_recipe = value_of(train::kFp8RecipeWords, run.fp8_recipe, "--fp8-recipe:");
  o.machine.fp8_weights = run.fp8_weights;
  o.machine.graph = run.graph;
  return o;
}

nn::Gpt make_on_meta(const TrainRun& run, const train::Options& options) {
  nn::GptConfig config = step_model(run.model).config;
  if (Device::parse(run.device).is_gpu())
    config.vocab = (config.vocab + kGpuVocabMultiple - 1) / kGpuVocabMultiple * kGpuVocabMultiple;
  const nn::DeviceScope on_meta(kMeta, options.machine.model_dtype());
  return nn::Gpt(config);
}

// The scopes of an op are left out: layers are alike.
void profile_step(train::TrainStep& step, const std::function<void()>& take_step,
                  TrainResult& result) {
  Profiler profiler(true);
  step.on_phase([&](train::Phase phase) { profiler.phase(name_of(phase)); });
  profiler.start(name_of(train::Phase::forward));
  take_step();
  profiler.stop();
  step.on_phase(nullptr);
  result.kernels_seconds = profiler.seconds();
  for (Profiler::Entry& e : profiler.entries()) {
    e.scopes.clear();
    const auto same =
        std::find_if(result.kernels.begin(), result.kernels.end(), [&](const Profiler::Entry& k) {
          return k.phase == e.phase && k.op == e.op && k.kernel == e.kernel &&
                 k.operands == e.operands;
        });
    if (same == result.kernels.end())
      result.kernels.push_back(std::move(e));
    else
      same->work.add(e.work);
  }
}

// On a GPU the host waits once for each group of steps.
void run_steps(const TrainRun& run, const Batches& batches, Device device, train::TrainStep& step,
               TrainResult& result) {
  std::vector<data::Batch> prepared;
  const int all = run.warmup + run.steps + (run.kernels ? 1 : 0);
  for (int i = 0; i < all; ++i) prepared.push_back(batches.at(i));
  std::vector<train::StepResult> results;  // whose numbers are read at the end
  const auto take_step = [&] {
    results.push_back(step(std::ssize(results) + 1, prepared[results.size()]));
    result.peak_bytes = std::max(result.peak_bytes, results.back().peak_bytes);
  };
  for (int i = 0; i < run.warmup; ++i) take_step();
  const auto wait = [&] {
    if (device.is_cuda()) cuda::synchronize(device);
  };
  wait();
  result.peak_bytes = 0;
  const std::int64_t syncs = cuda::host_syncs();
  const int group = device.is_cuda() ? kGroup : 1;
  int waits = 0;  // the loop's own
  for (int i = 0; i < run.steps; i += group) {
    const int steps = std::min(group, run.steps - i);
    if (run.pause > 0 && i % run.pause == 0) std::raise(SIGSTOP);
    const double start = now();
    for (int s = 0; s < steps; ++s) take_step();
    wait();
    waits += device.is_cuda();
    result.seconds.push_back((now() - start) / steps);
  }
  result.host_syncs = static_cast<double>(cuda::host_syncs() - syncs - waits) / run.steps;
  if (run.kernels) profile_step(step, take_step, result);
  for (const train::StepResult& r : results) result.losses.push_back(r.loss());
}

}  // namespace

double TrainResult::median_seconds() const {
  check(!seconds.empty(), "--steps: must be at least 1");
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return (sorted[sorted.size() / 2] + sorted[(sorted.size() - 1) / 2]) / 2;
}

TrainResult train(const TrainRun& run) {
  const Device device = Device::parse(run.device);
  if (device.is_cuda()) cuda::check_device(device);
  check(!run.fp8_weights || run.dtype == "fp8", "--fp8-weights: needs --dtype fp8, got {}",
        run.dtype);
  check(!run.graph || device.is_cuda(), "--graph: needs --device cuda, got {}", run.device);
  check(!run.graph || run.warmup > train::TrainStep::kEagerSteps,
        "--graph: needs --warmup of at least {}, got {}", train::TrainStep::kEagerSteps + 1,
        run.warmup);
  check(!run.kernels || !run.graph, "--kernels: needs --graph off, got on");
  check(run.steps > 0, "--steps: must be at least 1, got {}", run.steps);
  check(run.pause == 0 || !device.is_cuda(), "--pause: needs --device cpu, got {}", run.device);
  const StepModel& model = step_model(run.model);
  const Batches batches(model, run.data_file);
  const train::Options options = options_of(run, model.batch);
  const train::Ranks ranks = train::Ranks::alone(options);
  nn::Gpt gpt = make_on_meta(run, options);
  train::TrainStep step(
      {.model = gpt,
       .loss = [&](const data::Batch& b) -> train::Loss {
         return {.sum = gpt.loss.sum(gpt.hidden(b.inputs), gpt.head, b.targets).loss};
       }},
      options, ranks);
  if (!run.init_file.empty() || !run.export_file.empty()) step.optimizer().restore_values();
  if (!run.init_file.empty()) gpt.load_state_dict(io::load_safetensors(run.init_file));
  if (!run.export_file.empty()) io::save_safetensors(run.export_file, gpt.state_dict());

  TrainResult result;
  run_steps(run, batches, device, step, result);
  result.peak_rss_mib = peak_rss_mib();
  return result;
}

}  // namespace weft::bench
