#include "weft/nn/rotary.h"

#include "weft/core/error.h"

namespace weft::nn {

RotaryTable::RotaryTable(std::int64_t seq, std::int64_t head_dim, double theta,
                         const RopeScaling& scaling)
    : theta(theta), scaling(scaling) {
  check(seq > 0, "rotary: seq must be at least 1, got {}", seq);
  check(head_dim > 0 && head_dim % 2 == 0, "rotary: head_dim must be even, got {}", head_dim);
  check(theta > 0, "rotary: theta must be above 0, got {}", theta);
  const DType dtype = default_dtype() == DType::f64 ? DType::f64 : DType::f32;
  cos = Tensor::empty({seq, head_dim / 2}, dtype, default_device());
  sin = empty_like(cos);
  fill_tables();
}

void RotaryTable::visit(Visitor& v) {
  v("cos", table(cos));
  v("sin", table(sin));
}

std::string RotaryTable::describe() const {
  return message("RotaryTable(theta {}, {} positions)", theta, cos.dim(0));
}

void RotaryTable::fill_tables() {
  if (cos.is_meta()) return;
  const RopeTables angles = rope_tables(cos.dim(0), 2 * cos.dim(1), theta, cos.dtype(), scaling);
  cos.copy_(angles.cos);
  sin.copy_(angles.sin);
}

}  // namespace weft::nn
