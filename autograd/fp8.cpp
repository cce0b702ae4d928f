#include "weft/autograd/fp8.h"

#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft::fp8 {
namespace {

Tensor f32(std::int64_t n, Device device) { return Tensor::empty({n}, DType::f32, device); }

void check_input(const char* op, const Tensor& x, const RowGroups& groups) {
  check(x.defined(), "{}: x must be a tensor, got a null handle", op);
  check(x.dtype() == DType::f32 || x.dtype() == DType::bf16, "{}: x must be f32 or bf16, got {}",
        op, x.dtype());
  check(x.ndim() == 2 && x.is_contiguous(), "{}: x must be a contiguous matrix, got shape {}", op,
        x.shape());
  std::int64_t rows = 0;
  for (std::int64_t g = 0; g < groups.count; ++g) rows += groups.of(g);
  check(rows == x.dim(0), "{}: the groups must have the {} rows of x, got {}", op, x.dim(0), rows);
}

void round(Quantized& q, const Tensor& x, const RowGroups& groups, DType to, const Tensor& scale,
           const Copies& copies) {
  if (copies.rows) q.rows = Tensor::empty(x.shape(), to, x.device());
  if (copies.columns) q.columns = Tensor::empty({x.dim(1), x.dim(0)}, to, x.device());
  if (x.numel() > 0) dispatch<cpu::quantize, cuda::quantize>(x, groups, scale, q.rows, q.columns);
}

// amax[g] = the largest magnitude of group g of x, found among those of its rows if these are
// known.
void find_amax(const Tensor& x, const RowGroups& groups, bool keep, const Tensor& row_amax,
               const Tensor& amax) {
  const Tensor from = row_amax.defined() ? row_amax.alias({x.dim(0), 1}, {1, 1}, 0) : x;
  dispatch<cpu::fp8_amax, cuda::fp8_amax>(from, groups, keep, amax);
}

Tensor slot_of(const Delayed& state, Operand operand) {
  return state.history.alias({1}, {1}, static_cast<std::int64_t>(operand));
}

}  // namespace

constinit thread_local const Autocast* Autocast::innermost_ = nullptr;

Autocast::Autocast(const std::optional<Recipe>& recipe) : outer_(innermost_), recipe_(recipe) {
  if (recipe_) recipe_->validate();
  innermost_ = this;
}

void Recipe::validate() const {
  check(epsilon >= 0 && epsilon < 1e30, "fp8: epsilon must be at least 0, got {}", epsilon);
  check(history >= 1 && history <= 1 << 20, "fp8: history must be in [1, 1048576], got {}",
        history);
  check(margin >= -32 && margin <= 32, "fp8: margin must be in [-32, 32], got {}", margin);
}

void check_device(Device device) {
  if constexpr (kWithCuda) {
    constexpr int kOldest = 89;  // the first with the instructions
    if (!device.is_cuda()) return;
    const int capability = cuda::rt::compute_capability(device.index);
    check(capability >= kOldest,
          "fp8: needs a GPU of compute capability 8.9 or newer, got {}.{} of {}", capability / 10,
          capability % 10, device);
  }
}

Quantized quantize(const Tensor& x, const RowGroups& groups, DType to, const Fp8Scaling& how,
                   const Copies& copies, const ReduceAmax& reduce, const Tensor& row_amax) {
  check_input("fp8::quantize", x, groups);
  const Device device = x.device();
  Quantized q{.rows = {}, .columns = {}, .inverse = f32(groups.count, device)};
  const Tensor amax = f32(groups.count, device), scale = f32(groups.count, device);
  find_amax(x, groups, false, row_amax, amax);
  if (reduce) reduce(amax);
  dispatch<cpu::fp8_scale, cuda::fp8_scale>(amax, fp8_largest(to), how, scale, q.inverse);
  round(q, x, groups, to, scale, copies);
  return q;
}

Quantized quantize_tiles(const Tensor& x, const RowGroups& groups, DType to, const Fp8Tile& tile,
                         const Fp8Scaling& how) {
  check_input("fp8::quantize_tiles", x, groups);
  Quantized q{.rows = Tensor::empty(x.shape(), to, x.device()),
              .columns = {},
              .inverse = Tensor::empty(
                  {fp8_tile_rows(groups, tile), (x.dim(1) + tile.columns - 1) / tile.columns},
                  DType::f32, x.device()),
              .tile = tile};
  if (x.numel() > 0)
    dispatch<cpu::quantize_tiles, cuda::quantize_tiles>(x, groups, tile, how, q.rows, q.inverse);
  return q;
}

Tensor transposed_codes(const Tensor& codes, const RowGroups& groups) {
  Tensor columns = Tensor::empty({codes.dim(1), codes.dim(0)}, codes.dtype(), codes.device());
  const Tensor none;
  if (codes.numel() > 0)
    dispatch<cpu::quantize, cuda::quantize>(codes, groups, none, none, columns);
  return columns;
}

Tensor dequantize(const Quantized& q, const RowGroups& groups, DType dtype) {
  Tensor out = Tensor::empty(q.rows.shape(), dtype, q.rows.device());
  if (out.numel() > 0)
    dispatch<cpu::dequantize, cuda::dequantize>(q.rows, groups, q.tile, q.inverse, out);
  return out;
}

Quantized quantize_rows(const Tensor& x) {
  constexpr Fp8Tile kBlock{1, 128};
  return quantize_tiles(x, {.each = x.dim(0)}, kForward, kBlock, {.power_of_two = true});
}

Tensor rounded_rows(const Tensor& x) {
  Tensor y;
  {
    const NoGradGuard quiet;
    y = dequantize(quantize_rows(contiguous(x)), {.each = x.dim(0)}, x.dtype());
  }
  if (recording(x)) Tape::record("rounded_rows", {&x}, {&y}, [](Backward& b) { b.add(0, b.dy()); });
  return y;
}

void take_scale(const Delayed& state, Operand operand, const Tensor& scale, const Tensor& inverse) {
  const Fp8Delayed now{.history = state.history, .scale = state.scale};
  dispatch<cpu::fp8_take, cuda::fp8_take>(now, static_cast<std::int64_t>(operand), scale, inverse);
}

void count_amax(const Delayed& state, Operand operand, const Tensor& amax) {
  find_amax(amax.alias({amax.numel(), 1}, {1, 1}, 0), {.each = amax.numel()}, true, {},
            slot_of(state, operand));
}

Quantized quantize_delayed(const Tensor& x, const RowGroups& groups, DType to, const Delayed& state,
                           Operand operand, bool counts, const Copies& copies,
                           const Tensor& row_amax) {
  check_input("fp8::quantize_delayed", x, groups);
  Quantized q{.rows = {}, .columns = {}, .inverse = f32(1, x.device())};
  const Tensor scale = f32(1, x.device());
  if (counts) find_amax(x, groups, true, row_amax, slot_of(state, operand));
  take_scale(state, operand, scale, q.inverse);
  round(q, x, groups, to, scale, copies);
  return q;
}

void roll(const Delayed& state, const Recipe& recipe) {
  const Fp8Delayed now{.history = state.history, .scale = state.scale};
  dispatch<cpu::fp8_roll, cuda::fp8_roll>(
      now, Fp8Limits{fp8_largest(kForward), fp8_largest(kGradient)}, recipe.numbers());
  state.history.bump_version();
  state.scale.bump_version();
}

bool WeightCache::holds(const Tensor& weight, std::uint64_t settings, bool columns) const {
  return weight_.defined() && weight_.storage() == weight.storage() &&
         weight_.offset() == weight.offset() && weight_.shape() == weight.shape() &&
         version_ == weight.version() && settings_ == settings &&
         (!columns || copy_.columns.defined());
}

void WeightCache::give(const Tensor& weight, const Given& given) {
  const std::lock_guard lock(mutex_);
  clear();
  copy_ = given.codes;
  amax_ = given.amax;
  keep(weight, 0);
  given_ = true;
}

std::optional<WeightCache::Given> WeightCache::given(const Tensor& weight, bool columns,
                                                     const RowGroups& groups) {
  const std::lock_guard lock(mutex_);
  if (!given_ || weight_.storage() != weight.storage() || weight_.offset() != weight.offset())
    return std::nullopt;
  if (columns && !copy_.columns.defined()) {
    const CategoryScope category(Category::parameter);
    copy_.columns = transposed_codes(copy_.rows, groups);
  }
  return Given{copy_, amax_};
}

void WeightCache::keep(const Tensor& weight, std::uint64_t settings) {
  weight_ = weight.detach();
  version_ = weight.version();
  settings_ = settings;
}

}  // namespace weft::fp8
