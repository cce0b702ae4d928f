#include "weft/train/train_step.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/shard.h"
#include "weft/optim/state_memory.h"

namespace weft::train {
namespace {

// Of numbers whose squares f64 holds. Empty ones have none.
bool has_squares(const Tensor& t) {
  return is_compute(t.dtype()) && t.dtype() != DType::f64 && t.is_contiguous() && t.numel() > 0;
}
bool squares_are_finite(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return true;
  const Tensor sums = optim::sums_of_squares(tensors);
  return std::isfinite(sums.narrow(0, sums.numel() - 1, 1).item());
}

bool all_finite(const Tensor& t) {
  if (!t.defined() || t.is_meta()) return true;
  if (has_squares(t)) return squares_are_finite({t});
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  t.copy_to(values);
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

}  // namespace

TrainStep::TrainStep(const Task& task, const Options& options, const Ranks& ranks)
    : task_(task),
      options_(options),
      ranks_(ranks),
      device_(ranks.device()),
      fp8_recipe_(options.machine.recipe()),
      lr_(options.optimizer.lr_schedule(options.steps)) {
  check(options.parallel.grad_reduce == DType::f32 || ranks.size() > 1,
        "--grad-reduce: bf16 needs several ranks, got 1");
  place_model();
  const OffloadFlags& away = options.offload;
  if (away.has(OffloadWhat::activations))
    offload_.emplace(
        OffloadOptions{
            .folder = away.folder, .fraction = away.fraction, .least_bytes = away.least_bytes},
        device_);
  std::optional<optim::StateMemory> outside;
  if (away.has(OffloadWhat::states)) outside.emplace(states_outside_.emplace(device_, away.folder));
  optimizer_ = distributed::make_optimizer(
      task_.model, ranks.mesh(), layout_, options.optimizer.any_options(options.machine.seed),
      {.bucket_size = options.parallel.bucket_size,
       .grad_dtype = options.parallel.grad_reduce,
       .shard = options.parallel.zero || options.parallel.fsdp,
       .fp8_weights = options.machine.fp8_weights ? fp8_recipe_ : std::nullopt,
       .fsdp = options.parallel.fsdp,
       .reshard_depth = options.parallel.reshard_depth,
       .deferred = deferred(),
       .count_zeros = options.run.norms,
       .skip_frozen = task_.saves_trained_only});
  if (options.machine.fp8_weights) optimizer_->store_as_masters(nn::fp8_weights(task_.model));
  const bool shards = optimizer_->is_sharded();
  const bool by_part = shards && task_.model.shard_members() & nn::Shard::kBeforeUse;
  if (const double scale = options.loss_scale(); scale > 0)
    loss_scale_.emplace(
        LossScaleOptions{.initial = scale, .growth_steps = options.optimizer.loss_scale_steps},
        device_);
  routers_ = std::make_unique<nn::RouterStep>(task_.model);
  if (fp8_recipe_) fp8_.emplace(task_.model, *fp8_recipe_);
  task_.model.train();
  schedule_ = std::make_unique<SequentialSchedule>(
      task_.model, task_.loss, *optimizer_,
      SequentialSchedule::Options{.micro_batch = options.micro_batch,
                                  .seed = static_cast<std::uint64_t>(options.machine.seed),
                                  .waits = shards && !by_part,
                                  .reports = ranks.is_first()});
  // Last, so that a constructor that throws leaves the model unchanged.
  if (by_part)
    change_shard(task_.model, [this](nn::Shard& s) {
      s.before_use = [this](const nn::Module& part) { optimizer_->wait(part); };
    });
}

TrainStep::~TrainStep() {
  if (optimizer_->is_sharded() && shard_of(task_.model).before_use)
    change_shard(task_.model, [](nn::Shard& s) { s.before_use = nullptr; });
}

void TrainStep::place_model() {
  const std::vector<Tensor> parameters = task_.model.parameters();
  check(!parameters.empty(), "train: the model must have parameters, got none");
  check_saves_trained();
  const bool has_values = !parameters[0].is_meta();
  nn::assign_names(task_.model);
  const DType dtype = options_.machine.model_dtype();
  if (std::any_of(parameters.begin(), parameters.end(),
                  [&](const Tensor& p) { return p.dtype() != dtype; }))
    task_.model.to(dtype);
  if (fp8_recipe_) nn::prepare_fp8(task_.model, *fp8_recipe_);
  // All ranks start from the first rank's values.
  if (has_values && ranks_.size() > 1)
    for (const auto& [name, tensor] : task_.model.state_dict())
      ranks_.host().all().broadcast(tensor, 0).wait();
  if (task_.spread)
    layout_ = task_.spread(ranks_.mesh());
  else
    check(ranks_.data_ranks() == ranks_.size(),
          "train: this model cannot be cut over ranks; use --dp {} alone", ranks_.size());
  if (fp8_recipe_) nn::check_fp8(task_.model);
  if (has_values) return task_.model.to(device_);
  nn::TensorFilter only;
  if (makes_by_unit()) only = [](const Tensor&, bool is_buffer) { return is_buffer; };
  nn::materialise(task_.model, device_, static_cast<std::uint64_t>(options_.machine.seed),
                  distributed::shard_specs(layout_), only);
}

// Whether the optimizer gives the parameters memory, a unit at a time.
bool TrainStep::makes_by_unit() const { return options_.parallel.fsdp && ranks_.size() > 1; }

std::optional<distributed::DdpOptions::Deferred> TrainStep::deferred() {
  if (!makes_by_unit() || !task_.model.parameters()[0].is_meta()) return {};
  return distributed::DdpOptions::Deferred{
      device_, [this](const std::vector<Tensor>& parameters) {
        std::set<const TensorImpl*> chosen;
        for (const Tensor& p : parameters) chosen.insert(p.impl());
        nn::materialise(task_.model, device_, static_cast<std::uint64_t>(options_.machine.seed),
                        distributed::shard_specs(layout_),
                        [&](const Tensor& t, bool) { return chosen.contains(t.impl()); });
      }};
}

void TrainStep::add_up(Metrics& sums) const {
  if (ranks_.size() == 1) return;
  // Ranks that share rows have equal sums, so only one of them contributes. In f64, which holds
  // every count exactly.
  std::vector<Tensor*> parts;
  std::int64_t elements = 0;
  for (Metric& m : sums)
    for (Tensor* t : {&m.sum, &m.count})
      if (t->defined()) {
        parts.push_back(t);
        elements += t->numel();
      }
  const Tensor all = Tensor::zeros({elements}, DType::f64, device_);
  const auto each = [&](auto&& f) {
    std::int64_t first = 0;
    for (Tensor* t : parts) {
      f(*t, all.narrow(0, first, t->numel()));
      first += t->numel();
    }
  };
  if (ranks_.counts_rows())
    each([](const Tensor& own, const Tensor& place) { place.copy_(own.view({place.numel()})); });
  ranks_.add_up(all);
  each([](Tensor& own, const Tensor& place) { own = place.view(own.shape()); });
}

TrainStep::Metrics TrainStep::update(std::int64_t step, const data::Batch& rows) {
  // Backward divides by the number of all targets; if fewer count, the optimizer applies the
  // remaining factor.
  const auto targets = static_cast<double>(rows.targets_per_row() * options_.batch);
  if (unfinished_) {  // the previous step threw, or was not finite
    optimizer_->zero_grad();
    if (!routers_->empty()) routers_->finish(0);
  }
  unfinished_ = true;
  const fp8::Autocast products(fp8_recipe_);
  std::optional<Offload::Use> use;
  if (offload_) use.emplace(*offload_);
  Metrics metrics = schedule_->run({.rows = rows,
                                    .first_row = ranks_.first_row(),
                                    .step = step,
                                    .cotangent = 1.0 / targets,
                                    .loss_scale = loss_scale_ ? loss_scale_->value() : Tensor()});
  if (on_phase_) on_phase_(Phase::update);
  add_up(metrics);
  for (Metric& m : metrics)
    if (!m.count.defined()) m.count = metrics[0].count;
  const NoGradGuard off;
  const double max_norm = options_.optimizer.clip;
  Tensor factor;
  if (metrics[0].count.defined())
    factor = div(Tensor::full({}, targets, DType::f64, device_),
                 maximum(metrics[0].count.to(DType::f64).view({}), 1));
  optim::GradClip clip;
  if (loss_scale_) {
    clip = loss_scale_->unscaled(optimizer_->finish(), factor, max_norm);
  } else if (factor.defined()) {
    clip = times(optimizer_->finish(), factor, max_norm);
  } else {
    clip = optimizer_->finish(max_norm);
  }
  const Tensor loss = metrics[0].sum;
  metrics.push_back(
      {.name = "grad_norm", .sum = clip.norm, .shown = "norm", .decimals = 3, .is_whole = true});
  const auto add = [&](const char* name, const Tensor& value) {
    if (value.defined()) metrics.push_back({.name = name, .sum = value, .is_whole = true});
  };
  if (options_.run.norms) add("zero_gradients", optimizer_->zero_gradients());
  const auto finite = [](const Tensor& t) { return std::isfinite(t.item()); };
  if (loss_scale_) add("loss_scale", clone(loss_scale_->value()));
  if (device_.is_cpu() && !(finite(loss) && (loss_scale_ || finite(clip.norm)))) return metrics;
  if (device_.is_gpu()) optim::require_finite(clip, loss);
  finish_routers(metrics);
  finish_fp8();
  // Last: its communication can overlap with the time until the next forward pass.
  optimizer_->step(clip);
  optimizer_->zero_grad();
  unfinished_ = false;
  if (loss_scale_) {
    loss_scale_->update(clip);
    add("skipped_steps", clone(loss_scale_->skipped()));
  }
  if (options_.run.norms) add("param_norm", optimizer_->parameter_norm());
  return metrics;
}

void TrainStep::finish_routers(Metrics& metrics) {
  if (routers_->empty()) return;
  const auto [losses, by_layer] = routers_->losses([this](const Tensor& sums) {
    if (ranks_.size() > 1) ranks_.add_up(sums);
  });
  const Tensor load =
      routers_->finish(task_.bias_rate, distributed::sum_router_counts(ranks_.mesh()));
  const auto add = [&](const char* name, const Tensor& value, const char* shown = "") {
    metrics.push_back(
        {.name = name, .sum = value, .shown = shown, .decimals = 2, .is_whole = true});
  };
  const bool balances = routers_->has_balance_loss();
  if (balances) add("aux_loss", losses.narrow(0, 0, 3).sum());
  if (const auto kinds = routers_->balance_kinds(); kinds.size() > 1)
    for (const auto& [name, kind] : kinds) add(name, losses.select(0, kind));
  if (routers_->has_z_loss()) add("z_loss", losses.select(0, 3));
  if (balances) {
    add("layer_aux_losses", by_layer);
    metrics.back().is_list = true;
  }
  add("load_max_over_mean", max(load, 0), "load");
  add("layer_loads", load);
  metrics.back().is_list = true;
}

void TrainStep::finish_fp8() {
  if (!fp8_ || fp8_->empty()) return;
  if (ranks_.size() == 1) return fp8_->finish();
  fp8_->finish([this](const Tensor& amax) { ranks_.largest(amax); });
}

const TrainStep::Metrics& TrainStep::replay(std::int64_t step, const data::Batch& rows) {
  if (!captured_) {
    captured_ = std::make_unique<Captured>(device_);
    captured_->graph.capture([&] { captured_->metrics = update(step, rows); });
    captured_->peak_bytes = memory_stats(device_).peak_bytes;
  }
  const RandomScope random({.seed = static_cast<std::uint64_t>(options_.machine.seed),
                            .step = static_cast<std::uint64_t>(step)});
  captured_->graph.replay();
  return captured_->metrics;
}

StepResult TrainStep::operator()(std::int64_t step, const data::Batch& rows) {
  check(rows.inputs.defined() && rows.targets.defined() && rows.inputs.ndim() > 0 &&
            rows.rows() == ranks_.rows(),
        "train step: a rank's batch must have {} rows, got {}", ranks_.rows(),
        rows.inputs.defined() ? message("shape {}", rows.inputs.shape()) : std::string("null"));
  check(targets_per_row_ == 0 || rows.targets_per_row() == targets_per_row_,
        "train step: rows must have {} targets as at the first step, got {}", targets_per_row_,
        rows.targets_per_row());
  targets_per_row_ = rows.targets_per_row();
  optimizer_->release_values();  // what a checkpoint or a sample has read
  reset_peak(device_);
  StepResult result;
  result.lr = lr_.at(step);
  optimizer_->set_lr(result.lr);
  data::Batch loaded = load_rows(rows);
  loaded.totals = totals(rows);
  const bool graphed = options_.machine.graph && device_.is_cuda() && eager_steps_ == kEagerSteps;
  Metrics own;
  if (!graphed) {
    own = update(step, loaded);
    ++eager_steps_;
  }
  const Metrics& metrics = graphed ? replay(step, loaded) : own;
  const auto targets = static_cast<double>(rows.targets_per_row() * options_.batch);
  for (const Metric& m : metrics) result.numbers.emplace_back(m, targets);
  const MemoryStats stats = memory_stats(device_);
  result.live_bytes = stats.live_bytes;
  result.peak_bytes = graphed ? captured_->peak_bytes : stats.peak_bytes;
  return result;
}

std::vector<Value> TrainStep::evaluate(const data::EvalLoader& loader) {
  optimizer_->wait();
  optimizer_->release_values();
  struct EvalScope {
    explicit EvalScope(nn::Module& m) : model(m) { model.eval(); }
    ~EvalScope() { model.train(); }
    nn::Module& model;
  };
  const EvalScope eval(task_.model);
  const fp8::Autocast products(fp8_recipe_);
  const NoGradGuard off;
  std::vector<Value> values;  // sums, until the end
  std::vector<double> counts;
  const std::int64_t batches = loader.batches();
  for (std::int64_t first = 0; first < batches; first += ranks_.data_ranks()) {
    const std::int64_t own = first + ranks_.data_rank();
    // Ranks without a batch of their own repeat the last one and ignore the result: the model's
    // collectives need every rank.
    const data::Batch batch = loader.batch(std::min(own, batches - 1)).to(device_);
    // Random numbers used even in evaluation, as for forced routing, depend on the row alone.
    const RandomScope random({.seed = static_cast<std::uint64_t>(options_.machine.seed),
                              .first_global_row = static_cast<std::uint64_t>(own * batch.rows())});
    Metrics sums;
    add_to(sums, task_.loss(batch));
    std::erase_if(sums, [](const Metric& m) { return m.is_list; });
    const auto targets =
        static_cast<double>(batch.targets_per_row() * loader.rows_of(std::min(own, batches - 1)));
    values.resize(sums.size());
    counts.resize(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      values[i].name = sums[i].name;
      if (own >= batches) continue;
      const Tensor& count = sums[i].count.defined() ? sums[i].count : sums[0].count;
      values[i].value += sums[i].sum.item();
      counts[i] += count.defined() ? count.item() : targets;
    }
  }
  const auto size = static_cast<std::int64_t>(values.size());
  const Tensor totals = Tensor::zeros({2 * size}, DType::f64);
  double* const total = totals.data<double>();
  for (std::size_t i = 0; ranks_.counts_rows() && i < values.size(); ++i) {
    total[2 * i] = values[i].value;
    total[2 * i + 1] = counts[i];
  }
  ranks_.add_up(totals);
  check(size > 0 && total[1] > 0, "evaluation: at least 1 target of {} rows must count, got none",
        loader.rows());
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i].value = total[2 * i + 1] > 0 ? total[2 * i] / total[2 * i + 1] : 0;
  return values;
}

TrainStep::NonFinite TrainStep::first_non_finite_parameter() const {
  optimizer_->wait();  // on a GPU the updated slices of other ranks may still be on their way
  NamedTensors parameters = optimizer_->held_slices();
  if (!holds_slices()) {
    optimizer_->restore_values();
    parameters = task_.model.named_parameters();
  }
  // All at once, since a GPU's host waits for each result.
  std::vector<Tensor> most;
  for (const NamedTensor& p : parameters)
    if (!p.tensor.is_meta() && has_squares(p.tensor)) most.push_back(p.tensor);
  const bool most_are_finite = squares_are_finite(most);
  for (const NamedTensor& p : parameters)
    if (!(most_are_finite && has_squares(p.tensor)) && !all_finite(p.tensor))
      return {message("parameter {}", p.name), true};
  return {};
}

TrainStep::NonFinite TrainStep::first_non_finite() const {
  if (NonFinite found = first_non_finite_parameter(); found.is_parameter) return found;
  for (const auto& p : holds_slices() ? optimizer_->held_slices() : task_.model.named_parameters())
    if (!all_finite(optim::gradient_of(p.tensor))) return {message("the gradient of {}", p.name)};
  return {};
}

}  // namespace weft::train
