#include "weft/bench/train_run.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "weft/bench/harness.h"
#include "weft/core/cuda.h"
#include "weft/core/cuda_graph.h"
#include "weft/data/loader.h"
#include "weft/data/text.h"
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
  check(name == "f32" || name == "bf16", "--dtype: f32 or bf16, got {}", name);
  return name == "f32" ? DType::f32 : DType::bf16;
}

nn::Gpt make_model(const TrainRun& run, Device device) {
  nn::GptConfig config = step_model(run.model).config;
  if (device.is_cuda())
    config.vocab = (config.vocab + kGpuVocabMultiple - 1) / kGpuVocabMultiple * kGpuVocabMultiple;
  const DType dtype = parse_dtype(run.dtype);
  std::optional<nn::DeviceScope> on_meta(std::in_place, kMeta, dtype);
  nn::Gpt model(config);
  on_meta.reset();
  nn::materialise(model, device, 1);
  if (dtype == DType::bf16)
    for (Tensor& p : model.parameters())
      p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, device));
  model.zero_grad();
  return model;
}

/// Returns the sum of the losses, on the device.
Tensor one_step(nn::Gpt& model, optim::AdamW& optimizer, const data::Batch& batch) {
  const Device device = model.head.weight.device();
  const auto count = static_cast<double>(batch.targets.numel());
  Tensor loss;
  {
    Tape tape;
    const Tensor inputs = batch.inputs.to(device), targets = batch.targets.to(device);
    loss = model.loss.sum(model.hidden(inputs), model.head, targets).loss;
    loss.backward(Tensor::full(loss.shape(), 1 / count, loss.dtype(), device));
  }
  optimizer.step(optim::measure_clip(optimizer.parameters(), 1.0));
  optimizer.zero_grad();
  return loss.detach();
}

void run_on_cpu(const TrainRun& run, const Batches& batches, nn::Gpt& model,
                optim::AdamW& optimizer, TrainResult& result) {
  for (int step = 0; step < run.warmup + run.steps; ++step) {
    const data::Batch batch = batches.at(step);
    const double start = now();
    const double loss = one_step(model, optimizer, batch).item();
    result.losses.push_back(loss / static_cast<double>(batch.targets.numel()));
    if (step >= run.warmup) result.seconds.push_back(now() - start);
  }
  result.peak_bytes = memory_stats().peak_bytes;
}

// Steps on a GPU, eager or replayed.
class GpuSteps {
 public:
  GpuSteps(bool graphed, nn::Gpt& model, optim::AdamW& optimizer)
      : graphed_(graphed),
        model_(model),
        optimizer_(optimizer),
        graph_(model.head.weight.device()) {}

  Tensor run(const data::Batch& batch) {
    if (!graphed_) return one_step(model_, optimizer_, batch);
    load(batch);
    if (taken_++ < kEager) return one_step(model_, optimizer_, fixed_);
    if (!graph_.captured()) {
      reset_peak(fixed_.inputs.device());
      graph_.capture([&] { loss_ = one_step(model_, optimizer_, fixed_); });
      peak_bytes_ = memory_stats(fixed_.inputs.device()).peak_bytes;
    }
    graph_.replay();
    return loss_.clone();  // the next replay writes another one
  }
  /// Of the step that was captured; 0 for none.
  std::int64_t peak_bytes() const { return peak_bytes_; }

  static constexpr int kEager = 2;

 private:
  void load(const data::Batch& batch) {
    const Device device = model_.head.weight.device();
    if (!fixed_.inputs) {
      fixed_ = {batch.inputs.to(device), batch.targets.to(device)};
    } else {
      fixed_.inputs.copy_(batch.inputs);
      fixed_.targets.copy_(batch.targets);
    }
  }

  bool graphed_;
  nn::Gpt& model_;
  optim::AdamW& optimizer_;
  cuda::Graph graph_;
  data::Batch fixed_;
  Tensor loss_;
  int taken_ = 0;
  std::int64_t peak_bytes_ = 0;
};

void run_on_gpu(const TrainRun& run, const Batches& batches, nn::Gpt& model,
                optim::AdamW& optimizer, TrainResult& result) {
  const Device device = model.head.weight.device();
  std::vector<data::Batch> prepared;
  for (int step = 0; step < run.warmup + run.steps; ++step) prepared.push_back(batches.at(step));
  const auto count = static_cast<double>(prepared.at(0).targets.numel());

  std::vector<Tensor> losses;  // read at the end
  std::size_t next = 0;
  GpuSteps gpu(run.graph, model, optimizer);
  for (int step = 0; step < run.warmup; ++step) losses.push_back(gpu.run(prepared[next++]));
  cuda::synchronize(device);
  reset_peak(device);
  const std::int64_t syncs = cuda::host_syncs();
  int waits = 0;
  for (int step = 0; step < run.steps; step += kGroup, ++waits) {
    const int steps = std::min(kGroup, run.steps - step);
    const double start = now();
    for (int i = 0; i < steps; ++i) losses.push_back(gpu.run(prepared[next++]));
    cuda::synchronize(device);
    result.seconds.push_back((now() - start) / steps);
  }
  result.peak_bytes = std::max(gpu.peak_bytes(), memory_stats(device).peak_bytes);
  result.host_syncs = static_cast<double>(cuda::host_syncs() - syncs - waits) / run.steps;
  for (const Tensor& loss : losses) result.losses.push_back(loss.item() / count);
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
  check(!run.graph || device.is_cuda(), "--graph: needs --device cuda, got {}", run.device);
  check(!run.graph || run.warmup > GpuSteps::kEager,
        "--graph: needs --warmup of at least {}, got {}", GpuSteps::kEager + 1, run.warmup);
  check(run.steps > 0, "--steps: must be at least 1, got {}", run.steps);
  const Batches batches(step_model(run.model), run.data_file);
  nn::Gpt model = make_model(run, device);
  if (!run.init_file.empty()) model.load_state_dict(io::load_safetensors(run.init_file));
  if (!run.export_file.empty()) io::save_safetensors(run.export_file, model.state_dict());
  optim::AdamW optimizer(model.named_parameters(), {.lr = run.lr});

  TrainResult result;
  (device.is_cuda() ? run_on_gpu : run_on_cpu)(run, batches, model, optimizer, result);
  result.peak_rss_mib = peak_rss_mib();
  return result;
}

}  // namespace weft::bench
