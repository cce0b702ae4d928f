#include "weft/core/gemm.h"

#include <algorithm>

#include "weft/core/dispatch.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/gemm.h"

namespace weft {
namespace {

// An operand in a layout that the kernel reads: row-contiguous, possibly transposed.
class Operand {
 public:
  explicit Operand(const Tensor& t) : given_(t) {
    const std::int64_t rows = t.dim(-2), cols = t.dim(-1);
    const std::int64_t row = t.strides()[t.ndim() - 2], col = t.strides()[t.ndim() - 1];
    if ((col == 1 || cols <= 1) && (row >= cols || rows <= 1)) {
      ld = rows <= 1 ? std::max<std::int64_t>(cols, 1) : row;
    } else if ((row == 1 || rows <= 1) && (col >= rows || cols <= 1)) {
      trans = true;
      ld = cols <= 1 ? std::max<std::int64_t>(rows, 1) : col;
    } else {
      copied_ = empty_like(t);
      dispatch<cpu::copy, cuda::copy>(t, copied_);
      ld = std::max<std::int64_t>(cols, 1);
    }
  }
  const Tensor& tensor() const { return copied_.defined() ? copied_ : given_; }

  bool trans = false;
  std::int64_t ld = 0;

 private:
  const Tensor& given_;
  Tensor copied_;
};

// Merges neighbouring leading axes where all three tensors step through them as if they were one.
void merge_batch(const Tensor& a, const Tensor& b, const Tensor& out, GemmShape& g) {
  const int axes = out.ndim() - 2;
  const auto step = [&](const Tensor& t, int axis) -> std::int64_t {
    const int own = axis - (out.ndim() - t.ndim());
    return own < 0 || t.dim(own) == 1 ? 0 : t.strides()[own];
  };
  for (int i = 0; i < axes; ++i) {
    const std::int64_t n = out.dim(i);
    if (n == 1) continue;
    const std::int64_t sa = step(a, i), sb = step(b, i), so = step(out, i);
    const int last = g.batch.size() - 1;
    if (last >= 0 && g.a_step[last] == sa * n && g.b_step[last] == sb * n &&
        g.out_step[last] == so * n) {
      g.batch[last] *= n;
      g.a_step[last] = sa;
      g.b_step[last] = sb;
      g.out_step[last] = so;
    } else {
      g.batch.push_back(n);
      g.a_step.push_back(sa);
      g.b_step.push_back(sb);
      g.out_step.push_back(so);
    }
  }
}

// (batch, m, k) times a single (k, n) becomes one taller product.
void fold_batch_into_rows(GemmShape& g) {
  const int last = g.batch.size() - 1;
  if (last < 0 || g.trans_a || g.b_step[last] != 0) return;
  // The row distance of a and out must be constant across matrices. A matrix of one row leaves the
  // distance open.
  const std::int64_t lda = g.m == 1 ? g.a_step[last] : g.lda;
  const std::int64_t ldc = g.m == 1 ? g.out_step[last] : g.ldc;
  if (g.a_step[last] != g.m * lda || g.out_step[last] != g.m * ldc || lda < g.k) return;
  g.lda = lda;
  g.ldc = ldc;
  g.m *= g.batch[last];
  g.batch.pop_back();
  g.a_step.pop_back();
  g.b_step.pop_back();
  g.out_step.pop_back();
}

}  // namespace

void gemm(const Tensor& a, const Tensor& b, const Tensor& out, bool accumulate) {
  if (out.numel() == 0) return;
  if (a.dim(-1) == 0) {
    if (!accumulate) dispatch<cpu::fill, cuda::fill>(out, 0.0);
    return;
  }
  const Operand left(a), right(b);
  GemmShape g;
  g.m = a.dim(-2);
  g.n = b.dim(-1);
  g.k = a.dim(-1);
  g.trans_a = left.trans;
  g.trans_b = right.trans;
  g.lda = left.ld;
  g.ldb = right.ld;
  g.ldc = g.m <= 1 ? g.n : out.strides()[out.ndim() - 2];
  g.accumulate = accumulate;
  merge_batch(left.tensor(), right.tensor(), out, g);
  fold_batch_into_rows(g);
  Tensor scratch;
  if (const std::int64_t n = gemm_scratch(g, a.dtype(), a.device()))
    scratch = Tensor::empty({n}, DType::f32, a.device());
  detail::count_product(out.numel(), g.k);
  if (accumulate) detail::count_update(out);
  dispatch<cpu::gemm, cuda::gemm>(left.tensor(), right.tensor(), g, scratch, out);
}

void gemm_bias(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out) {
  if (!bias.defined() || out.numel() == 0) return gemm(x, transposed(weight), out);
  if (bias.is_contiguous() && fuses_bias(x, weight, out)) {
    detail::count_product(out.numel(), x.dim(-1));
    return dispatch<cpu::gemm_bias, cuda::gemm_bias>(x, weight, bias, out);
  }
  // The bias is copied to the output first; the product is then added to it.
  dispatch<cpu::copy, cuda::copy>(bias.alias(out.shape(), {0, bias.strides()[0]}, 0), out);
  gemm(x, transposed(weight), out, true);
}

Tensor transposed(const Tensor& t) {
  Shape shape = t.shape(), strides = t.strides();
  const int n = t.ndim();
  std::swap(shape[n - 1], shape[n - 2]);
  std::swap(strides[n - 1], strides[n - 2]);
  return t.alias(shape, strides, 0);
}

}  // namespace weft
