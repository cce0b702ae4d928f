#pragma once
#include <limits>
#include <vector>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/tests/support.h"

// The reference of the cross entropy tests: explicit double loops.
namespace weft::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

struct Outcome {
  Tensor loss, dx, dw;
};

/// f(x, w) and its gradients. A gradient is null where the operand does not require one.
template <class F>
Outcome differentiate(const Tensor& x_in, const Tensor& w_in, const Tensor& dy, const F& f) {
  Tensor x = x_in.detach(), w = w_in.detach();
  x.set_requires_grad();
  w.set_requires_grad();
  Tape tape;
  const Tensor loss = f(x, w);
  const TensorList g = tape.gradients(loss, {x, w}, dy);
  return {loss.detach(), g[0], g[1]};
}

struct Oracle {
  std::vector<double> loss, grad;  // the loss after the reduction
};

// Textbook double loops over the values that the logits hold. With reduction `none`, `dy` has one
// value per row; otherwise it has one value.
inline Oracle oracle(const Tensor& logits, const std::vector<std::int64_t>& targets,
                     const CrossEntropyOptions& o, const std::vector<double>& dy) {
  const auto rows = targets.size();
  const auto classes = static_cast<std::size_t>(logits.dim(-1));
  std::vector<double> x(rows * classes);
  logits.copy_to(x);
  double valid = 0;
  for (const std::int64_t t : targets) valid += t != o.ignore_index;
  const double divisor = o.reduction == Reduction::mean ? std::max(valid, 1.0) : 1;
  Oracle out;
  out.grad.assign(x.size(), 0);
  double total = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double row_loss = 0;
    if (targets[r] != o.ignore_index) {
      double max = -kInf, sum = 0;
      for (std::size_t c = 0; c < classes; ++c) max = std::max(max, x[r * classes + c]);
      for (std::size_t c = 0; c < classes; ++c) sum += std::exp(x[r * classes + c] - max);
      const double g = dy[o.reduction == Reduction::none ? r : 0] / divisor;
      for (std::size_t c = 0; c < classes; ++c) {
        const double log_p = x[r * classes + c] - max - std::log(sum);
        const bool hit = static_cast<std::int64_t>(c) == targets[r];
        const double q =
            (hit ? 1 - o.label_smoothing : 0.0) + o.label_smoothing / static_cast<double>(classes);
        if (q > 0) row_loss -= q * log_p;
        out.grad[r * classes + c] = g * (std::exp(log_p) - q);
      }
    }
    if (o.reduction == Reduction::none) out.loss.push_back(row_loss);
    total += row_loss;
  }
  if (o.reduction != Reduction::none) out.loss = {total / divisor};
  return out;
}

inline Tensor ids(const std::vector<std::int64_t>& values, const Shape& shape,
                  DType dtype = DType::i64) {
  return Tensor::from(std::span<const std::int64_t>(values), shape).to(dtype);
}

// Describes the first element off by more than rel * |want| + abs.
inline std::string far(const Tensor& got, const std::vector<double>& want, double rel, double abs) {
  const std::vector<double> g = values(got);
  if (g.size() != want.size()) return message("{} values, not {}", g.size(), want.size());
  for (std::size_t i = 0; i < g.size(); ++i)
    if (!(std::abs(g[i] - want[i]) <= rel * std::abs(want[i]) + abs))
      return message("element {}: {} where {} was expected", i, g[i], want[i]);
  return "";
}

struct Result {
  Tensor loss, grad;
};

inline Result run(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& o,
                  const Tensor& dy = {}) {
  Tensor x = logits.detach();
  x.set_requires_grad();
  Tape tape;
  const Tensor loss = cross_entropy(x, targets, o);
  const TensorList g = tape.gradients(loss, {x}, dy);
  return {loss, g[0]};
}

// Loss and gradient of every row must match the reference.
inline void check_against_oracle(const Tensor& logits, const std::vector<std::int64_t>& targets,
                                 const CrossEntropyOptions& o, const std::vector<double>& dy) {
  Shape rows = logits.shape();
  rows.pop_back();
  const DType real = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor cotangent =
      Tensor::from(std::span<const double>(dy), o.reduction == Reduction::none ? rows : Shape{})
          .to(real);
  const Oracle want = oracle(logits, targets, o, values(cotangent));
  const Result got = run(logits, ids(targets, rows), o, cotangent);
  CHECK(got.loss.dtype() == real);
  CHECK(got.grad.dtype() == logits.dtype());
  CHECK(got.grad.shape() == logits.shape());
  const double eps = real == DType::f64 ? 1e-13 : 1e-6;
  CHECK(far(got.loss, want.loss, 4 * eps, 4 * eps) == "");
  // 16 bits: arithmetic in f32 and one rounding, so half a unit in the last of 8 or 11 bits.
  const double rel = logits.dtype() == DType::bf16  ? 1.0 / 256
                     : logits.dtype() == DType::f16 ? 1.0 / 2048
                                                    : 20 * eps;
  CHECK(far(got.grad, want.grad, rel, eps) == "");
}

}  // namespace weft::test
