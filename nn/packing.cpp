#include "weft/nn/packing.h"

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {

Packing Packing::of(std::span<const std::int32_t> boundaries, std::int64_t longest, Device device,
                    std::span<const std::uint8_t> is_padding) {
  check(!boundaries.empty() && boundaries[0] == 0, "packing: boundaries must start at 0, got {}",
        boundaries.empty() ? "none" : message("{}", boundaries[0]));
  for (std::size_t i = 1; i < boundaries.size(); ++i) {
    const std::int64_t length = std::int64_t{boundaries[i]} - boundaries[i - 1];
    check(length >= 0, "packing: boundaries must not decrease, got {} after {}", boundaries[i],
          boundaries[i - 1]);
    check(length <= longest, "packing: sequences must have at most {} tokens, got {}", longest,
          length);
  }
  const Tensor positions = Tensor::empty({1, boundaries.back()}, DType::i32);
  auto* p = positions.data<std::int32_t>();
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    for (std::int32_t t = boundaries[i - 1]; t < boundaries[i]; ++t) *p++ = t - boundaries[i - 1];
  const Tensor cu = Tensor::from(boundaries, {static_cast<std::int64_t>(boundaries.size())});
  Packing out{cu.to(device), positions.to(device)};
  out.mark_checked();
  if (is_padding.empty()) return out;
  check(is_padding.size() + 1 == boundaries.size(),
        "packing: is_padding must have one element for each of the {} sequences, got {}",
        boundaries.size() - 1, is_padding.size());
  const Tensor padding = Tensor::empty({1, boundaries.back()}, DType::boolean);
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    std::fill(padding.data<bool>() + boundaries[i - 1], padding.data<bool>() + boundaries[i],
              is_padding[i - 1] != 0);
  out.padding = padding.to(device);
  return out;
}

void Packing::mark_checked() {
  known = cu_seqlens;
  known_version = known.defined() ? known.version() : 0;
}

void Packing::check_row(const Tensor& tokens) const {
  check(cu_seqlens.defined() && positions.defined(),
        "packing: cu_seqlens and positions must both be given");
  check(tokens.ndim() >= 2 && tokens.dim(0) == 1,
        "packing: the sequences must lie in one row, (1, tokens), got {}", tokens.shape());
  check(rows >= 1 && tokens.dim(1) % rows == 0,
        "packing: {} rows of equal length must fill the row, got {}", rows, tokens.shape());
  check(positions.numel() == tokens.dim(1), "packing: the row must have {} tokens, got {}",
        positions.numel(), tokens.dim(1));
}

Tensor Packing::masked(const Tensor& values, double filler) const {
  if (!padding.defined()) return values;
  check(padding.dtype() == DType::boolean && padding.numel() == values.numel(),
        "packing: padding must be bool with an element for each of the {} tokens, got {} {}",
        values.numel(), padding.dtype(), padding.shape());
  return where(padding.reshape(values.shape()),
               Tensor::full({}, filler, values.dtype(), values.device()), values);
}

}  // namespace weft::nn
