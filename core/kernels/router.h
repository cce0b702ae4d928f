#pragma once
#include <cmath>
#include <cstdint>

#include "weft/core/kernels/elementwise_math.h"
#include "weft/core/tensor.h"

namespace weft {

/// The function that maps logits to the scores by which experts are compared.
enum class RouterScore : std::uint8_t { softmax, sigmoid, sqrt_softplus };

struct RouterOptions {
  std::int64_t topk = 2;  ///< experts per token, at most kRouterTopk
  RouterScore score = RouterScore::softmax;
  bool pre_softmax = false;  ///< softmax over all experts, without renormalising over the chosen
                             ///< ones
  bool normalise = true;     ///< sigmoid, sqrt_softplus: divide the chosen scores by their sum
  double scaling = 1;        ///< factor of every probability
  /// Splits the experts into this many equal groups of neighbours; a token uses group_topk of them.
  /// 0: no groups.
  std::int64_t groups = 0, group_topk = 0;
  std::int64_t group_best = 0;  ///< scores that add up to a group's; 0: topk / group_topk
};

constexpr std::int64_t router_group_best(const RouterOptions& o) {
  return o.group_best ? o.group_best : o.topk / o.group_topk;
}

inline constexpr std::int64_t kRouterTopk = 32;       // one slot per lane of a warp
inline constexpr std::int64_t kRouterExperts = 1024;  // 32 per lane

/// Added to the sum by which the chosen scores are divided.
inline constexpr double kRouterEps = 1e-20;

// Below this, sqrt(softplus(x)) equals exp(x / 2) in every digit, and exp(x) may underflow.
inline constexpr double kRouterLow = -20;

/// sigmoid(x) or sqrt(log(1 + exp(x))).
template <class R>
constexpr R router_score(RouterScore score, R x) {
  if (score == RouterScore::sigmoid) return sigmoid_of(x);
  if (x < R(kRouterLow)) return std::exp(x / 2);
  return std::sqrt((x > 0 ? x : R(0)) + std::log1p(std::exp(x > 0 ? -x : x)));
}
/// The derivative at x, where y is the value at x.
template <class R>
constexpr R router_slope(RouterScore score, R x, R y) {
  if (score == RouterScore::sigmoid) return y * sigmoid_of(-x);
  return x < R(kRouterLow) ? y / 2 : sigmoid_of(x) / (2 * y);
}
/// Whether the k chosen scores are divided by their sum.
constexpr bool router_normalises(const RouterOptions& o) {
  return o.score != RouterScore::softmax && o.topk > 1 && o.normalise;
}

/// probs and experts (T, k) from logits (T, E). bias (E, f32), if not null, is added to the
/// compared values; select (T, E), f64 or else f32, replaces the logits in the comparison. Tokens
/// whose padding (T, bool; may be null) is true get no expert: index -1, probability 0.
using RouteFwdKernel = void(const Tensor& logits, const Tensor& select, const Tensor& bias,
                            const Tensor& padding, const RouterOptions& options,
                            const Tensor& probs, const Tensor& experts);
/// Writes all of dlogits (T, E). A token without an expert has gradient 0.
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
