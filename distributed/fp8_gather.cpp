#include "weft/distributed/fp8_gather.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/storage.h"

namespace weft::distributed {

Fp8Gather::Fp8Gather(const Ddp& ddp, const Ddp::Bucket& bucket)
    : bucket_(bucket),
      how_(ddp.options().fp8_weights->numbers()),
      delayed_(ddp.options().fp8_weights->scaling == fp8::Scaling::delayed) {
  const Device device = bucket.param.device();
  std::int64_t groups = 0;
  for (const BucketEntry& e : bucket.layout.entries) {
    const Tensor& p = ddp.parameters()[e.parameter].tensor;
    // Experts have scales of their own, but for delayed ones, which belong to a layer.
    const std::int64_t count = p.ndim() == 3 && !delayed_ ? p.dim(0) : 1, each = e.size / count;
    for (const nn::Fp8Layer& layer : ddp.fp8_layers())
      if (layer.weight.impl() == p.impl()) holders_.push_back({layer, e.begin, groups, count});
    for (const OwnedRange& r : bucket.owned) {
      if (r.parameter != e.parameter) continue;
      const std::int64_t end = r.in_parameter + r.size;
      for (std::int64_t at = r.in_parameter; at < end;) {
        const std::int64_t g = at / each, stop = std::min(end, (g + 1) * each);
        own_.push_back({groups + g, r.in_slice + at - r.in_parameter, stop - at});
        at = stop;
      }
    }
    groups += count;
  }
  const CategoryScope category(Category::parameter);
  codes_ = Tensor::zeros({bucket.layout.size}, fp8::kForward, device);
  slice_ =
      codes_.alias(bucket.param_slice.shape(), {1}, bucket.slice.offset() - bucket.grad.offset());
  inverse_ = Tensor::zeros({groups}, DType::f32, device);
  amax_ = Tensor::zeros({groups}, DType::f32, device);
  scale_ = Tensor::zeros({groups}, DType::f32, device);
}

// As rows, which threads share.
Tensor Fp8Gather::part(const Tensor& flat, const Piece& piece) const {
  constexpr std::int64_t kMostColumns = 4096;
  const std::int64_t columns = std::gcd(piece.size, kMostColumns);
  return flat.alias({piece.size / columns, columns}, {columns, 1}, piece.in_slice);
}

Work Fp8Gather::gather() {
  const NoGradGuard quiet;
  amax_.zero_();
  const auto each = [&](auto f) {
    for (const Piece& piece : own_) {
      const Tensor x = part(bucket_.param_slice, piece);
      f(piece, x, RowGroups{.each = x.dim(0)});
    }
  };
  each([&](const Piece& piece, const Tensor& x, const RowGroups& rows) {
    dispatch<cpu::fp8_amax, cuda::fp8_amax>(x, rows, false, amax_.narrow(0, piece.group, 1));
  });
  if (delayed_) {  // the layer counts amax_ at its use, and Fp8Step reduces what it has counted
    for (const Holder& h : holders_)
      fp8::take_scale(h.layer.state->delayed, fp8::Operand::weight,
                      scale_.narrow(0, h.first_group, 1), inverse_.narrow(0, h.first_group, 1));
  } else {
    bucket_.group->at_once().all_reduce(amax_, Reduce::max).wait();
    dispatch<cpu::fp8_scale, cuda::fp8_scale>(amax_, fp8_largest(fp8::kForward), how_, scale_,
                                              inverse_);
  }
  each([&](const Piece& piece, const Tensor& x, const RowGroups& rows) {
    dispatch<cpu::quantize, cuda::quantize>(x, rows, scale_.narrow(0, piece.group, 1),
                                            part(slice_, piece), Tensor());
  });
  return bucket_.group->all_gather(codes_, slice_);
}

void Fp8Gather::arrived() {
  for (const Holder& h : holders_) {
    const Tensor& w = h.layer.weight;
    const std::int64_t columns = w.dim(-1);
    h.layer.state->weight.give(
        w, {.codes = {.rows = codes_.alias({w.numel() / columns, columns}, {columns, 1}, h.begin),
                      .columns = {},
                      .inverse = inverse_.narrow(0, h.first_group, h.groups)},
            .amax = delayed_ ? amax_.narrow(0, h.first_group, 1) : Tensor()});
  }
}

void Fp8Gather::begin() {
  gather().wait();
  arrived();
  empty_storage(bucket_.param.storage());
}

void Fp8Gather::restore() {
  Storage* const s = bucket_.param.storage();
  if (!s->released) return;
  const NoGradGuard quiet;
  const CategoryScope category(Category::parameter);
  const Tensor values =
      Tensor::empty(bucket_.param.shape(), bucket_.param.dtype(), bucket_.param.device());
  bucket_.group->all_gather(values, bucket_.param_slice).wait();
  move_block(values.storage(), s);  // a gather that failed leaves the weights without memory
  restored_at_ = bucket_.param.version();
}

void Fp8Gather::take_written() {
  if (bucket_.param.storage()->released || bucket_.param.version() == restored_at_) return;
  const NoGradGuard quiet;
  bucket_.param_slice.copy_(bucket_.param.alias(bucket_.slice.shape(), {1},
                                                bucket_.slice.offset() - bucket_.grad.offset()));
  restored_at_ = bucket_.param.version();
  stale_ = true;
}

void Fp8Gather::release() {
  if (bucket_.param.storage()->released) return;
  take_written();
  if (std::exchange(stale_, false)) {
    gather().wait();
    arrived();
  }
  empty_storage(bucket_.param.storage());
}

}  // namespace weft::distributed
