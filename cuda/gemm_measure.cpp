#include "weft/cuda/gemm_measure.h"

#include <optional>

#include "weft/core/cuda_graph.h"

namespace weft::cuda {
namespace {

// The cheap question comes first: it is asked for every product of a run that measures.
bool is_measurable(const Product& p, const ProductData& data) {
  const Product own = aligned(p, data);
  return fits_epilogue(own, data) && !Graph::capturing() && is_new_product(own) &&
         !GemmChoices::get().find(own);
}

// From the first to the last byte of D.
std::int64_t bytes_of_result(const Product& p) {
  const std::int64_t size = p.result_type == lt::kF64 ? 8 : p.result_type == lt::kF32 ? 4 : 2;
  return size * ((p.batch - 1) * p.step_d + (p.cols - 1) * p.ldd + p.rows);
}

// A product that adds to D has other memory of the same alignment, since it runs several times.
std::optional<GemmChoice> measure_beside(const Product& p, ProductData data) {
  if (!p.accumulate) return measure_product(p, data);
  const std::int64_t offset = alignment_of(data.d) % 256;
  const Tensor beside = Tensor::empty({offset + bytes_of_result(p)}, DType::u8,
                                      {Device::Kind::cuda, static_cast<std::int16_t>(p.device)});
  data.d = static_cast<char*>(beside.raw()) + offset;
  return measure_product(p, data);
}

}  // namespace

void measure_once(const Product& p, const ProductData& data) {
  if (!is_measurable(p, data)) return;
  if (const std::optional<GemmChoice> choice = measure_beside(p, data))
    GemmChoices::get().keep(aligned(p, data), *choice);
}

void measure_once(const Product& p, const ProductData& data, const Tensor& out,
                  const std::function<void(const Tensor& out)>& parts) {
  if (!is_measurable(p, data)) return;
  std::optional<GemmChoice> choice = measure_beside(p, data);
  if (!choice) return;
  const Tensor beside = p.accumulate ? Tensor::empty(out.shape(), out.dtype(), out.device()) : out;
  parts(beside);  // measures its own products
  const double ms = shortest_ms(Stream::current(out.device()), [&] { parts(beside); });
  if (ms < choice->ms) {
    choice = {GemmChoice::kParts, ms};
    forbid_product(p, data);
  }
  GemmChoices::get().keep(aligned(p, data), *choice);
}

}  // namespace weft::cuda
