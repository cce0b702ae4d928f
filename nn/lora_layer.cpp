#include "weft/nn/lora_layer.h"

#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/core/error.h"
#include "weft/nn/lora.h"

namespace weft::nn {

Tensor lora_product(const Tensor& a, const Tensor& b, double scale) {
  return mul(matmul(b, a), scale);
}

Lora::Lora(std::string of, std::int64_t in, std::int64_t rows, const LoraOptions& o, DType dtype,
           Device device)
    : part(std::move(of)),
      scale(o.scale()),
      a_init(Init::kaiming_uniform(in, 0.5773502691896258)),  // bound 1/sqrt(in)
      drop(o.dropout),
      a(make_parameter({o.rank, in}, a_init, dtype, device)),
      b(make_parameter({rows, o.rank}, Init::constant(0), dtype, device)) {}

Tensor Lora::operator()(const Tensor& x) const {
  const Tensor low = mul(linear(drop(x), a), scale);
  return shard && shard->product ? shard->product(low, b, {}) : linear(low, b);
}

void Lora::visit(Visitor& v) {
  v("drop", drop);
  v("a", a, a_init);
  v("b", b, Init::constant(0));
}

std::string Lora::describe() const { return message("Lora(rank {})", a.dim(0)); }

}  // namespace weft::nn
