#include "weft/bench/train_run.h"

#include <algorithm>
#include <fstream>

#include "weft/bench/harness.h"
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

/// VmHWM: the most memory that the process ever had in use.
double peak_rss_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kib = 0; word == "VmHWM:" && status >> kib) return kib / 1024;
  return 0;
}

double one_step(nn::Gpt& model, optim::AdamW& optimizer, const data::Batch& batch) {
  const auto count = static_cast<double>(batch.targets.numel());
  double loss_value = 0;
  {
    Tape tape;
    const Tensor loss = model.loss.sum(model.hidden(batch.inputs), model.head, batch.targets).loss;
    loss.backward(Tensor::full(loss.shape(), 1 / count, loss.dtype()));
    loss_value = loss.item() / count;
  }
  optimizer.step(optim::measure_clip(optimizer.parameters(), 1.0));
  optimizer.zero_grad();
  return loss_value;
}

}  // namespace

double TrainResult::median_seconds() const {
  check(!seconds.empty(), "--steps: must be at least 1");
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return (sorted[sorted.size() / 2] + sorted[(sorted.size() - 1) / 2]) / 2;
}

TrainResult train(const TrainRun& run) {
  const StepModel& m = step_model(run.model);
  const Batches batches(m, run.data_file);
  nn::Gpt model(m.config);
  nn::init(model, 1);
  if (!run.init_file.empty()) model.load_state_dict(io::load_safetensors(run.init_file));
  if (!run.export_file.empty()) io::save_safetensors(run.export_file, model.state_dict());
  optim::AdamW optimizer(model.named_parameters(), {.lr = run.lr});

  TrainResult result;
  for (int step = 0; step < run.warmup + run.steps; ++step) {
    const data::Batch batch = batches.at(step);
    const double start = now();
    result.losses.push_back(one_step(model, optimizer, batch));
    if (step >= run.warmup) result.seconds.push_back(now() - start);
  }
  result.peak_rss_mib = peak_rss_mib();
  return result;
}

}  // namespace weft::bench
