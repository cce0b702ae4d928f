#pragma once
#include <cmath>
#include <cstdint>

#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/tensor.h"

namespace weft {

/// What a logit becomes before experts are compared.
enum class RouterScore : std::uint8_t { softmax, sigmoid, sqrt_softplus };

struct RouterOptions {
  std::int64_t topk = 2;  ///< experts a token, at most kRouterTopk
  RouterScore score = RouterScore::softmax;
  bool pre_softmax = false;  ///< softmax over all experts, not renormalised over the chosen ones
  double scaling = 1;        ///< every probability is multiplied by it
  /// Experts form this many equal groups of neighbours; a token uses group_topk of them. 0: none.
  std::int64_t groups = 0, group_topk = 0;
};

inline constexpr std::int64_t kRouterTopk = 32;       // a slot for each lane of a warp
inline constexpr std::int64_t kRouterExperts = 1024;  // 32 for each lane

/// Added to the sum that chosen scores are divided by.
inline constexpr double kRouterEps = 1e-20;

// Below this, sqrt(softplus(x)) is exp(x / 2) to every digit, and exp(x) may be too small to hold.
inline constexpr double kRouterLow = -20;

/// sigmoid(x) or sqrt(log(1 + exp(x))).
template <class R>
constexpr R router_score(RouterScore score, R x) {
  if (score == RouterScore::sigmoid) return sigmoid_of(x);
  if (x < R(kRouterLow)) return std::exp(x / 2);
  return std::sqrt((x > 0 ? x : R(0)) + std::log1p(std::exp(x > 0 ? -x : x)));
}
/// Its derivative at x, where it has the value y.
template <class R>
constexpr R router_slope(RouterScore score, R x, R y) {
  if (score == RouterScore::sigmoid) return y * sigmoid_of(-x);
  return x < R(kRouterLow) ? y / 2 : sigmoid_of(x) / (2 * y);
}
/// Are the k chosen scores divided by their sum?
constexpr bool router_normalises(const RouterOptions& o) {
  return o.score != RouterScore::softmax && o.topk > 1;
}

/// probs and experts (T, k) from logits (T, E). bias (E, f32), null or not, is added to what is
/// compared; select (T, E), f64 or else f32, takes the place of the logits in the comparison.
/// Tokens whose padding (T, bool; may be null) is true get no expert: -1, probability 0.
using RouteFwdKernel = void(const Tensor& logits, const Tensor& select, const Tensor& bias,
                            const Tensor& padding, const RouterOptions& options,
                            const Tensor& probs, const Tensor& experts);
/// All of dlogits (T, E). A token without expert has a gradient of 0.
using RouteBwdKernel = void(const Tensor& logits, const Tensor& experts, const Tensor& dprobs,
                            const RouterOptions& options, const Tensor& dlogits);

namespace cpu {
RouteFwdKernel route_fwd;
RouteBwdKernel route_bwd;
}  // namespace cpu
namespace cuda {
RouteFwdKernel route_fwd;
RouteBwdKernel route_bwd;
}  // namespace cuda

}  // namespace weft
