#include "weft/cuda/gemm_plan.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernel_timer.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/cuda/gemm_choices.h"
#include "weft/cuda/gemm_measure.h"
#include "weft/cuda/lt_plan.h"

namespace weft::cuda {
namespace {

constexpr std::size_t kMaxPlans = 4096;  // bounds a device's plans when shapes vary all the time

static_assert(std::has_unique_object_representations_v<Product>);

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

// The lock covers setting the pointers of a plan and launching it. Each device has its own, so that
// ranks in threads of one process do not launch one after another.
struct DevicePlans {
  std::mutex mutex;
  lt::Handle handle = nullptr;
  std::unordered_map<Product, std::unique_ptr<lt::Plan>, Hash, Equal> plans;
};
// Never destroyed, like the streams.
DevicePlans& plans_of(int device) {
  static DevicePlans* all = new DevicePlans[kMaxDevices];
  return all[device];
}

Device gpu_of(const Product& p) {
  return {Device::Kind::cuda, static_cast<std::int16_t>(p.device)};
}

// The stream's workspace. The caller holds the lock of the stream's device.
void* workspace_of(const Stream& stream) {
  static void* all[kMaxStreams] = {};
  void*& workspace = all[stream.id()];
  if (!workspace) workspace = detail::allocate_uncached(stream.device(), lt::kWorkspace);
  check_system(workspace != nullptr, "cuda: no memory for a workspace of {} bytes", lt::kWorkspace);
  return workspace;
}

// The plan, which is null until it is made.
std::unique_ptr<lt::Plan>& plan_in(DevicePlans& device, const Product& p) {
  const auto it = device.plans.find(p);
  if (it != device.plans.end()) return it->second;
  if (device.plans.size() == kMaxPlans) device.plans.clear();
  return device.plans[p];
}

std::unique_ptr<lt::Plan> make_plan(DevicePlans& device, const Product& p,
                                    const ProductData& data) {
  if (!device.handle) lt::ok(lt::library().create(&device.handle), "cublasLtCreate", p);
  GemmChoices& choices = GemmChoices::get();
  const bool given = choices.given();
  auto plan = std::make_unique<lt::Plan>(device.handle, p, data, given ? kGemmCandidates : 1);
  if (!given) return plan;
  const std::optional<GemmChoice> choice = choices.find(p);
  if (!choice) return plan;
  if (choice->algorithm == GemmChoice::kParts) {
    plan->forbid();
    return plan;
  }
  check(
      choice->algorithm < plan->offered(),
      "WEFT_GEMM_PLANS: {} names algorithm {} for a product of {} x {} x {} that must be below {}; "
      "measure again into another file",
      choices.file(), choice->algorithm, p.cols, p.rows, p.inner, plan->offered());
  plan->select(choice->algorithm);
  return plan;
}

}  // namespace

std::int32_t alignment_of(const void* p) {
  const auto bits = reinterpret_cast<std::uintptr_t>(p) | 256u;
  return static_cast<std::int32_t>(bits & (~bits + 1));
}

Product aligned(Product p, const ProductData& data) {
  p.align_a = alignment_of(data.a);
  p.align_b = alignment_of(data.b);
  p.align_d = alignment_of(data.d);
  if (data.bias) p.align_bias = alignment_of(data.bias);
  if (data.aux) p.align_aux = alignment_of(data.aux);
  return p;
}

bool fits_epilogue(const Product& p, const ProductData& data) {
  constexpr std::int32_t kVector = 16;
  return (!data.bias || p.align_bias >= kVector) && (!data.aux || p.align_aux >= kVector);
}

void run_product(const Product& p, const ProductData& data) {
  if (measures_products()) [[unlikely]]
    measure_once(p, data);
  check_system(try_product(p, data),
               "cuda: cuBLASLt has no algorithm for a product of {} x {} x {}, batch {}", p.cols,
               p.rows, p.inner, p.batch);
}

bool try_product(Product p, const ProductData& data) {
  const Stream stream = Stream::current(gpu_of(p));
  p = aligned(p, data);
  if (!fits_epilogue(p, data)) return false;
  DevicePlans& device = plans_of(p.device);
  const std::lock_guard lock(device.mutex);
  std::unique_ptr<lt::Plan>& plan = plan_in(device, p);
  if (!plan) plan = make_plan(device, p, data);
  if (!plan->possible()) return false;
  if (plan->run(device.handle, data, workspace_of(stream), stream.handle())) {
    weft::detail::count_launch();
    return true;
  }
  plan->forbid();  // the heuristic offers epilogues that a launch then refuses
  return false;
}

std::optional<GemmChoice> measure_product(Product p, const ProductData& data) {
  const Stream stream = Stream::current(gpu_of(p));
  p = aligned(p, data);
  DevicePlans& device = plans_of(p.device);
  const std::lock_guard lock(device.mutex);
  std::unique_ptr<lt::Plan>& plan = plan_in(device, p);
  if (plan) return {};
  void* const workspace = workspace_of(stream);
  plan = make_plan(device, p, data);
  std::optional<GemmChoice> best;
  for (int i = 0; i < plan->offered(); ++i) {
    plan->select(i);
    const auto run = [&] { return plan->run(device.handle, data, workspace, stream.handle()); };
    if (!run()) continue;  // also loads the kernel
    const double ms = shortest_ms(stream, run);
    if (!best || ms < best->ms) best = {i, ms};
  }
  if (best)
    plan->select(best->algorithm);
  else
    plan->forbid();
  return best;
}

bool is_new_product(const Product& p) {
  DevicePlans& device = plans_of(p.device);
  const std::lock_guard lock(device.mutex);
  const auto found = device.plans.find(p);
  return found == device.plans.end() || !found->second;
}

void forbid_product(Product p, const ProductData& data) {
  p = aligned(p, data);
  DevicePlans& device = plans_of(p.device);
  const std::lock_guard lock(device.mutex);
  std::unique_ptr<lt::Plan>& plan = plan_in(device, p);
  if (!plan) plan = make_plan(device, p, data);
  plan->forbid();
}

void forget_plans() {
  for (int i = 0; i < kMaxDevices; ++i) {
    const std::lock_guard lock(plans_of(i).mutex);
    plans_of(i).plans.clear();
  }
}

}  // namespace weft::cuda
