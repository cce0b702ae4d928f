#include "weft/autograd/router_loss.h"

#include "weft/autograd/cu_seqlens.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/router.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/router_loss.h"

namespace weft {
namespace {

void check_parts(const char* op, std::int64_t tokens, std::int64_t parts) {
  check(parts >= 1 && tokens % parts == 0,
        "{}: sequences must be at least 1 and divide the number of tokens {}, got {}", op, tokens,
        parts);
}

// cu_seqlens as the kernels read it, or null; axis 0 of `tokens` holds the tokens.
Tensor boundaries(const char* op, const Tensor& tokens, const char* name, const PackedTokens& p) {
  if (!p.cu_seqlens.defined()) return {};
  return detail::checked_cu_seqlens(op, p.cu_seqlens, name, tokens, p.checked, 0);
}

// If counts is null, the z-loss.
Tensor run(const char* op, const Tensor& input, const Tensor& counted, RouterScore score,
           double coefficient, const Tensor& padded, const Tensor& cu = {}) {
  const Tensor logits = contiguous(input),
               counts = counted.defined() ? contiguous(counted) : counted;
  const Tensor padding = padded.defined() ? contiguous(padded) : padded;
  const DType dtype = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor loss = Tensor::empty({}, dtype, logits.device());
  const Tensor share = empty_like(loss);
  const Tensor terms = Tensor::empty({logits.dim(0)}, dtype, logits.device());
  dispatch<cpu::router_loss_fwd, cuda::router_loss_fwd>(
      RouterLossIn{
          .logits = logits, .counts = counts, .cu_seqlens = cu, .padding = padding, .score = score},
      coefficient, RouterLossOut{.loss = loss, .share = share, .terms = terms});
  if (recording(logits))
    Tape::record(
        op, {&logits}, {&loss},
        [sx = save(logits, "logits"), sc = save(counts, "counts"), scu = save(cu, "cu_seqlens"),
         sp = save(padding, "padding"), ss = save(share, "share"), score](Backward& b) {
          b.once_differentiable();
          const Tensor& x = sx.get();
          Tensor dx = empty_like(x);
          dispatch<cpu::router_loss_bwd, cuda::router_loss_bwd>(
              RouterLossIn{.logits = x,
                           .counts = sc.get(),
                           .cu_seqlens = scu.get(),
                           .padding = sp.get(),
                           .score = score},
              ss.get(), contiguous(b.dy()), dx);
          b.add(0, std::move(dx));
        });
  return loss;
}

void check_loss(const char* op, const Tensor& logits, const Tensor& padding) {
  detail::check_router_logits(op, logits, padding);
  check(logits.dim(1) >= 1 && logits.dim(1) <= kRouterExperts,
        "{}: experts must be in [1, {}], got {}", op, kRouterExperts, logits.dim(1));
}

}  // namespace

Tensor count_experts(const Tensor& experts, std::int64_t count, std::int64_t sequences,
                     const PackedTokens& packed) {
  detail::check_tensor("count_experts", "experts", experts);
  check(experts.ndim() == 2, "count_experts: experts must have shape [tokens, k], got {}",
        experts.shape());
  check(experts.dtype() == DType::i64, "count_experts: experts must have dtype i64, got {}",
        experts.dtype());
  check(count >= 1 && count <= kRouterExperts, "count_experts: count must be in [1, {}], got {}",
        kRouterExperts, count);
  const Tensor cu = boundaries("count_experts", experts, "experts", packed);
  if (!cu.defined()) check_parts("count_experts", experts.dim(0), sequences);
  const Shape shape{cu.defined() ? cu.dim(0) - 1 : sequences, count};
  const Tensor counts = Tensor::zeros(shape, DType::i64, experts.device());
  dispatch<cpu::count_experts, cuda::count_experts>(contiguous(experts), cu, counts);
  return counts;
}

Tensor count_top_experts(const Tensor& logits, std::int64_t k, std::int64_t sequences,
                         const Tensor& padding, const PackedTokens& packed) {
  const RouterOptions o{.topk = k, .pre_softmax = true};
  detail::check_router_logits("count_top_experts", logits, padding);
  detail::check_router("count_top_experts", logits.dim(1), o, false);
  if (!packed.cu_seqlens.defined()) check_parts("count_top_experts", logits.dim(0), sequences);
  return count_experts(route(logits.detach(), {}, o, padding).experts, logits.dim(1), sequences,
                       packed);
}

Tensor balance_loss(const Tensor& logits, const Tensor& counts, RouterScore score,
                    double coefficient, const Tensor& padding, const PackedTokens& packed) {
  const char* op = "balance_loss";
  check_loss(op, logits, padding);
  detail::check_tensor(op, "counts", counts);
  check(counts.ndim() == 2 && counts.dim(1) == logits.dim(1),
        "{}: counts must have shape [sequences, {}] (experts of logits {}), got {}", op,
        logits.dim(1), logits.shape(), counts.shape());
  check(counts.dtype() == DType::i64, "{}: counts must have dtype i64, got {}", op, counts.dtype());
  check(counts.device() == logits.device(), "{}: counts must be on device {} like logits, got {}",
        op, logits.device(), counts.device());
  const Tensor cu = boundaries(op, logits, "logits", packed);
  if (!cu.defined()) check_parts(op, logits.dim(0), counts.dim(0));
  check(!cu.defined() || counts.dim(0) == cu.dim(0) - 1,
        "{}: counts must have a row for each of the {} packed sequences, got {}", op,
        cu.defined() ? cu.dim(0) - 1 : 0, counts.dim(0));
  return run(op, logits, counts, score, coefficient, padding, cu);
}

Tensor z_loss(const Tensor& logits, double coefficient, const Tensor& padding) {
  check_loss("z_loss", logits, padding);
  return run("z_loss", logits, {}, RouterScore::softmax, coefficient, padding);
}

}  // namespace weft
