// cuBLASLt without a GPU: the functions of cuda/lt.h, with the matrix product of the CPU. Decodes
// descriptors as the library does, so that a wrong layout gives wrong numbers here too.
#include "weft/cuda/lt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "weft/core/gemm.h"
#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/tensor.h"
#include "weft/cuda/emu/control.h"
#include "weft/cuda/emu/stream.h"

namespace weft::cuda::lt {

struct OperationTag {
  int compute = kCompute32;
  std::int32_t trans_a = 0, trans_b = 0;
  Epilogue epilogue = Epilogue::none;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t ld_aux = 0;
  const float *scale_a = nullptr, *scale_b = nullptr;
};
struct LayoutTag {
  int type;
  std::int64_t rows, cols, ld, step = 0;
  std::int32_t batch = 1;
};
struct PreferenceTag {
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

constexpr Status kOk = 0, kInvalid = 7, kNotSupported = 15;

DType dtype_of(int type) {
  switch (type) {
    case kF64:
      return DType::f64;
    case kF32:
      return DType::f32;
    case kF16:
      return DType::f16;
    case kE4m3:
      return DType::e4m3;
    case kE5m2:
      return DType::e5m2;
    default:
      return DType::bf16;
  }
}

bool is_fp8(int type) { return type == kE4m3 || type == kE5m2; }

int type_of(DType t) {
  return t == DType::f64 ? kF64 : t == DType::f32 ? kF32 : t == DType::f16 ? kF16 : kBf16;
}

// A matrix stored by column is the transpose of one stored by row: (cols, rows).
Tensor by_row(const LayoutTag& l, const void* data) {
  const DType t = dtype_of(l.type);
  const Tensor memory = Tensor::wrap(const_cast<void*>(data), {(l.cols - 1) * l.ld + l.rows}, t);
  return memory.alias({l.cols, l.rows}, {l.ld, 1}, 0);
}

const char* matrix(const LayoutTag& l, const void* data, int index) {
  return static_cast<const char*>(data) +
         index * l.step * static_cast<std::int64_t>(size_of(dtype_of(l.type)));
}

double get(int type, const void* p, std::int64_t i) {
  if (type == kF64) return static_cast<const double*>(p)[i];
  if (type == kF32) return static_cast<double>(static_cast<const float*>(p)[i]);
  if (type == kF16) return static_cast<double>(static_cast<const f16*>(p)[i]);
  return static_cast<double>(static_cast<const bf16*>(p)[i]);
}
void put(int type, void* p, std::int64_t i, double v) {
  if (type == kF64)
    static_cast<double*>(p)[i] = v;
  else if (type == kF32)
    static_cast<float*>(p)[i] = static_cast<float>(v);
  else if (type == kF16)
    static_cast<f16*>(p)[i] = f16(static_cast<float>(v));
  else
    static_cast<bf16*>(p)[i] = bf16(static_cast<float>(v));
}

bool gelu_of(Epilogue e) { return e == Epilogue::gelu_bias || e == Epilogue::gelu_aux_bias; }
bool dgelu_of(Epilogue e) { return e == Epilogue::dgelu || e == Epilogue::dgelu_bias_gradient; }
bool has_aux(Epilogue e) { return e == Epilogue::gelu_aux_bias || dgelu_of(e); }

// `sum` (cols, rows), f32 or f64, is the product; writes it to d after the epilogue.
void finish(const OperationTag& op, const LayoutTag& l, const Tensor& sum, bool accumulate,
            void* d) {
  std::vector<double> bias_gradient(static_cast<std::size_t>(l.rows), 0.0);
  const int sum_type = type_of(sum.dtype());
  for (std::int64_t c = 0; c < l.cols; ++c)
    for (std::int64_t r = 0; r < l.rows; ++r) {
      double v = get(sum_type, sum.raw(), c * l.rows + r);
      if (op.epilogue == Epilogue::bias || gelu_of(op.epilogue)) v += get(l.type, op.bias, r);
      if (op.epilogue == Epilogue::gelu_aux_bias) put(l.type, op.aux, c * op.ld_aux + r, v);
      if (gelu_of(op.epilogue)) v = apply<UnaryOp::gelu_tanh>(v);
      if (dgelu_of(op.epilogue))
        v = apply<BinaryOp::gelu_tanh_bwd>(get(l.type, op.aux, c * op.ld_aux + r), v);
      bias_gradient[static_cast<std::size_t>(r)] += v;
      if (accumulate) v += get(l.type, d, c * l.ld + r);
      put(l.type, d, c * l.ld + r, v);
    }
  if (op.epilogue == Epilogue::dgelu_bias_gradient)
    for (std::int64_t r = 0; r < l.rows; ++r)
      put(l.type, op.bias, r, bias_gradient[static_cast<std::size_t>(r)]);
}

// out[i] = the sum of row i of x: the sum of B over the inner axis, since a column of B is a row
// here.
void sum_columns(const Tensor& x, int type, void* out) {
  const int from = type_of(x.dtype());
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    double total = 0;
    for (std::int64_t j = 0; j < x.dim(1); ++j)
      total += get(from, x.raw(), i * x.strides()[0] + j * x.strides()[1]);
    put(type, out, i, total);
  }
}

// Without a scale a factor is 1.
void apply_scales(const OperationTag& op, const Tensor& sum) {
  const float a = op.scale_a ? *op.scale_a : 1, b = op.scale_b ? *op.scale_b : 1;
  for (std::int64_t i = 0; i < sum.numel(); ++i)
    if (sum.dtype() == DType::f64)
      sum.data<double>()[i] *= static_cast<double>(a) * static_cast<double>(b);
    else
      sum.data<float>()[i] = sum.data<float>()[i] * a * b;
}

Tensor in_f64(const Tensor& x) {
  const Tensor out = Tensor::empty(x.shape(), DType::f64);
  for (std::int64_t i = 0, at = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < x.dim(1); ++j)
      out.data<double>()[at++] =
          get(type_of(x.dtype()), x.raw(), i * x.strides()[0] + j * x.strides()[1]);
  return out;
}

// Rounded to nearest, ties to even, at 10 bits of mantissa.
Tensor in_tf32(const Tensor& x) {
  const Tensor out = Tensor::empty(x.shape(), DType::f32);
  float* to = out.data<float>();
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < x.dim(1); ++j) {
      auto bits =
          std::bit_cast<std::uint32_t>(x.data<float>()[i * x.strides()[0] + j * x.strides()[1]]);
      bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
      *to++ = std::bit_cast<float>(bits);
    }
  return out;
}

// FP8 operands: f32 products and sums of the numbers without their scales.
Tensor in_f32(const Tensor& x) {
  const Tensor out = Tensor::empty(x.shape(), DType::f32);
  float* to = out.data<float>();
  dispatch_all(x.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < x.dim(0); ++i)
      for (std::int64_t j = 0; j < x.dim(1); ++j)
        *to++ = static_cast<float>(x.data<T>()[i * x.strides()[0] + j * x.strides()[1]]);
  });
  return out;
}

// Odd algorithms sum in f64.
void multiply(const OperationTag& op, int algorithm, const LayoutTag& la, const void* a,
              const LayoutTag& lb, const void* b, bool accumulate, const LayoutTag& ld, void* d) {
  for (int i = 0; i < ld.batch; ++i) {
    Tensor left = by_row(lb, matrix(lb, b, i)), right = by_row(la, matrix(la, a, i));
    if (op.trans_b) left = transposed(left);
    if (op.trans_a) right = transposed(right);
    const bool fp8 = is_fp8(la.type);
    if (fp8) left = in_f32(left), right = in_f32(right);
    if (op.compute == kComputeTf32) left = in_tf32(left), right = in_tf32(right);
    void* const target = const_cast<char*>(matrix(ld, d, i));
    // The library may choose another kernel for each epilogue, with another summation order.
    const bool other = op.epilogue == Epilogue::gelu_bias || algorithm % 2 == 1;
    if (op.epilogue == Epilogue::bias_gradient_b) sum_columns(left, ld.type, op.bias);
    if (!other && !fp8 &&
        (op.epilogue == Epilogue::none || op.epilogue == Epilogue::bias_gradient_b)) {
      gemm(left, right, by_row(ld, target), accumulate);
      continue;
    }
    const Tensor sum =
        Tensor::empty({ld.cols, ld.rows}, other || ld.type == kF64 ? DType::f64 : DType::f32);
    gemm(other ? in_f64(left) : left, other ? in_f64(right) : right, sum);
    if (fp8) apply_scales(op, sum);
    finish(op, ld, sum, accumulate, target);
  }
}

Status create(Handle* h) {
  *h = reinterpret_cast<Handle>(std::uintptr_t{1});
  return kOk;
}
std::size_t version() { return 0; }
Status create_operation(Operation* op, int compute, int) {
  *op = new OperationTag{.compute = compute};
  return kOk;
}
Status destroy_operation(Operation op) {
  delete op;
  return kOk;
}
Status set_operation(Operation op, int attribute, const void* value, std::size_t size) {
  const auto take = [&](auto& field) {
    if (size != sizeof(field)) return kInvalid;
    std::memcpy(&field, value, size);
    return kOk;
  };
  switch (attribute) {
    case kTransposeA:
      return take(op->trans_a);
    case kTransposeB:
      return take(op->trans_b);
    case kEpilogue:
      return take(op->epilogue);
    case kBiasPointer:
      return take(op->bias);
    case kAuxPointer:
      return take(op->aux);
    case kAuxLd:
      return take(op->ld_aux);
    case kScaleA:
      return take(op->scale_a);
    case kScaleB:
      return take(op->scale_b);
    default:
      return kNotSupported;
  }
}
Status create_layout(Layout* l, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  *l = new LayoutTag{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), ld};
  return ld >= (*l)->rows ? kOk : kInvalid;
}
Status destroy_layout(Layout l) {
  delete l;
  return kOk;
}
Status set_layout(Layout l, int attribute, const void* value, std::size_t size) {
  if (attribute == kBatchCount && size == sizeof(l->batch))
    std::memcpy(&l->batch, value, size);
  else if (attribute == kBatchStride && size == sizeof(l->step))
    std::memcpy(&l->step, value, size);
  else
    return kInvalid;
  return kOk;
}
Status create_preference(Preference* p) {
  *p = new PreferenceTag;
  return kOk;
}
Status destroy_preference(Preference p) {
  delete p;
  return kOk;
}
Status set_preference(Preference p, int attribute, const void* value, std::size_t) {
  if (attribute >= kAlignmentA && attribute <= kAlignmentD)
    std::memcpy(&p->alignment[attribute - kAlignmentA], value, sizeof(std::uint32_t));
  return kOk;
}

// The library's documented limits of an epilogue: no f64, batches need their own steps, and the
// columns of an auxiliary matrix start at multiples of 8 elements and of 16 bytes.
bool allowed(const OperationTag& op, const LayoutTag& d) {
  if (op.epilogue == Epilogue::none) return true;
  if (d.type == kF64 || d.batch > 1) return false;
  if (op.epilogue != Epilogue::dgelu && !op.bias) return false;
  if (!has_aux(op.epilogue)) return true;
  return op.aux && op.ld_aux % 8 == 0 && op.ld_aux >= d.rows &&
         reinterpret_cast<std::uintptr_t>(op.aux) % 16 == 0;
}

// FP8: rows times rows (A transposed), f32 or bf16 out, and multiples of 16 everywhere.
bool types_fit(const OperationTag& op, const LayoutTag& a, const LayoutTag& b, const LayoutTag& d) {
  if (!is_fp8(a.type)) return a.type == b.type;
  const std::int64_t sizes[] = {a.rows, a.cols, a.ld, b.rows, b.cols, b.ld, d.ld};
  return is_fp8(b.type) && !(a.type == kE5m2 && b.type == kE5m2) && op.trans_a && !op.trans_b &&
         (d.type == kF32 || d.type == kBf16) &&
         std::all_of(std::begin(sizes), std::end(sizes),
                     [](std::int64_t n) { return n % 16 == 0; });
}

constexpr int kNumber = 2;  // where an Algorithm keeps its number, after the alignments

// Checks the rules of the product as the library does, and stores the promised alignments so that
// matmul() can verify them.
Status heuristic(Handle, Operation op, Layout a, Layout b, Layout c, Layout d, Preference p,
                 int wanted, Heuristic* results, int* found) {
  const std::int64_t rows = op->trans_a ? a->cols : a->rows,
                     inner = op->trans_a ? a->rows : a->cols;
  const std::int64_t cols = op->trans_b ? b->rows : b->cols;
  const bool fits = wanted > 0 && c == d && d->rows == rows && d->cols == cols &&
                    (op->trans_b ? b->cols : b->rows) == inner && types_fit(*op, *a, *b, *d) &&
                    a->batch == d->batch && b->batch == d->batch;
  if (!fits) return kInvalid;
  *found = allowed(*op, *d) ? std::min(wanted, emu::control.algorithms) : 0;
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    std::memcpy(results[i].algorithm.data, p->alignment, sizeof(p->alignment));
    results[i].algorithm.data[kNumber] = static_cast<std::uint64_t>(i);
  }
  return kOk;
}

Status matmul(Handle, Operation op, const void*, const void* a, Layout la, const void* b, Layout lb,
              const void* beta, const void*, Layout, void* d, Layout ld, const Algorithm* algorithm,
              void*, std::size_t, void* stream) {
  if (emu::control.at_matmul)
    if (const Status s = emu::control.at_matmul(static_cast<std::uint32_t>(op->epilogue))) return s;
  std::uint32_t alignment[4];
  std::memcpy(alignment, algorithm->data, sizeof(alignment));
  const auto aligned = [](const void* p, std::uint32_t to) {
    return reinterpret_cast<std::uintptr_t>(p) % to == 0;
  };
  if (!aligned(a, alignment[0]) || !aligned(b, alignment[1]) || !aligned(d, alignment[3]))
    return kInvalid;
  const bool accumulate = ld->type == kF64 ? *static_cast<const double*>(beta) != 0
                                           : *static_cast<const float*>(beta) != 0;
  const auto number = static_cast<int>(algorithm->data[kNumber]);
  const double ms = emu::control.product_ms[number] +
                    (op->epilogue == Epilogue::none ? 0 : emu::control.epilogue_ms);
  emu::submit(stream, [=, op = *op, la = *la, lb = *lb, ld = *ld] {
    multiply(op, number, la, a, lb, b, accumulate, ld, d);
    emu::pass_time(ms);
  });
  return kOk;
}

}  // namespace

const Library& library() {
  static const Library emulated = {create,
                                   version,
                                   create_operation,
                                   destroy_operation,
                                   set_operation,
                                   create_layout,
                                   destroy_layout,
                                   set_layout,
                                   create_preference,
                                   destroy_preference,
                                   set_preference,
                                   heuristic,
                                   matmul};
  return emulated;
}

}  // namespace weft::cuda::lt
