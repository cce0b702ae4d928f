#include "weft/train/step_schedule.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/nn/leaves.h"

namespace weft::train {
namespace {

// Makes a new sum each time: metrics may share a count tensor.
void add_to(Tensor& sum, const Tensor& part) {
  if (part.defined()) sum = sum.defined() ? add(sum, part.detach()) : part.detach();
}

void add_to(Metric& all, const Tensor& sum, const Tensor& count) {
  check(sum.defined() && (all.is_list || sum.numel() == 1), "loss: {} must have 1 element, got {}",
        all.name, sum.defined() ? message("shape {}", sum.shape()) : std::string("null"));
  check(!all.sum.defined() || all.count.defined() == count.defined(),
        "loss: every micro-batch must say how many targets count, or none must");
  add_to(all.sum, sum);
  add_to(all.count, count);
}

// The upstream gradient of an objective.
Tensor upstream(const StepWork& work, const Tensor& objective) {
  const NoGradGuard off;
  const Tensor dy =
      Tensor::full(objective.shape(), work.cotangent, objective.dtype(), objective.device());
  if (work.loss_scale.defined())
    dy.copy_(mul(work.loss_scale, work.cotangent).view(objective.shape()));
  return dy;
}

}  // namespace

void add_to(std::vector<Metric>& sums, const Loss& part) {
  if (sums.empty()) {
    sums.push_back({.name = "loss", .sum = {}, .shown = "loss"});
    for (const Metric& m : part.metrics)
      sums.push_back({.name = m.name,
                      .sum = {},
                      .shown = m.shown,
                      .decimals = m.decimals,
                      .is_list = m.is_list});
  }
  check(sums.size() == part.metrics.size() + 1,
        "loss: every micro-batch must have the same metrics, got {} after {}", part.metrics.size(),
        sums.size() - 1);
  add_to(sums[0], part.sum, part.count);
  for (std::size_t i = 0; i < part.metrics.size(); ++i) {
    check(sums[i + 1].name == part.metrics[i].name,
          "loss: every micro-batch must have the same metrics, got '{}' after '{}'",
          part.metrics[i].name, sums[i + 1].name);
    add_to(sums[i + 1], part.metrics[i].sum, part.metrics[i].count);
  }
}

// A parameter that no op used may belong to a branch that other rows take.
void SequentialSchedule::check_leaves(const Tape& tape) {
  const nn::LeafReport report = nn::compare_leaves(tape, model_);
  check(report.strangers.empty(), "model: {}", report.text());
  const auto others = std::ssize(report.unused) - 1;
  if (options_.reports && others >= 0)
    log_line(
        message("model: no op of the first forward pass used {}{}; what is never used is not "
                "trained",
                report.unused[0],
                others == 0   ? std::string()
                : others == 1 ? " and 1 other parameter"
                              : message(" and {} other parameters", others)));
  leaves_checked_ = true;
}

std::vector<Metric> SequentialSchedule::run(const StepWork& work) {
  std::vector<Metric> sums;
  const std::int64_t rows = work.rows.rows();
  const std::int64_t micro = options_.micro_batch ? options_.micro_batch : rows;
  for (std::int64_t first = 0; first < rows; first += micro) {
    const data::Batch batch = work.rows.narrow(first, micro);
    begin(Phase::forward);
    if (options_.waits) optimizer_.wait();
    RandomScope random({.seed = options_.seed,
                        .step = static_cast<std::uint64_t>(work.step),
                        .micro_batch = 0,
                        .first_global_row = static_cast<std::uint64_t>(work.first_row + first)});
    Tape tape;
    CategoryScope category(Category::activation);
    const Loss loss = loss_(batch);
    check(loss.sum.defined() && loss.sum.numel() == 1, "loss: sum must have 1 element, got {}",
          loss.sum.defined() ? message("shape {}", loss.sum.shape()) : std::string("null"));
    if (!leaves_checked_) check_leaves(tape);
    if (first + micro == rows) optimizer_.watch(tape);
    begin(Phase::backward);
    const Tensor& objective = loss.objective.defined() ? loss.objective : loss.sum;
    check(size_of(loss.sum.dtype()) >= 4 && size_of(objective.dtype()) >= 4,
          "loss: sum and objective must be f32 or f64, got {} and {}", loss.sum.dtype(),
          objective.dtype());
    objective.backward(upstream(work, objective));
    add_to(sums, loss);
  }
  return sums;
}

}  // namespace weft::train
