#include "weft/autograd/fp8_products.h"

#include <bit>

#include "weft/autograd/grouped_products.h"
#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/gemm.h"
#include "weft/core/restorer.h"

namespace weft::fp8 {
namespace {

constexpr std::int64_t kBlock = kFp8Block;

// Any two settings that give other copies of a weight have other numbers.
std::uint64_t settings_of(const Products& p, bool counts) {
  const Fp8Scaling how = p.recipe.numbers();
  std::uint64_t all = 1469598103934665603u;
  const auto mix = [&](std::uint64_t v) { all = (all ^ v) * 1099511628211u; };
  mix(static_cast<std::uint64_t>(p.recipe.scaling));
  mix(std::bit_cast<std::uint32_t>(how.epsilon));
  mix(how.power_of_two);
  if (p.recipe.scaling != Scaling::delayed) return all;
  mix(counts);
  mix(p.delayed.scale.version());
  return all;
}

// Codes that the op before has written.
Quantized rounded_already(const Products& p, const RoundedRows& known, const RowGroups& groups,
                          Operand operand, const Fp8Tile& tile, bool counts, const Copies& copies) {
  Quantized q{.rows = known.codes, .columns = {}, .inverse = known.inverse};
  if (p.recipe.scaling == Scaling::block) {
    q.tile = tile;
    return q;
  }
  if (counts) count_amax(p.delayed, operand, known.amax);
  if (copies.columns) q.columns = transposed_codes(known.codes, groups);
  return q;
}

Quantized round(const Products& p, const Tensor& t, const RowGroups& groups, DType to,
                Operand operand, const Fp8Tile& tile, bool counts, const Copies& copies,
                const ReduceAmax& reduce, const RoundedRows& known = {}) {
  if (known.codes.defined())
    return rounded_already(p, known, groups, operand, tile, counts, copies);
  switch (p.recipe.scaling) {
    case Scaling::block:
      return quantize_tiles(t, groups, to, tile, p.recipe.numbers());
    case Scaling::delayed:
      return quantize_delayed(t, groups, to, p.delayed, operand, counts, copies, known.amax);
    case Scaling::current:
      break;
  }
  return quantize(t, groups, to, p.recipe.numbers(), copies, reduce, known.amax);
}

}  // namespace

void check_products(const char* op, const Products& p, Device device) {
  check_device(device);
  check(p.dtype == DType::f32 || p.dtype == DType::bf16,
        "{}: FP8 products need f32 or bf16 tensors, got {}", op, p.dtype);
  check(p.inputs % kMultiple == 0 && p.outputs % kMultiple == 0,
        "{}: FP8 needs widths that are multiples of {}, got {} inputs and {} outputs", op,
        kMultiple, p.inputs, p.outputs);
  const RowGroups groups = p.row_groups();
  for (std::int64_t g = 0; g < groups.count; ++g)
    check(groups.of(g) % kMultiple == 0,
          "{}: FP8 needs rows of x that are a multiple of {}, got {}", op, kMultiple, groups.of(g));
  check(p.recipe.scaling != Scaling::delayed || p.delayed.defined(),
        "{}: delayed scales need a layer that keeps them, and this one does not; call "
        "nn::prepare_fp8(model, recipe) first",
        op);
}

Quantized round_x(const Products& p, const Tensor& x, bool counts, const Copies& copies,
                  const ReduceAmax& reduce, const RoundedRows& known) {
  return round(p, x, p.row_groups(), kForward, Operand::x, {1, kBlock}, counts, copies, reduce,
               known);
}

Quantized round_along_rows(const Products& p, const Tensor& t, DType to) {
  return quantize_tiles(t, p.row_groups(), to, {kBlock, 1}, p.recipe.numbers());
}

Quantized round_weight(const Products& p, const Tensor& weight, bool counts, bool columns,
                       const LayerState* state) {
  const auto make = [&] {
    const CategoryScope category(state ? Category::parameter : Category::activation);
    const RestoredScope numbers(weight.storage());
    return round(p, weight.alias({p.count * p.outputs, p.inputs}, {p.inputs, 1}, 0),
                 p.weight_groups(), kForward, Operand::weight, {kBlock, kBlock}, counts,
                 {.rows = true, .columns = columns}, {});
  };
  if (!state) return make();
  if (const auto given = state->weight.given(weight, columns, p.weight_groups())) {
    if (counts && given->amax.defined()) count_amax(p.delayed, Operand::weight, given->amax);
    return given->codes;
  }
  return state->weight.get(weight, settings_of(p, counts), columns, make);
}

Quantized round_gradient(const Products& p, const Tensor& dy, const Copies& copies,
                         const ReduceAmax& reduce) {
  return round(p, dy, p.row_groups(), kGradient, Operand::gradient, {1, kBlock}, true, copies,
               reduce);
}

void multiply(const Products& p, GroupedProduct kind, const Quantized& a, const Quantized& b,
              const Tensor& bias, const Tensor& out, bool accumulate) {
  const bool to_weight = kind == GroupedProduct::weight_grad;
  if (p.recipe.scaling == Scaling::block)
    return multiply_plain(p, kind, dequantize(a, p.row_groups(), p.dtype),
                          dequantize(b, to_weight ? p.row_groups() : p.weight_groups(), p.dtype),
                          bias, out, accumulate);
  const bool gpu = out.device().is_gpu();
  const Fp8ProductIn in{.a = gpu && to_weight ? a.columns : a.rows,
                        .b = gpu && kind != GroupedProduct::forward ? b.columns : b.rows,
                        .a_inverse = a.inverse,
                        .b_inverse = b.inverse,
                        .bias = bias,
                        .rows = p.rows,
                        .kind = kind,
                        .all_rows = p.all_rows,
                        .outputs = p.outputs,
                        .inputs = p.inputs,
                        .accumulate = accumulate};
  Tensor scratch;
  if (const std::int64_t n = fp8_product_scratch(in, out))
    scratch = Tensor::empty({n}, DType::f32, out.device());
  weft::detail::count_product(p.all_rows * p.outputs, p.inputs);
  if (accumulate) weft::detail::count_update(out);
  dispatch<cpu::fp8_product, cuda::fp8_product>(in, scratch, out);
}

void multiply_plain(const Products& p, GroupedProduct kind, const Tensor& a, const Tensor& b,
                    const Tensor& bias, const Tensor& out, bool accumulate) {
  if (p.rows.defined()) {
    const bool to_weight = kind == GroupedProduct::weight_grad;
    if (to_weight && !accumulate) weft::detail::clear_empty_groups(p.rows, out);
    const Tensor other =
        to_weight ? b
                  : b.alias({p.count, p.outputs, p.inputs}, {p.outputs * p.inputs, p.inputs, 1}, 0);
    return weft::detail::grouped_product(a, other, kind, p.rows, out, accumulate);
  }
  switch (kind) {
    case GroupedProduct::forward:
      return gemm_bias(a, b, bias, out);
    case GroupedProduct::input_grad:
      return gemm(a, b, out, accumulate);
    case GroupedProduct::weight_grad:
      return gemm(transposed(a), b, out, accumulate);
  }
}

}  // namespace weft::fp8
