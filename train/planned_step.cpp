#include "weft/train/planned_step.h"

#include <algorithm>

namespace weft::train {
namespace {

// The first one, those in between and the last one may differ.
constexpr std::int64_t kRunMicroBatches = 4;

std::int64_t size_class_of(const Tensor& t) {
  return t.defined() ? size_class_bytes(t.numel() * static_cast<std::int64_t>(size_of(t.dtype())))
                     : 0;
}

std::int64_t size_class_of(const data::Batch& b) {
  return size_class_of(b.inputs) + size_class_of(b.targets) + size_class_of(b.positions);
}

}  // namespace

Device planned_device(const Options& options) {
  return Device::parse(options.machine.device).is_gpu() ? Device{Device::Kind::meta_cuda, 0}
                                                        : kMeta;
}

std::vector<Device> planned_devices(const Options& options) {
  const Device device = planned_device(options);
  return device.is_gpu() ? std::vector{device} : std::vector{device, kCpu};
}

PlannedStep::PlannedStep(const Task& task, const Options& options, const data::Batch& rows,
                         int ranks, int rank)
    : rows_(rows),
      options_(options),
      world_(ranks > 0 ? distributed::fake_world(rank, ranks) : distributed::World::alone()) {
  const Device device = planned_device(options);
  {
    const Ranks all(*world_, *world_, device, options);
    const std::int64_t micro = options.micro_batch ? options.micro_batch : all.rows();
    micro_batches_ = all.rows() / micro;
    run_ = std::min(micro_batches_, kRunMicroBatches);
    options_.batch = run_ * micro * all.data_ranks();
    if (run_ < micro_batches_)
      bytes_left_out_ = size_class_of(share(all.rows())) - size_class_of(share(run_ * micro));
  }
  ranks_ = std::make_unique<Ranks>(*world_, *world_, device, options_);
  step_ = std::make_unique<TrainStep>(task, options_, *ranks_);
}

// A GPU's step copies them to its device.
data::Batch PlannedStep::share(std::int64_t rows) const {
  const auto alike = [&](const Tensor& t) {
    Shape shape = t.shape();
    shape[0] = rows;
    return Tensor::empty(shape, t.dtype(), kMeta);
  };
  data::Batch batch{
      alike(rows_.inputs), alike(rows_.targets), {}, {}, data::each_tensor(rows_.more, alike)};
  if (!rows_.positions.defined()) return batch;
  // The boundaries of documents decide sizes, so positions have values.
  Shape shape = rows_.positions.shape();
  shape[0] = rows;
  batch.positions = Tensor::empty(shape, rows_.positions.dtype());
  for (std::int64_t i = 0; i < rows; ++i)
    batch.positions.select(0, i).copy_(rows_.positions.select(0, i % rows_.positions.dim(0)));
  return batch;
}

StepResult PlannedStep::operator()(std::int64_t step) {
  return (*step_)(step, share(ranks_->rows()));
}

}  // namespace weft::train
