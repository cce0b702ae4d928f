#include "weft/examples/common/session.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/leaves.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/optim/sgd.h"

namespace weft::train {
namespace {

// Before a step is captured: what is made at first use (plans of products, the optimizer's lists,
// the check of the model's leaves) is made in these.
constexpr std::int64_t kEagerSteps = 2;

optim::Schedule make_lr_schedule(const Options& o) {
  optim::Schedule s;
  s.kind = o.step.schedule;
  s.lr = o.step.lr;
  s.min_lr = o.step.min_lr < 0 ? o.step.lr / 10 : o.step.min_lr;
  s.warmup = o.step.warmup < 0 ? o.step.steps / 20 : o.step.warmup;
  s.steps = o.step.steps;
  s.validate();
  return s;
}

// Calls make(options of SGD or of AdamW).
template <class Make>
auto with_optimizer_options(const Options& o, Make make) {
  const DType state = o.step.state_dtype;
  const optim::AdamWOptions adamw{.lr = o.step.lr,
                                  .beta1 = o.step.beta1,
                                  .beta2 = o.step.beta2,
                                  .eps = o.step.eps,
                                  .weight_decay = o.step.weight_decay,
                                  .m_dtype = state,
                                  // bf16 cannot hold a second moment that decays slowly
                                  .v_dtype = state == DType::bf16 ? DType::f32 : state,
                                  .master_weights = o.step.master_weights};
  const optim::SgdOptions sgd{.lr = o.step.lr,
                              .momentum = o.step.beta1,
                              .weight_decay = o.step.weight_decay,
                              .master_weights = o.step.master_weights};
  return o.step.optimizer == OptimizerKind::sgd ? make(sgd) : make(adamw);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& o, nn::Gpt& model) {
  const NamedTensors parameters = model.named_parameters();
  return with_optimizer_options(o, [&](const auto& options) -> std::unique_ptr<optim::Optimizer> {
    if constexpr (std::is_same_v<decltype(options), const optim::SgdOptions&>)
      return std::make_unique<optim::Sgd>(parameters, options);
    else
      return std::make_unique<optim::AdamW>(parameters, options);
  });
}

std::unique_ptr<distributed::ShardedOptimizer> make_sharded(const Options& o,
                                                            distributed::Ddp& ddp) {
  return with_optimizer_options(o, [&](const auto& options) {
    return std::make_unique<distributed::ShardedOptimizer>(ddp, options);
  });
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
  const std::int64_t end = first_ + rows_;
  for (std::int64_t first = first_; first < end; first += micro_batch_) {
    const data::Batch batch = on_device(batches(first, micro_batch_), model.head.weight.device());
    begin(Phase::forward);
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
    if (ddp_ && first + micro_batch_ == end) ddp_->watch(tape);
    begin(Phase::backward);
    loss.backward(
        Tensor::full(loss.shape(), 1.0 / static_cast<double>(count), loss.dtype(), loss.device()));
    sums.add(losses);
  }
  return sums;
}

Session::Session(const Options& options, Device device, const Ranks* ranks)
    : options_(options), device_(device), ranks_(ranks), lr_(make_lr_schedule(options)) {
  {
    nn::DeviceScope on_meta(kMeta, options.machine.dtype);
    model_ = std::make_unique<nn::Gpt>(options.gpt());
  }
  if (ranks_) spread_over_ranks();
  nn::materialise(*model_, device, static_cast<std::uint64_t>(options.machine.seed),
                  distributed::parts(layout_));
  if (ranks_) {
    ddp_ = std::make_unique<distributed::Ddp>(
        *model_, ranks_->mesh(), layout_,
        distributed::DdpOptions{.bucket_size = options.parallel.bucket_size,
                                .shard = options.parallel.zero});
  } else if (options.machine.dtype == DType::bf16) {
    // Sums over micro-batches and over the tokens of one would lose small gradients in bf16.
    const CategoryScope category(Category::gradient);
    for (Tensor& p : model_->parameters())
      p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, device));
    model_->zero_grad();  // zeros, but no gradients yet
  }
  if (ddp_ && options.parallel.zero) {
    sharded_ = make_sharded(options, *ddp_);
    model_->before_use = [this](const nn::Module& part) { sharded_->wait(part); };
  } else {
    optimizer_ = make_optimizer(options, *model_);
  }
  routers_ = std::make_unique<nn::RouterStep>(*model_);
  const std::int64_t rows = options.step.batch / (ranks_ ? ranks_->data_ranks() : 1);
  schedule_ = std::make_unique<SequentialSchedule>(
      ranks_ ? ranks_->data_rank() * rows : 0, rows,
      options.step.micro_batch ? options.step.micro_batch : rows,
      static_cast<std::uint64_t>(options.machine.seed), ddp_.get());
  if (device.is_gpu()) {
    const Shape shape{options.step.batch, options.model.seq};
    on_gpu_ = {Tensor::zeros(shape, DType::i32, device), Tensor::zeros(shape, DType::i32, device)};
  }
}

void Session::spread_over_ranks() {
  const distributed::DeviceMesh& mesh = ranks_->mesh();
  layout_ = distributed::parallelize(
      *model_, mesh.tp(),
      distributed::gpt_plan(model_->config, {.sequence = options_.parallel.sp,
                                             .overlap = options_.parallel.tp_overlap}));
  if (options_.model.moe.experts > 0)
    for (auto& [name, l] :
         distributed::shard_experts(*model_, mesh, {.sequence_parallel = options_.parallel.sp}))
      layout_[name] = std::move(l);
}

void Session::add_up(StepSums& sums) const {
  if (!ranks_) return;
  // Ranks of tp see the same rows, so one of them speaks. In f64, which holds every count exactly.
  TensorList parts{sums.loss};
  for (const TensorList* list : {&sums.mtp, &sums.mtp_count, &sums.mtp_hits})
    for (const Tensor& t : *list) parts.push_back(t);
  const Tensor all = Tensor::zeros({parts.size()}, DType::f64, device_);
  if (ranks_->speaks_for_its_rows())
    for (int i = 0; i < parts.size(); ++i) all.select(0, i).copy_(parts[i]);
  ranks_->add_up(all);
  int next = 0;
  sums.loss = all.select(0, next++);
  for (TensorList* list : {&sums.mtp, &sums.mtp_count, &sums.mtp_hits})
    for (Tensor& t : *list) t = all.select(0, next++);
}

void Session::load_batch(const BatchSource& batches) {
  if (device_.is_meta()) return;
  const data::Batch host = batches(0, options_.step.batch);
  on_gpu_.inputs.copy_(host.inputs);
  on_gpu_.targets.copy_(host.targets);
}

Session::Numbers Session::update(std::int64_t step, const BatchSource& batches) {
  Numbers n;
  n.sums = schedule_->run(*model_, step, options_.step.batch * options_.model.seq, batches);
  if (on_phase_) on_phase_(Phase::update);
  add_up(n.sums);
  const optim::GradClip clip =
      ddp_ ? ddp_->finish(options_.step.clip)
           : optim::measure_clip(optimizer_->parameters(), options_.step.clip);
  n.grad_norm = clip.norm;
  const auto finite = [](const Tensor& t) { return std::isfinite(t.item()); };
  if (device_.is_cpu() && !(finite(n.sums.loss) && finite(n.grad_norm))) return n;
  if (device_.is_gpu()) optim::require_finite(clip, n.sums.loss);
  finish_routers(n);
  // Last: what it sends then has until the next forward pass.
  if (sharded_)
    sharded_->step(clip);
  else
    optimizer_->step(clip);
  if (ddp_)
    ddp_->zero_grad();
  else
    optimizer_->zero_grad();
  return n;
}

void Session::finish_routers(Numbers& n) {
  if (routers_->empty()) return;
  n.router_losses = routers_->losses();
  const double rate = model_->config.moe.router.expert_bias ? options_.balance.bias_rate : 0;
  if (!ranks_) {
    n.load = routers_->finish(rate);
    return;
  }
  // Each rank's is the mean over its own tokens.
  n.router_losses = mul(n.router_losses.to(DType::f64), 1.0 / ranks_->world().size());
  ranks_->add_up(n.router_losses);
  n.load = routers_->finish(rate, distributed::sum_router_counts(ranks_->mesh()));
}

void Session::replay(std::int64_t step, const BatchSource& batches) {
  if (!captured_) {
    captured_ = std::make_unique<Captured>(device_);
    captured_->graph.capture([&] { captured_->numbers = update(step, batches); });
    captured_->peak_bytes = memory_stats(device_).peak_bytes;
  }
  const RandomScope random({.seed = static_cast<std::uint64_t>(options_.machine.seed),
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
  if (options_.model.moe.experts > 0 && options_.model.moe.router.z_loss > 0)
    result.z_loss.emplace(n.router_losses.select(0, 3));
}

StepResult Session::step(std::int64_t step, const BatchSource& batches) {
  reset_peak(device_);
  StepResult result;
  result.lr = lr_.at(step);
  result.targets = options_.step.batch * options_.model.seq;
  sharded_ ? sharded_->set_lr(result.lr) : optimizer_->set_lr(result.lr);
  if (device_.is_gpu()) load_batch(batches);
  const BatchSource loaded = [this](std::int64_t first, std::int64_t rows) {
    return data::Batch{on_gpu_.inputs.narrow(0, first, rows),
                       on_gpu_.targets.narrow(0, first, rows)};
  };
  const BatchSource& source = device_.is_gpu() ? loaded : batches;
  const bool graphed = options_.machine.graph && device_.is_cuda() && eager_steps_ == kEagerSteps;
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

double Session::evaluate(std::int64_t batches, const EvalSource& batch_at) {
  wait_for_parameters();
  model_->eval();
  const Tensor totals = Tensor::zeros({2}, DType::f64);  // of the loss, and how many targets
  double* const total = totals.data<double>();
  const std::int64_t ranks = ranks_ ? ranks_->data_ranks() : 1;
  for (std::int64_t first = 0; first < batches; first += ranks) {
    const std::int64_t own = first + (ranks_ ? ranks_->data_rank() : 0);
    // A rank that is left over goes along with a batch that counts for nothing: the model's
    // collectives need it.
    data::Batch batch = on_device(batch_at(std::min(own, batches - 1)), device_);
    if (own >= batches)
      batch.targets =
          Tensor::full(batch.targets.shape(), data::kIgnore, batch.targets.dtype(), device_);
    // What is drawn even here, as forced routing, depends on the row alone.
    const RandomScope random(
        {.seed = static_cast<std::uint64_t>(options_.machine.seed),
         .first_global_row = static_cast<std::uint64_t>(own * batch.inputs.dim(0))});
    const auto part = model_->loss.sum(model_->hidden(batch.inputs), model_->head, batch.targets);
    total[0] += part.loss.item();
    total[1] += static_cast<double>(part.count.item_int());
  }
  model_->train();
  if (ranks_ && !ranks_->speaks_for_its_rows()) totals.zero_();
  if (ranks_) ranks_->add_up(totals);
  return total[1] > 0 ? total[0] / total[1] : 0;
}

Session::NonFinite Session::first_non_finite() const {
  const auto parameters = model_->named_parameters();
  for (const auto& p : parameters)
    if (!all_finite(p.tensor)) return {message("parameter {}", p.name), true};
  for (const auto& p : parameters)
    if (!all_finite(optim::gradient_of(p.tensor))) return {message("the gradient of {}", p.name)};
  return {};
}

std::int64_t predict_peak_bytes(const Options& options, int ranks, int rank) {
  const Device device =
      Device::parse(options.machine.device).is_gpu() ? Device{Device::Kind::meta_cuda, 0} : kMeta;
  const auto world = distributed::fake_world(rank, std::max(1, ranks));
  const Ranks self(*world, options);
  // Micro-batches are alike, so that nobody has to wait for a million of them.
  constexpr std::int64_t kPlanned = 64;
  Options plan = options;
  const std::int64_t data_ranks = self.data_ranks(), rows_of_rank = options.step.batch / data_ranks;
  const std::int64_t micro = options.step.micro_batch ? options.step.micro_batch : rows_of_rank;
  plan.step.batch = std::min(rows_of_rank, kPlanned * micro) * data_ranks;
  Session session(plan, device, ranks > 0 ? &self : nullptr);
  const BatchSource batches = [&](std::int64_t, std::int64_t rows) {
    const Shape shape{rows, options.model.seq};
    return data::Batch{Tensor::empty(shape, DType::i32, device),
                       Tensor::empty(shape, DType::i32, device)};
  };
  session.step(1, batches);
  // A GPU has the inputs and targets of the whole batch.
  const std::int64_t more =
      device.is_gpu() ? 2 * 4 * (options.step.batch - plan.step.batch) * options.model.seq : 0;
  return session.step(2, batches).peak_bytes + more;
}

}  // namespace weft::train
