#include "weft/examples/common/session.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/nn/leaves.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/optim/sgd.h"

namespace weft::train {
namespace {

// Before a step is captured: what is made at first use (plans of products, the optimizer's lists,
// the check of the model's leaves) is made in these.
constexpr std::int64_t kEagerSteps = 2;

DType parse_dtype(const std::string& name) {
  return name == "f64"    ? DType::f64
         : name == "bf16" ? DType::bf16
         : name == "f16"  ? DType::f16
                          : DType::f32;
}

optim::Schedule make_lr_schedule(const Options& o) {
  optim::Schedule s;
  s.kind = optim::Schedule::parse(o.schedule);
  s.lr = o.lr;
  s.min_lr = o.min_lr < 0 ? o.lr / 10 : o.min_lr;
  s.warmup = o.warmup < 0 ? o.steps / 20 : o.warmup;
  s.steps = o.steps;
  s.validate();
  return s;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, nn::Gpt& model) {
  if (o.optimizer == "sgd")
    return std::make_unique<optim::Sgd>(
        model.named_parameters(),
        optim::SgdOptions{.lr = o.lr, .momentum = o.beta1, .weight_decay = o.weight_decay});
  const DType state = parse_dtype(o.state_dtype);
  return std::make_unique<optim::AdamW>(
      model.named_parameters(),
      optim::AdamWOptions{.lr = o.lr,
                          .beta1 = o.beta1,
                          .beta2 = o.beta2,
                          .eps = o.eps,
                          .weight_decay = o.weight_decay,
                          .m_dtype = state,
                          // bf16 cannot hold a second moment that decays slowly
                          .v_dtype = state == DType::bf16 ? DType::f32 : state});
}

bool all_finite(const Tensor& t) {
  if (!t || t.is_meta()) return true;
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  t.copy_to(values);
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

data::Batch on_device(const data::Batch& batch, Device device) {
  return {batch.inputs.to(device), batch.targets.to(device)};
}

// In f64, which holds every count exactly; 0 of 0 is 0.
cuda::Readback ratio(const Tensor& sum, const Tensor& count) {
  return cuda::Readback(div(sum.to(DType::f64), maximum(count.to(DType::f64), 1)));
}

void add_to(Tensor& sum, const Tensor& part) {
  if (sum)
    sum.add_(part.detach());
  else
    sum = part.detach();
}

void add_to(TensorList& sums, const TensorList& parts) {
  for (int d = 0; d < parts.size(); ++d) {
    if (sums.size() == d) sums.push_back({});
    add_to(sums[d], parts[d]);
  }
}

}  // namespace

void StepSums::add(const nn::GptLosses& part) {
  add_to(loss, part.main.loss);
  add_to(mtp, part.mtp);
  add_to(mtp_count, part.mtp_count);
  add_to(mtp_hits, part.mtp_hits);
}

StepSums SequentialSchedule::run(nn::Gpt& model, std::int64_t step, std::int64_t count,
                                 const BatchSource& batches) {
  StepSums sums;
  for (std::int64_t first = 0; first < batch_; first += micro_batch_) {
    const data::Batch batch = on_device(batches(first, micro_batch_), model.head.weight.device());
    RandomScope random({.seed = seed_,
                        .step = static_cast<std::uint64_t>(step),
                        .micro_batch = 0,
                        .first_global_row = static_cast<std::uint64_t>(first)});
    Tape tape;
    CategoryScope category(Category::activation);
    // Every row has all of its targets, so the counts of one micro-batch stand in the same ratio as
    // those of the whole step.
    const nn::GptLosses losses = model.losses(batch.inputs, batch.targets);
    const Tensor loss = losses.total();
    if (!leaves_checked_) {
      const std::string problem = nn::compare_leaves(tape, model).text();
      check(problem.empty(), "model: {}", problem);
      leaves_checked_ = true;
    }
    loss.backward(
        Tensor::full(loss.shape(), 1.0 / static_cast<double>(count), loss.dtype(), loss.device()));
    sums.add(losses);
  }
  return sums;
}

Session::Session(const Options& options, Device device)
    : options_(options), device_(device), lr_(make_lr_schedule(options)) {
  {
    nn::DeviceScope on_meta(kMeta, parse_dtype(options.dtype));
    model_ = std::make_unique<nn::Gpt>(options.model());
  }
  nn::materialise(*model_, device, static_cast<std::uint64_t>(options.seed));
  if (options.dtype == "bf16") {
    // Sums over micro-batches and over the tokens of one would lose small gradients in bf16.
    const CategoryScope category(Category::gradient);
    for (Tensor& p : model_->parameters())
      p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, device));
  }
  optimizer_ = make_optimizer(options, *model_);
  routers_ = std::make_unique<nn::RouterStep>(*model_);
  const std::int64_t micro = options.micro_batch ? options.micro_batch : options.batch;
  schedule_ = std::make_unique<SequentialSchedule>(options.batch, micro,
                                                   static_cast<std::uint64_t>(options.seed));
  if (device.is_gpu()) {
    const Shape shape{options.batch, options.seq};
    on_gpu_ = {Tensor::zeros(shape, DType::i32, device), Tensor::zeros(shape, DType::i32, device)};
  }
}

void Session::load_batch(const BatchSource& batches) {
  if (device_.is_meta()) return;
  const data::Batch host = batches(0, options_.batch);
  on_gpu_.inputs.copy_(host.inputs);
  on_gpu_.targets.copy_(host.targets);
}

Session::Numbers Session::update(std::int64_t step, const BatchSource& batches) {
  Numbers n;
  n.sums = schedule_->run(*model_, step, options_.batch * options_.seq, batches);
  const optim::GradClip clip = optim::measure_clip(optimizer_->parameters(), options_.clip);
  n.grad_norm = clip.norm;
  const auto finite = [](const Tensor& t) { return std::isfinite(t.item()); };
  if (device_.is_cpu() && !(finite(n.sums.loss) && finite(n.grad_norm))) return n;
  if (device_.is_gpu()) optim::require_finite(clip, n.sums.loss);
  optimizer_->step(clip);
  optimizer_->zero_grad();
  if (routers_->empty()) return n;
  n.router_losses = routers_->losses();
  n.load = routers_->finish(options_.aux == "bias" ? options_.bias_rate : 0);
  return n;
}

void Session::replay(std::int64_t step, const BatchSource& batches) {
  if (!captured_) {
    captured_ = std::make_unique<Captured>(device_);
    captured_->graph.capture([&] { captured_->numbers = update(step, batches); });
    captured_->peak_bytes = memory_stats(device_).peak_bytes;
  }
  const RandomScope random({.seed = static_cast<std::uint64_t>(options_.seed),
                            .step = static_cast<std::uint64_t>(step)});
  captured_->graph.replay();
}

void Session::start_reading(const Numbers& n, StepResult& result) const {
  result.loss_sum.emplace(n.sums.loss);
  for (int d = 0; d < n.sums.mtp.size(); ++d)
    result.mtp.push_back({ratio(n.sums.mtp[d], n.sums.mtp_count[d]),
                          ratio(n.sums.mtp_hits[d], n.sums.mtp_count[d])});
  result.grad_norm.emplace(n.grad_norm);
  if (!n.load) return;  // no routers, or stopped before
  for (std::int64_t i = 0; i < n.load.dim(0); ++i) result.load.emplace_back(n.load.select(0, i));
  if (options_.counts_balance()) result.balance_loss.emplace(n.router_losses.narrow(0, 0, 3).sum());
  if (options_.experts > 0 && options_.z_loss > 0)
    result.z_loss.emplace(n.router_losses.select(0, 3));
}

StepResult Session::step(std::int64_t step, const BatchSource& batches) {
  reset_peak(device_);
  StepResult result;
  result.lr = lr_.at(step);
  result.targets = options_.batch * options_.seq;
  optimizer_->set_lr(result.lr);
  if (device_.is_gpu()) load_batch(batches);
  const BatchSource loaded = [this](std::int64_t first, std::int64_t rows) {
    return data::Batch{on_gpu_.inputs.narrow(0, first, rows),
                       on_gpu_.targets.narrow(0, first, rows)};
  };
  const BatchSource& source = device_.is_gpu() ? loaded : batches;
  const bool graphed = options_.graph && device_.is_cuda() && eager_steps_ == kEagerSteps;
  Numbers run;
  if (graphed) {
    replay(step, source);
  } else {
    run = update(step, source);
    ++eager_steps_;
  }
  const Numbers& n = graphed ? captured_->numbers : run;
  if (!device_.is_meta()) start_reading(n, result);
  const MemoryStats stats = memory_stats(device_);
  result.live_bytes = stats.live_bytes;
  result.peak_bytes = graphed ? captured_->peak_bytes : stats.peak_bytes;
  return result;
}

double Session::evaluate(const std::function<std::optional<data::Batch>()>& next) {
  model_->eval();
  double sum = 0;
  std::int64_t count = 0;
  while (const std::optional<data::Batch> read = next()) {
    const std::optional<data::Batch> batch = on_device(*read, device_);
    const auto part = model_->loss.sum(model_->hidden(batch->inputs), model_->head, batch->targets);
    sum += part.loss.item();
    count += part.count.item_int();
  }
  model_->train();
  return count ? sum / static_cast<double>(count) : 0;
}

std::string Session::first_non_finite() const {
  const auto parameters = model_->named_parameters();
  for (const auto& p : parameters)
    if (!all_finite(p.tensor)) return message("parameter {}", p.name);
  for (const auto& p : parameters)
    if (!all_finite(optim::gradient_of(p.tensor))) return message("the gradient of {}", p.name);
  return "the loss";
}

std::int64_t predict_peak_bytes(const Options& options) {
  const Device device =
      Device::parse(options.device).is_gpu() ? Device{Device::Kind::meta_cuda, 0} : kMeta;
  Session session(options, device);
  const BatchSource batches = [&](std::int64_t, std::int64_t rows) {
    const Shape shape{rows, options.seq};
    return data::Batch{Tensor::empty(shape, DType::i32, device),
                       Tensor::empty(shape, DType::i32, device)};
  };
  session.step(1, batches);
  return session.step(2, batches).peak_bytes;
}

}  // namespace weft::train
