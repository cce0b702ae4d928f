#pragma once
#include "weft/autograd/rope.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Angles of rotary position embedding, shared by all layers of a model.
/// Source: Su et al. 2021, arXiv:2104.09864.
struct RotaryTable : Module {
  double theta;
  RopeScaling scaling;
  Tensor cos, sin;  // (seq, head_dim / 2), f64 for an f64 model, else f32

  RotaryTable(std::int64_t seq, std::int64_t head_dim, double theta,
              const RopeScaling& scaling = {});
  void visit(Visitor& v) override;
  std::string describe() const override;
  void fill_tables() override;
};

}  // namespace weft::nn
