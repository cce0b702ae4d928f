#include "weft/cuda/lt_plan.h"

#include "weft/core/error.h"

namespace weft::cuda::lt {
namespace {

constexpr Status kInvalidValue = 7, kArchMismatch = 8, kNotSupported = 15;

template <class T>
void set(Operation operation, int attribute, const T& value, const Product& p) {
  ok(library().set_operation(operation, attribute, &value, sizeof(value)),
     "cublasLtMatmulDescSetAttribute", p);
}

void make_layout(Layout& made, const Product& p, int type, std::int64_t rows, std::int64_t cols,
                 std::int64_t ld, std::int64_t step) {
  const Library& l = library();
  ok(l.create_layout(&made, type, static_cast<std::uint64_t>(rows),
                     static_cast<std::uint64_t>(cols), ld),
     "cublasLtMatrixLayoutCreate", p);
  if (p.batch > 1) {
    const auto count = static_cast<std::int32_t>(p.batch);
    ok(l.set_layout(made, kBatchCount, &count, sizeof(count)), "batch count", p);
    ok(l.set_layout(made, kBatchStride, &step, sizeof(step)), "batch stride", p);
  }
}

// Which code the library returns for an epilogue that it lacks depends on its version, and on
// whether it notices while it plans or when it launches on a card that lacks it.
bool refuses(const Product& p, Status status) {
  return status == kNotSupported ||
         (p.epilogue != Epilogue::none && (status == kInvalidValue || status == kArchMismatch));
}

}  // namespace

void ok(Status status, const char* what, const Product& p) {
  check_system(status == 0,
               "cuda: {} failed with status {} for a product of {} x {} x {}, batch {}", what,
               status, p.cols, p.rows, p.inner, p.batch);
}

Plan::Plan(Handle handle, const Product& p, const ProductData& data, int wanted) : product_(p) {
  try {
    describe(data);
    ask_heuristic(handle, wanted);
  } catch (...) {
    release();
    throw;
  }
}

Plan::~Plan() { release(); }

void Plan::release() {
  const Library& l = library();
  if (operation_) l.destroy_operation(operation_);
  for (const Layout layout : {a_, b_, d_})
    if (layout) l.destroy_layout(layout);
}

void Plan::describe(const ProductData& data) {
  const Product& p = product_;
  const int scale_type = p.compute == kCompute64 ? kF64 : kF32;
  ok(library().create_operation(&operation_, p.compute, scale_type), "cublasLtMatmulDescCreate", p);
  set(operation_, kTransposeA, p.trans_a, p);
  set(operation_, kTransposeB, p.trans_b, p);
  set(operation_, kEpilogue, p.epilogue, p);
  if (p.ld_aux) set(operation_, kAuxLd, p.ld_aux, p);
  make_layout(a_, p, p.type, p.trans_a ? p.inner : p.rows, p.trans_a ? p.rows : p.inner, p.lda,
              p.step_a);
  make_layout(b_, p, p.type_b, p.trans_b ? p.cols : p.inner, p.trans_b ? p.inner : p.cols, p.ldb,
              p.step_b);
  make_layout(d_, p, p.result_type, p.rows, p.cols, p.ldd, p.step_d);
  set_pointers(data);  // the choice depends on their alignment
}

void Plan::ask_heuristic(Handle handle, int wanted) {
  const Library& l = library();
  const Product& p = product_;
  Preference preference = nullptr;
  ok(l.create_preference(&preference), "cublasLtMatmulPreferenceCreate", p);
  const auto prefer = [&](int attribute, const auto& value) {
    ok(l.set_preference(preference, attribute, &value, sizeof(value)), "preference", p);
  };
  prefer(kMaxWorkspace, kWorkspace);
  prefer(kReductionSchemes, kOrderedReductions);
  prefer(kAlignmentA, static_cast<std::uint32_t>(p.align_a));
  prefer(kAlignmentB, static_cast<std::uint32_t>(p.align_b));
  prefer(kAlignmentC, static_cast<std::uint32_t>(p.align_d));
  prefer(kAlignmentD, static_cast<std::uint32_t>(p.align_d));
  std::vector<Heuristic> best(static_cast<std::size_t>(wanted));
  int found = 0;
  const Status status =
      l.heuristic(handle, operation_, a_, b_, d_, d_, preference, wanted, best.data(), &found);
  l.destroy_preference(preference);
  if (!refuses(p, status)) ok(status, "cublasLtMatmulAlgoGetHeuristic", p);
  if (status != 0) return;
  for (int i = 0; i < found; ++i)
    if (const Heuristic& h = best[static_cast<std::size_t>(i)]; h.status == 0)
      algorithms_.push_back(h.algorithm);
}

void Plan::set_pointers(const ProductData& data) const {
  if (data.bias) set(operation_, kBiasPointer, data.bias, product_);
  if (data.aux) set(operation_, kAuxPointer, data.aux, product_);
  if (data.scale_a) set(operation_, kScaleA, data.scale_a, product_);
  if (data.scale_b) set(operation_, kScaleB, data.scale_b, product_);
}

bool Plan::run(Handle handle, const ProductData& data, void* workspace, void* stream) const {
  const Product& p = product_;
  set_pointers(data);
  const double one = 1, zero = 0;
  const float one32 = 1, zero32 = 0;
  const bool wide = p.compute == kCompute64;
  const void* alpha = wide ? static_cast<const void*>(&one) : &one32;
  const void* beta = p.accumulate ? alpha : wide ? static_cast<const void*>(&zero) : &zero32;
  const Status status =
      library().matmul(handle, operation_, alpha, data.a, a_, data.b, b_, beta, data.d, d_, data.d,
                       d_, &algorithms_[selected_], workspace, kWorkspace, stream);
  if (refuses(p, status)) return false;
  ok(status, "cublasLtMatmul", p);
  return true;
}

}  // namespace weft::cuda::lt
