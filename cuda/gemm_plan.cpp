#include "weft/cuda/gemm_plan.h"

#include <cstring>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernel_timer.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft::cuda {
namespace {

constexpr std::size_t kWorkspace = 32 << 20;  // the size that the library wants on Hopper
constexpr std::size_t kMaxPlans = 4096;       // bounds the plans when shapes vary from step to step
constexpr lt::Status kInvalidValue = 7, kNotSupported = 15;

static_assert(std::has_unique_object_representations_v<Product>);

void ok(lt::Status status, const char* what, const Product& p) {
  check_system(status == 0,
               "cuda: {} failed with status {} for a product of {} x {} x {}, batch {}", what,
               status, p.cols, p.rows, p.inner, p.batch);
}

struct Plan {
  lt::Operation operation = nullptr;
  lt::Layout a = nullptr, b = nullptr, d = nullptr;
  lt::Algorithm algorithm{};
  bool possible = false;

  ~Plan() {
    const lt::Library& l = lt::library();
    if (operation) l.destroy_operation(operation);
    for (const lt::Layout layout : {a, b, d})
      if (layout) l.destroy_layout(layout);
  }
};

template <class T>
void set(lt::Operation operation, int attribute, const T& value, const Product& p) {
  ok(lt::library().set_operation(operation, attribute, &value, sizeof(value)),
     "cublasLtMatmulDescSetAttribute", p);
}

lt::Layout layout(const Product& p, int type, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                  std::int64_t step) {
  const lt::Library& l = lt::library();
  lt::Layout made = nullptr;
  ok(l.create_layout(&made, type, static_cast<std::uint64_t>(rows),
                     static_cast<std::uint64_t>(cols), ld),
     "cublasLtMatrixLayoutCreate", p);
  if (p.batch > 1) {
    const auto count = static_cast<std::int32_t>(p.batch);
    ok(l.set_layout(made, lt::kBatchCount, &count, sizeof(count)), "batch count", p);
    ok(l.set_layout(made, lt::kBatchStride, &step, sizeof(step)), "batch stride", p);
  }
  return made;
}

void choose_algorithm(lt::Handle handle, const Product& p, Plan& plan) {
  const lt::Library& l = lt::library();
  lt::Preference preference = nullptr;
  ok(l.create_preference(&preference), "cublasLtMatmulPreferenceCreate", p);
  const auto prefer = [&](int attribute, const auto& value) {
    ok(l.set_preference(preference, attribute, &value, sizeof(value)), "preference", p);
  };
  prefer(lt::kMaxWorkspace, kWorkspace);
  prefer(lt::kReductionSchemes, lt::kOrderedReductions);
  prefer(lt::kAlignmentA, static_cast<std::uint32_t>(p.align_a));
  prefer(lt::kAlignmentB, static_cast<std::uint32_t>(p.align_b));
  prefer(lt::kAlignmentC, static_cast<std::uint32_t>(p.align_d));
  prefer(lt::kAlignmentD, static_cast<std::uint32_t>(p.align_d));
  lt::Heuristic best{};
  int found = 0;
  const lt::Status status = l.heuristic(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                        preference, 1, &best, &found);
  l.destroy_preference(preference);
  plan.possible = status == 0 && found > 0;
  // Which of the two codes it returns for an unknown epilogue depends on its version.
  const bool unknown = p.epilogue != lt::Epilogue::none && status == kInvalidValue;
  if (status != kNotSupported && !unknown) ok(status, "cublasLtMatmulAlgoGetHeuristic", p);
  plan.algorithm = best.algorithm;
}

void set_pointers(const Plan& plan, const Product& p, const ProductData& data) {
  if (data.bias) set(plan.operation, lt::kBiasPointer, data.bias, p);
  if (data.aux) set(plan.operation, lt::kAuxPointer, data.aux, p);
}

void make_plan(lt::Handle handle, const Product& p, const ProductData& data, Plan& plan) {
  const int scale_type = p.compute == lt::kCompute64 ? lt::kF64 : lt::kF32;
  ok(lt::library().create_operation(&plan.operation, p.compute, scale_type),
     "cublasLtMatmulDescCreate", p);
  set(plan.operation, lt::kTransposeA, p.trans_a, p);
  set(plan.operation, lt::kTransposeB, p.trans_b, p);
  set(plan.operation, lt::kEpilogue, p.epilogue, p);
  if (p.ld_aux) set(plan.operation, lt::kAuxLd, p.ld_aux, p);
  plan.a = p.trans_a ? layout(p, p.type, p.inner, p.rows, p.lda, p.step_a)
                     : layout(p, p.type, p.rows, p.inner, p.lda, p.step_a);
  plan.b = p.trans_b ? layout(p, p.type, p.cols, p.inner, p.ldb, p.step_b)
                     : layout(p, p.type, p.inner, p.cols, p.ldb, p.step_b);
  plan.d = layout(p, p.result_type, p.rows, p.cols, p.ldd, p.step_d);
  set_pointers(plan, p, data);  // the choice depends on their alignment
  choose_algorithm(handle, p, plan);
}

struct Hash {
  std::size_t operator()(const Product& p) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&p), sizeof(p)});
  }
};
struct Equal {
  bool operator()(const Product& x, const Product& y) const {
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
};

// One lock covers setting the pointers of a plan and using it.
struct Plans {
  std::mutex mutex;
  std::unordered_map<Product, Plan, Hash, Equal> plans;
  lt::Handle handles[kMaxDevices] = {};
  void* workspaces[kMaxStreams] = {};
};
Plans& all() {
  static Plans* p = new Plans;
  return *p;
}

}  // namespace

std::int32_t alignment_of(const void* p) {
  const auto bits = reinterpret_cast<std::uintptr_t>(p) | 256u;
  return static_cast<std::int32_t>(bits & (~bits + 1));
}

void run_product(const Product& p, const ProductData& data) {
  check_system(try_product(p, data),
               "cuda: cuBLASLt has no algorithm for a product of {} x {} x {}, batch {}", p.cols,
               p.rows, p.inner, p.batch);
}

bool try_product(Product p, const ProductData& data) {
  const Stream stream = Stream::current({Device::Kind::cuda, static_cast<std::int16_t>(p.device)});
  p.align_a = alignment_of(data.a);
  p.align_b = alignment_of(data.b);
  p.align_d = alignment_of(data.d);
  if (data.bias) p.align_bias = alignment_of(data.bias);
  if (data.aux) p.align_aux = alignment_of(data.aux);
  Plans& cache = all();
  const lt::Library& l = lt::library();
  const std::lock_guard lock(cache.mutex);
  lt::Handle& handle = cache.handles[p.device];
  if (!handle) ok(l.create(&handle), "cublasLtCreate", p);
  void*& workspace = cache.workspaces[stream.id()];
  if (!workspace) workspace = rt::allocate(kWorkspace);
  if (!workspace) {  // the tensor cache may hold all free memory
    release_cached_memory({Device::Kind::cuda, static_cast<std::int16_t>(p.device)});
    workspace = rt::allocate(kWorkspace);
  }
  check_system(workspace != nullptr, "cuda: no memory for a workspace of {} bytes", kWorkspace);

  auto it = cache.plans.find(p);
  if (it == cache.plans.end()) {
    if (cache.plans.size() == kMaxPlans) cache.plans.clear();
    it = cache.plans.try_emplace(p).first;
    try {
      make_plan(handle, p, data, it->second);
    } catch (...) {
      cache.plans.erase(it);
      throw;
    }
  }
  const Plan& plan = it->second;
  if (!plan.possible) return false;
  set_pointers(plan, p, data);
  weft::detail::count_launch();
  const double one = 1, zero = 0;
  const float one32 = 1, zero32 = 0;
  const bool wide = p.compute == lt::kCompute64;
  const void* alpha = wide ? static_cast<const void*>(&one) : &one32;
  const void* beta = p.accumulate ? alpha : wide ? static_cast<const void*>(&zero) : &zero32;
  ok(l.matmul(handle, plan.operation, alpha, data.a, plan.a, data.b, plan.b, beta, data.d, plan.d,
              data.d, plan.d, &plan.algorithm, workspace, kWorkspace, stream.handle()),
     "cublasLtMatmul", p);
  return true;
}

}  // namespace weft::cuda
