#include "weft/distributed/ddp.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/distributed/fsdp.h"
#include "weft/distributed/fsdp_units.h"
#include "weft/nn/walk.h"

namespace weft::distributed {
namespace {

constexpr std::int64_t kZeros = 1, kFirstReached = 2;  // indices into sums_

Tensor view_of(const Tensor& flat, std::int64_t begin, const Shape& shape) {
  return flat.alias(shape, contiguous_strides(shape), begin);
}

}  // namespace

NamedTensors updated_parameters(const nn::Module& model, const DdpOptions& options) {
  return options.skip_frozen ? nn::trainable_parameters(model) : model.named_parameters();
}

Ddp::Ddp(nn::Module& model, const DeviceMesh& mesh, const Layout& layout, const DdpOptions& options)
    : mesh_(mesh),
      layout_(layout),
      options_(options),
      parameters_(updated_parameters(model, options)) {
  check(!parameters_.empty(), "ddp: the model must have parameters, got none");
  // finish() sums the parameters' flags over all ranks, so all must have the same parameters.
  check(mesh.degrees().pp == 1, "ddp: pp must be 1, got {}", mesh.degrees().pp);
  for (const NamedTensor& p : parameters_) {
    check(p.tensor.is_contiguous(), "ddp: {} must be contiguous, got strides {}", p.name,
          p.tensor.strides());
    check(p.tensor.device() == parameters_[0].tensor.device(),
          "ddp: all parameters must be on device {}, but {} is on {}",
          parameters_[0].tensor.device(), p.name, p.tensor.device());
  }
  device_ = options.deferred ? options.deferred->device : parameters_[0].tensor.device();
  reached_.resize(parameters_.size());
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const Shape sums{kFirstReached + count * (options.count_zeros ? 2 : 1)};
  sums_ = Tensor::zeros(sums, DType::f64, device_);
  own_sums_ = Tensor::zeros(sums, DType::f64, sums_.device());
  check(options.slice_multiple >= 1 && options.slice_multiple <= 64 &&
            std::has_single_bit(static_cast<std::uint64_t>(options.slice_multiple)),
        "ddp: slice_multiple must be a power of two up to 64, got {}", options.slice_multiple);
  BucketOptions buckets;
  buckets.bucket_size = options.bucket_size;
  buckets.slice_multiple = options.slice_multiple;
  buckets.grad_dtype = options.grad_dtype;
  const int copies = options.shard ? mesh.degrees().dp_replicate : 1;
  buckets.dense_ranks = mesh.dp_cp().size() / copies;
  buckets.expert_ranks = mesh.edp().size() / copies;
  buckets.dense_parts = mesh.tp().size();
  buckets.expert_parts = mesh.tp_ep().size();
  if (options.shard && options.fp8_weights) {
    check(options.fp8_weights->scaling != fp8::Scaling::block,
          "ddp: fp8_weights needs a recipe with one scale for a weight, got blocks");
    fp8_layers_ = nn::fp8_layers(model);
    for (const nn::Fp8Layer& layer : fp8_layers_) buckets.as_codes.push_back(layer.weight);
  }
  check(!options.fsdp || !options.skip_frozen, "ddp: fsdp needs skip_frozen false");
  check(options.fsdp || !options.deferred, "ddp: deferred parameters need fsdp");
  check(!options.fsdp || (options.shard && !options.fp8_weights),
        "ddp: fsdp needs shard, and does not exist yet with fp8_weights");
  if (options.fsdp) {
    std::vector<std::int64_t> sizes;
    for (const NamedTensor& p : parameters_) sizes.push_back(typical_size(p, layout_, buckets));
    buckets.unit_of = fsdp_units(model, parameters_, sizes);
    fsdp_ = std::make_unique<Fsdp>(buckets_, parameters_, options_);
  }
  for (BucketLayout& b : plan_buckets(parameters_, layout_, buckets)) open(std::move(b));
  options_.deferred.reset();
  works_.reserve(3 * buckets_.size());
  mark_empty();
}

Ddp::~Ddp() {
  fsdp_.reset();
  for (const Bucket& b : buckets_)
    for (const BucketEntry& e : b.layout.entries)
      if (has_main_grads(b, e.parameter)) parameters_[e.parameter].tensor.set_main_grad({});
}

// Not if another optimizer of the same parameters was made since.
bool Ddp::has_main_grads(const Bucket& b, std::size_t parameter) const {
  const Tensor now = parameters_[parameter].tensor.main_grad();
  return now.defined() && now.storage() == b.grad.storage();
}

void Ddp::open(BucketLayout layout) {
  Bucket b;
  b.layout = std::move(layout);
  const BucketLayout& l = b.layout;
  b.group = l.expert ? &mesh_.edp() : &mesh_.dp_cp();
  b.replica = 0;
  if (options_.shard && mesh_.degrees().dp_replicate > 1) {
    b.group = &mesh_.group(l.expert ? "edp_shard" : "dp_shard_cp");
    b.then.push_back(&mesh_.group(l.expert ? "edp_replicate" : "dp_replicate"));
    b.replica = b.then[0]->rank();
  }
  // In the lane of the first group, whose result it sums.
  if (l.tp_partial) b.then.push_back(&mesh_.group(l.expert ? "etp_grad" : "tp_grad"));
  const int rank = b.group->rank(), ranks = b.group->size();
  const std::int64_t slice = l.size / ranks;
  if (options_.deferred) {
    std::vector<Tensor> parameters;
    for (const BucketEntry& e : l.entries) parameters.push_back(parameters_[e.parameter].tensor);
    options_.deferred->make(parameters);
  }
  const ProfileScope scope("buckets");
  {
    const CategoryScope category(Category::gradient);
    b.grad = Tensor::zeros({l.size}, l.grad_dtype, device_);
  }
  b.slice = view_of(b.grad, rank * slice, {slice});
  b.owned = owned_ranges(l, rank, ranks);
  if (options_.shard) take_parameters(b);
  for (const BucketEntry& e : l.entries) {
    const Tensor& p = parameters_[e.parameter].tensor;
    b.whole.push_back(view_of(b.grad, e.begin, p.shape()));
    p.set_grad({});
    const auto reached = kFirstReached + static_cast<std::int64_t>(e.parameter);
    p.set_main_grad(b.whole.back(), is_on_many_gpus() ? sums_.select(0, reached) : Tensor());
    places_[p.impl()] = {e.parameter, buckets_.size(), false};
  }
  buckets_.push_back(std::move(b));
  if (fsdp_) fsdp_->take();
  Bucket& own = buckets_.back();
  if (own.replica > 0) return;
  for (const OwnedRange& r : own.owned)
    if (const std::int64_t n = std::min(r.size, counted(r.parameter) - r.in_parameter); n > 0) {
      own.counted.push_back(view_of(own.slice, r.in_slice, {n}));
      own.counted_of.push_back(r.parameter);
    }
}

// Makes the model's tensors views of one flat buffer, of which each rank updates its slice.
void Ddp::take_parameters(Bucket& b) {
  const CategoryScope category(Category::parameter);
  b.param = Tensor::zeros({b.layout.size}, b.layout.param_dtype, b.grad.device());
  b.param_slice = view_of(b.param, b.slice.offset() - b.grad.offset(), b.slice.shape());
  for (const BucketEntry& e : b.layout.entries) {
    const Tensor& p = parameters_[e.parameter].tensor;
    const Tensor place = view_of(b.param, e.begin, p.shape());
    place.copy_(p.detach());
    nn::detail::replace_storage(p, place);
  }
  if (b.layout.codes) b.param_slice = b.param_slice.clone();
}

std::int64_t Ddp::counted(std::size_t parameter) const {
  const NamedTensor& p = parameters_[parameter];
  const auto found = layout_.find(p.name);
  const ParameterLayout l = found == layout_.end() ? ParameterLayout{} : found->second;
  if (!mesh_.is_first_replica(l.cut_over)) return 0;
  const int rank = (l.expert ? mesh_.etp() : mesh_.tp()).rank();
  if (!l.tp_cut) return rank == 0 ? p.tensor.numel() : 0;
  // The first of the neighbours that share rows counts them.
  if (rank % l.shared_by == 0) return p.tensor.numel();
  return p.tensor.numel() / p.tensor.dim(0) * l.shared_from;
}

void Ddp::watch(Tape& tape) {
  check(!watching_, "ddp: finish() must be called before the next watch()");
  watching_ = true;
  if (fsdp_) fsdp_->watch();
  for (Bucket& b : buckets_) b.missing = b.layout.entries.size();
  for (auto& [impl, place] : places_) place.came = false;
  tape.on_grad_ready([this](const Tensor& leaf) { gradient_came(leaf); });
  tape.on_backward_end([this](const std::vector<Tensor>&) { backward_ended(); });
}

void Ddp::gradient_came(const Tensor& leaf) {
  const auto found = places_.find(leaf.impl());
  if (found == places_.end() || std::exchange(found->second.came, true)) return;
  --buckets_[found->second.bucket].missing;
  if (options_.overlap && !fsdp_) launch_ready();
}

void Ddp::launch_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) launch(buckets_[next_++]);
}

// A parameter without a gradient contributes zeros, or what earlier micro-batches left in its
// bucket.
void Ddp::backward_ended() {
  std::size_t count = 0;
  std::string first;
  for (const NamedTensor& p : parameters_) {
    if (places_.at(p.tensor.impl()).came) continue;
    if (count++ == 0) first = p.name;
  }
  if (count > 0 && !std::exchange(has_warned_, true))
    log_line(
        message("ddp: no gradient reached {} of {} parameters, the first is {}; their buckets "
                "are sent after backward",
                count, parameters_.size(), first));
  for (Bucket& b : buckets_) b.missing = 0;
  if (fsdp_) return fsdp_->backward_ended();
  if (options_.overlap) launch_ready();
}

void Ddp::launch(Bucket& b) {
  note_reached(b);
  clear_unreached(b);
  if (options_.check_finite) check_bucket(b);
  if (options_.shard)
    works_.push_back(b.group->reduce_scatter(b.slice, b.grad));
  else
    works_.push_back(b.group->all_reduce(b.grad));
  for (ProcessGroup* const next : b.then)
    works_.push_back(next->all_reduce(options_.shard ? b.slice : b.grad));
  b.sent_at = b.grad.version();
}

void Ddp::check_finite(const std::vector<Tensor>& gradients,
                       const std::vector<std::size_t>& parameters) const {
  if (gradients.empty()) return;
  const Tensor sums = optim::sums_of_squares(gradients);
  for (std::size_t i = 0; !sums.is_meta() && i < gradients.size(); ++i)
    if (!std::isfinite(sums.select(0, static_cast<std::int64_t>(i)).item()))
      throw Error(message("ddp: the gradient of {} is not finite on rank {}",
                          parameters_[parameters[i]].name, mesh_.world().rank()),
                  Fault::non_finite);
}

void Ddp::check_bucket(const Bucket& b) const {
  std::vector<std::size_t> parameters;
  for (const BucketEntry& e : b.layout.entries) parameters.push_back(e.parameter);
  check_finite(b.whole, parameters);
}

// The sums: gradients have no memory of their own any more.
void Ddp::check_slice(const Bucket& b) const {
  std::vector<Tensor> sums;
  std::vector<std::size_t> parameters;
  for (const OwnedRange& r : b.owned) {
    sums.push_back(view_of(b.slice, r.in_slice, {r.size}));
    parameters.push_back(r.parameter);
  }
  check_finite(sums, parameters);
}

void Ddp::measure(const Bucket& b) {
  if (b.counted.empty()) return;
  const Tensor squares = optim::sums_of_squares(b.counted);
  sums_.narrow(0, 0, 1).add_(squares.narrow(0, squares.numel() - 1, 1));
  if (!options_.count_zeros) return;
  const std::size_t first = static_cast<std::size_t>(kFirstReached) + parameters_.size();
  for (std::size_t i = 0; i < b.counted.size(); ++i)
    sums_.narrow(0, static_cast<std::int64_t>(first + b.counted_of[i]), 1)
        .add_(eq(b.counted[i], 0).to(DType::f64).sum({0}, true));
}

// What no rank has reached was sent as zeros, but is no gradient.
void Ddp::add_up_zeros() {
  const auto count = static_cast<std::int64_t>(parameters_.size());
  const Tensor reached = gt(sums_.narrow(0, kFirstReached, count), 0).to(DType::f64);
  const Tensor zeros = mul(sums_.narrow(0, kFirstReached + count, count), reached);
  sums_.narrow(0, kZeros, 1).copy_(zeros.sum({0}, true));
}

// Call it before the bucket is sent, because sending writes it. Values that changed since the
// bucket was marked as empty, with no backward involved, were written by hand.
void Ddp::note_reached(const Bucket& b) {
  bool by_hand = true;
  for (const BucketEntry& e : b.layout.entries) {
    check(has_main_grads(b, e.parameter),
          "ddp: {} must have the main_grad of this object, got that of a later optimizer or none",
          parameters_[e.parameter].name);
    const MainGrad& main = *parameters_[e.parameter].tensor.impl()->main_grad;
    by_hand = by_hand && !main.filled && main.empty_at != b.grad.version();
  }
  for (const BucketEntry& e : b.layout.entries) {
    const bool now = by_hand || parameters_[e.parameter].tensor.main_grad_filled();
    reached_changed_ |= (std::exchange(reached_[e.parameter], now ? 1 : 0) != 0) != now;
  }
}

// What backward has not reached holds the sums of the step before; its place in the sum is 0.
void Ddp::clear_unreached(const Bucket& b) {
  const NoGradGuard off;
  for (std::size_t i = 0; i < b.whole.size(); ++i)
    if (reached_[b.layout.entries[i].parameter] == 0) b.whole[i].zero_();
}

// The flags are copied to the device only in a step that changes them, which is rare.
void Ddp::begin_sums() {
  if (std::exchange(reached_changed_, false) && !own_sums_.is_meta()) {
    const auto count = static_cast<std::int64_t>(reached_.size());
    own_sums_.narrow(0, kFirstReached, count)
        .copy_(Tensor::from(std::span<const double>(reached_), {count}));
  }
  sums_.copy_(own_sums_);
}

// If the host may not wait for sums_, the optimizer's kernels read the flags on the device.
bool Ddp::is_on_many_gpus() const { return mesh_.world().size() > 1 && device_.is_gpu(); }

void Ddp::settle_reached() {
  const bool known = sums_.device().is_cpu();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool own = reached_[i] != 0;
    const bool any =
        known ? sums_.data<double>()[kFirstReached + i] > 0 : own || mesh_.world().size() > 1;
    parameters_[i].tensor.set_main_grad_filled(any);
  }
}

optim::GradClip Ddp::finish(double max_norm) {
  const NoGradGuard off;
  const std::string late = fsdp_ ? finish_units() : finish_buckets();
  watching_ = false;
  check(late.empty(), "{}", late);
  mesh_.world().all().at_once().all_reduce(sums_).wait();
  if (options_.count_zeros) add_up_zeros();
  settle_reached();
  return optim::clip_from(sums_.narrow(0, 0, 1), max_norm);
}

std::string Ddp::finish_units() {
  std::vector<double> now(reached_.size());
  std::string late = fsdp_->finish(now);
  reached_changed_ |= now != reached_;
  reached_ = now;
  begin_sums();
  for (const Bucket& b : buckets_) {
    if (options_.check_finite) check_slice(b);
    measure(b);
  }
  return late;
}

std::string Ddp::finish_buckets() {
  std::string late;
  for (std::size_t i = 0; i < next_ && late.empty(); ++i)  // sent while backward ran
    if (const Bucket& b = buckets_[i]; b.grad.version() != b.sent_at)
      late = message(
          "ddp: no backward must run between that of watch() and finish(), but one wrote the "
          "gradient of {} while it was sent",
          parameters_[b.layout.entries[0].parameter].name);
  while (next_ < buckets_.size()) launch(buckets_[next_++]);
  begin_sums();
  auto work = works_.begin();
  for (const Bucket& b : buckets_) {
    (work++)->wait();
    for (std::size_t i = 0; i < b.then.size(); ++i) (work++)->wait();
    measure(b);  // while the next bucket is in flight
  }
  works_.clear();
  next_ = 0;
  return late;
}

void Ddp::zero_grad() {
  check(works_.empty(), "ddp: finish() must be called before zero_grad()");
  mark_empty();
}

void Ddp::mark_empty() {
  for (const NamedTensor& p : parameters_) p.tensor.set_main_grad_filled(false);
}

Tensor Ddp::zeros() const {
  check(options_.count_zeros, "ddp: zeros() needs count_zeros");
  return sums_.select(0, kZeros).clone();
}

Tensor Ddp::joint_norm(const Tensor& squares) const {
  const NoGradGuard off;
  const Tensor total = Tensor::zeros({1}, DType::f64, sums_.device());
  if (squares.defined()) total.copy_(squares.view({1}));
  mesh_.world().all().at_once().all_reduce(total).wait();
  return total.select(0, 0).sqrt();
}

}  // namespace weft::distributed
