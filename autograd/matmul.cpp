#include "weft/autograd/matmul.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/gemm.h"

namespace weft {
namespace {

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  if (!is_compute(a.dtype())) throw_bad_dtype(op, a.dtype(), kFloatingNames);
  check(a.dtype() == b.dtype(), "{}: operands must have one dtype, got {} and {}", op, a.dtype(),
        b.dtype());
  check(a.device() == b.device(), "{}: operands must be on one device, got {} and {}", op,
        a.device(), b.device());
}

Shape leading(const Tensor& t) { return Shape(t.shape().begin(), t.shape().end() - 2); }

// Flattens the leading axes to rows: (..., M, K) -> (rows, K).
Tensor as_rows(const Tensor& t) {
  const std::int64_t cols = t.dim(-1);
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.ndim(); ++i) rows *= t.dim(i);
  return reshape(t, {rows, cols});
}

Tensor grad_a(const Tensor& dy, const Tensor& a, const Tensor& b) {
  return sum_to(matmul(dy, transpose(b, -2, -1)), a.shape());
}

Tensor grad_b(const Tensor& dy, const Tensor& a, const Tensor& b) {
  // b is shared by a's whole batch: one product also sums over the batch.
  if (b.ndim() == 2) return matmul(transpose(as_rows(a), 0, 1), as_rows(dy));
  return sum_to(matmul(transpose(a, -2, -1), dy), b.shape());
}

// Both operands have at least two axes.
Tensor matrix_product(const Tensor& a, const Tensor& b) {
  Shape shape = broadcast_shapes("matmul: leading axes", leading(a), leading(b));
  shape.push_back(a.dim(-2));
  shape.push_back(b.dim(-1));
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  gemm(a, b, y);
  if (recording(a, b))
    Tape::record("matmul", {&a, &b}, {&y}, [sa = save(a, "a"), sb = save(b, "b")](Backward& g) {
      if (g.needs(0)) g.add(0, grad_a(g.dy(), sa.get(), sb.get()));
      if (g.needs(1)) g.add(1, grad_b(g.dy(), sa.get(), sb.get()));
    });
  return y;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  detail::check_tensor("matmul", "a", a);
  detail::check_tensor("matmul", "b", b);
  check(a.ndim() >= 1 && b.ndim() >= 1,
        "matmul: operands must have at least 1 axis, got shapes {} and {}", a.shape(), b.shape());
  check_operands("matmul", a, b);
  check(a.dim(-1) == b.dim(b.ndim() == 1 ? 0 : -2),
        "matmul: inner dimensions must be equal, got shapes {} and {}", a.shape(), b.shape());
  if (a.ndim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.ndim() == 1 ? 0 : -2);
  if (b.ndim() == 1) return squeeze(matrix_product(a, unsqueeze(b, 1)), -1);
  return matrix_product(a, b);
}

namespace {

void check_vectors(const char* op, const Tensor& a, const Tensor& b) {
  detail::check_tensor(op, "a", a);
  detail::check_tensor(op, "b", b);
  check(a.ndim() == 1 && b.ndim() == 1, "{}: both operands must have 1 axis, got {} and {}", op,
        a.shape(), b.shape());
}

}  // namespace

Tensor dot(const Tensor& a, const Tensor& b) {
  check_vectors("dot", a, b);
  check_operands("dot", a, b);
  check(a.dim(0) == b.dim(0), "dot: both operands must have one length, got {} and {}", a.dim(0),
        b.dim(0));
  return matmul(a, b);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_vectors("outer", a, b);
  return mul(unsqueeze(a, 1), b);
}

}  // namespace weft
