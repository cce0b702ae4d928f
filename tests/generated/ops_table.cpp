#include "weft/tests/generated/ops_table.h"

#include <limits>

#include "weft/autograd/activation.h"
#include "weft/autograd/attention.h"
#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/expert_capacity.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/logic.h"
#include "weft/autograd/losses.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/mlp.h"
#include "weft/autograd/mse.h"
#include "weft/autograd/recurrent.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/rope.h"
#include "weft/autograd/router.h"
#include "weft/autograd/router_gate.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/router_noise.h"
#include "weft/autograd/scaled_activation.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/sort.h"
#include "weft/autograd/swiglu.h"
#include "weft/autograd/token_permute.h"
#include "weft/autograd/view.h"

namespace weft::generated {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr RandomKey kKey{5, 7, 3, nullptr};

TensorList list(const ValuesIndices& r) { return {r.values, r.indices}; }
TensorList list(const LayerNormResidual& r) { return {r.y, r.sum}; }
TensorList list(const RmsNormResidual& r) { return {r.y, r.sum}; }
TensorList list(const GatedDelta& r) { return {r.y, r.state}; }
TensorList list(const GruOutput& r) { return {r.y, r.state}; }
TensorList list(const LstmOutput& r) { return {r.y, r.state.h, r.state.c}; }
TensorList list(const Routing& r) { return {r.probs, r.experts}; }
TensorList list(const RopeTables& r) { return {r.cos, r.sin}; }
TensorList list(const ExpertRows& r) { return {r.row_of, r.slot_of, r.rows, r.counts}; }

// Uneven groups of n rows in total; one of three or more groups is empty.
Tensor groups(std::int64_t n, std::int64_t count) {
  Tensor rows = Tensor::zeros({count}, DType::i64);
  for (std::int64_t i = 0; i < n && count > 0; ++i)
    ++rows.data<std::int64_t>()[i % count == 1 ? 0 : i % count];
  return rows;
}
// Sequences of 2, 0 and the remaining tokens.
Tensor sequences(std::int64_t tokens) {
  const double cut = static_cast<double>(tokens < 2 ? tokens : 2);
  return Tensor::of({0, cut, cut, static_cast<double>(tokens)}, {4}, DType::i32);
}
CrossEntropyOptions and_hits(const Tensor& targets) {
  CrossEntropyOptions o;
  o.reduction = Reduction::sum;
  o.hits = Tensor::empty(targets.shape(), DType::boolean, targets.device());
  return o;
}
TensorList with_hits(const Tensor& logits, const Tensor& targets) {
  const CrossEntropyOptions o = and_hits(targets);
  return {cross_entropy(logits, targets, o), o.hits};
}
CrossEntropyOptions loss(Reduction reduction, double smoothing = 0) {
  CrossEntropyOptions o;
  o.reduction = reduction;
  o.label_smoothing = smoothing;
  o.ignore_index = 1;
  return o;
}
// The head of one rank that has all classes.
Tensor whole_part(const TensorList& in, Reduction reduction) {
  detail::ClassPart part;
  part.range = {0, in[1].dim(0)};
  part.most = in[1].dim(0);
  part.gather = [](const Tensor& own) { return own.view({1, own.dim(0), 4}); };
  return detail::linear_cross_entropy(in[0], in[1], in[2], loss(reduction, 0.1), part);
}
CausalConv1dOptions conv_state(const Tensor& state) {
  CausalConv1dOptions o;
  o.state = state;
  return o;
}
CausalConv1dOptions conv_packed(const Tensor& x) {
  CausalConv1dOptions o;
  o.silu = true;
  o.cu_seqlens = sequences(x.dim(1));
  return o;
}
AttentionOptions packed_rows(const Tensor& q) {
  AttentionOptions o;
  o.causal = true;
  o.cu_seqlens = sequences(q.dim(1));
  return o;
}
GatedDeltaOptions from_state(const Tensor& state) {
  GatedDeltaOptions o;
  o.state = state;
  return o;
}
GruOptions gru_packed(const Tensor& gates, const Tensor& state) {
  GruOptions o;
  o.state = state;
  o.cu_seqlens = sequences(gates.dim(1));
  return o;
}
LstmOptions lstm_from(const Tensor& h, const Tensor& c) {
  LstmOptions o;
  o.state = {h, c};
  return o;
}
RouterOptions router(std::int64_t topk, RouterScore score, bool pre = false) {
  RouterOptions o;
  o.topk = topk;
  o.score = score;
  o.pre_softmax = pre;
  return o;
}
RouterOptions grouped_router() {
  RouterOptions o = router(2, RouterScore::sigmoid);
  o.groups = 2;
  o.group_topk = 1;
  o.scaling = 2.5;
  return o;
}
// Every way to split axis 1.
TensorList rejoined(const Tensor& x) {
  const std::int64_t n = x.dim(1), first = n / 2;
  TensorList parts = split(x, {first, n - first}, 1);
  for (const Tensor& part : split(x, 2, 1)) parts.push_back(part);
  return parts;
}

#define CALL(...) [](const TensorList& in) -> TensorList { return __VA_ARGS__; }
#define ONE(...) [](const TensorList& in) -> TensorList { return {__VA_ARGS__}; }

const OpLine kTable[] = {
    // Elementwise.
    {"add", "BMK MK", ONE(add(in[0], in[1])), "n"},
    {"add", "MK", ONE(add(in[0], 3), 2.0 + in[0]), "n"},
    {"sub", "BMK B=1K", ONE(sub(in[0], in[1])), "n"},
    {"sub", "MK", ONE(sub(in[0], 3), sub(2, in[0])), "n"},
    {"mul", "BMK M=1", ONE(mul(in[0], in[1])), "nc"},
    {"mul", "MK", ONE(mul(in[0], 3)), "nc"},
    {"minimum", "BMK MK", ONE(minimum(in[0], in[1])), "n"},
    {"minimum", "MK", ONE(minimum(in[0], 3)), "n"},
    {"maximum", "BMK MK", ONE(maximum(in[0], in[1])), "n"},
    {"maximum", "MK", ONE(maximum(in[0], 1)), "n"},
    {"div", "BMK MK:p", ONE(div(in[0], in[1])), "c"},
    {"div", "MK:p", ONE(div(in[0], 3), div(2, in[0])), "c"},
    {"floor_divide", "BMK MK:p", ONE(floor_divide(in[0], in[1])), "n"},
    {"floor_divide", "MK", ONE(floor_divide(in[0], 3)), "n"},
    {"remainder", "BMK MK:p", ONE(remainder(in[0], in[1])), "n"},
    {"remainder", "MK", ONE(remainder(in[0], 3)), "n"},
    {"pow", "BMK:p MK", ONE(pow(in[0], in[1])), "c"},
    {"pow", "MK", ONE(pow(in[0], 3), pow(in[0], 0)), "c"},
    {"neg", "BMK", ONE(neg(in[0])), "n"},
    {"abs", "BMK", ONE(abs(in[0])), "n"},
    {"square", "BMK", ONE(square(in[0])), "n"},
    {"clamp", "BMK", ONE(clamp(in[0], 0, 1)), "n"},
    {"clamp_min", "BMK", ONE(clamp_min(in[0], 1)), "n"},
    {"clamp_max", "BMK", ONE(clamp_max(in[0], 1)), "n"},
    {"exp", "BMK", ONE(exp(in[0]))},
    {"log", "BMK:p", ONE(log(in[0]))},
    {"sqrt", "BMK:p", ONE(sqrt(in[0]))},
    {"rsqrt", "BMK:p", ONE(rsqrt(in[0]))},
    {"tanh", "BMK", ONE(tanh(in[0]))},
    {"sigmoid", "BMK", ONE(sigmoid(in[0]))},
    {"relu", "BMK", ONE(relu(in[0])), "n"},
    {"gelu", "BMK", ONE(gelu(in[0]), gelu(in[0], Gelu::erf)), "s"},
    {"silu", "BMK", ONE(silu(in[0])), "s"},
    {"softplus", "BMK", ONE(softplus(in[0]))},
    {"sin", "BMK", ONE(sin(in[0]))},
    {"cos", "BMK", ONE(cos(in[0]))},
    {"log1p", "BMK:p", ONE(log1p(in[0]))},
    {"expm1", "BMK", ONE(expm1(in[0]))},
    {"erf", "BMK", ONE(erf(in[0]))},
    {"floor", "BMK", ONE(floor(in[0])), "n"},
    {"ceil", "BMK", ONE(ceil(in[0])), "n"},
    {"round", "BMK", ONE(round(in[0])), "n"},
    {"sign", "BMK", ONE(sign(in[0])), "n"},
    {"leaky_relu", "BMK", ONE(leaky_relu(in[0], 0.25))},
    {"elu", "BMK", ONE(elu(in[0], 0.5))},
    {"isnan", "BMK", ONE(isnan(in[0])), "a"},
    {"isinf", "BMK", ONE(isinf(in[0])), "a"},
    {"isfinite", "BMK", ONE(isfinite(in[0])), "a"},
    {"logical_and", "BMK MK", ONE(logical_and(in[0], in[1])), "a"},
    {"logical_or", "BMK MK", ONE(logical_or(in[0], in[1])), "a"},
    {"logical_not", "BMK", ONE(logical_not(in[0])), "a"},
    {"where", "MK:b BMK K", ONE(where(in[0], in[1], in[2])), "a"},
    {"where", "MK:b BMK", ONE(where(in[0], in[1], 2), where(in[0], 2, in[1])), "n"},
    {"masked_fill", "BMK MK:b", ONE(masked_fill(in[0], in[1], 3)), "n"},
    {"eq", "BMK MK", ONE(eq(in[0], in[1])), "a"},
    {"ne", "BMK MK", ONE(ne(in[0], in[1])), "a"},
    {"lt", "BMK MK", ONE(lt(in[0], in[1])), "a"},
    {"le", "BMK MK", ONE(le(in[0], in[1])), "a"},
    {"gt", "BMK MK", ONE(gt(in[0], in[1])), "a"},
    {"ge", "BMK MK", ONE(ge(in[0], in[1])), "a"},
    {"eq", "BMK", ONE(eq(in[0], 1)), "n"},
    {"ne", "BMK", ONE(ne(in[0], 1)), "n"},
    {"lt", "BMK", ONE(lt(in[0], 1)), "n"},
    {"le", "BMK", ONE(le(in[0], 1)), "n"},
    {"gt", "BMK", ONE(gt(in[0], 1)), "n"},
    {"ge", "BMK", ONE(ge(in[0], 1)), "n"},
    {"dropout", "BMK", ONE(dropout(in[0], 0.3, kKey), dropout(in[0], 0.3, kKey, false))},
    {"jitter", "BMK", ONE(jitter(in[0], 0.2, kKey))},
    {"random_logits", "TE E", ONE(random_logits(in[0], kKey, in[1]))},
    // Reductions.
    {"sum", "BMK", ONE(sum(in[0]), sum(in[0], {0}), sum(in[0], {1}), sum(in[0], {2})), "a"},
    {"sum", "BMK", ONE(sum(in[0], {0, 2}), sum(in[0], {1, 2}, true)), "a"},
    {"any", "BMK", ONE(any(in[0]), any(in[0], 0), any(in[0], 2, true)), "a"},
    {"all", "BMK", ONE(all(in[0]), all(in[0], 0), all(in[0], 2, true)), "a"},
    {"mean", "BMK", ONE(mean(in[0]), mean(in[0], {0}), mean(in[0], {-1}, true))},
    {"sum_to", "BMK M=1", ONE(sum_to(in[0], in[1].shape()))},
    {"max", "BMK", ONE(max(in[0])), "n"},
    {"max", "BMK", ONE(max(in[0], 0), max(in[0], 1), max(in[0], 2, true)), "n"},
    {"min", "BMK", ONE(min(in[0])), "n"},
    {"min", "BMK", ONE(min(in[0], 0), min(in[0], 1), min(in[0], 2, true)), "n"},
    {"argmax", "BMK", ONE(argmax(in[0], 0), argmax(in[0], 1), argmax(in[0], 2, true)), "n"},
    {"argmin", "BMK", ONE(argmin(in[0], 0), argmin(in[0], 1), argmin(in[0], 2, true)), "n"},
    {"var", "BMK", ONE(var(in[0]), var(in[0], {0}, 0), var(in[0], {1, 2})), "c"},
    {"stddev", "BMK", ONE(stddev(in[0]), stddev(in[0], {0}, 0), stddev(in[0], {1, 2})), "cds"},
    {"prod", "BMK", ONE(prod(in[0], 0), prod(in[0], 1), prod(in[0], 2, true)), "n"},
    {"prod", "MK:p", ONE(prod(in[0]))},
    {"norm", "BMK", ONE(norm(in[0]), norm(in[0], {1}), norm(in[0], {0, 2}, true))},
    {"norm", "BMK", ONE(norm(in[0], 1), norm(in[0], 3))},
    {"norm", "BMK", ONE(norm(in[0], kInfinity))},
    {"norm", "BMK", ONE(norm(in[0], {1}, false, 1), norm(in[0], {0, 2}, true, 3))},
    {"norm", "BMK", ONE(norm(in[0], {0, 2}, true, kInfinity))},
    {"logsumexp", "BMK", ONE(logsumexp(in[0], 0), logsumexp(in[0], 1), logsumexp(in[0], 2, true))},
    {"cumsum", "BMK", ONE(cumsum(in[0], 0), cumsum(in[0], 1), cumsum(in[0], 2)), "a"},
    {"softmax", "BMK", ONE(softmax(in[0]), softmax(in[0], 0), softmax(in[0], 1)), "c"},
    {"log_softmax", "BMK", ONE(log_softmax(in[0]), log_softmax(in[0], 0), log_softmax(in[0], 1)),
     "c"},
    // Products.
    {"matmul", "MK KN", ONE(matmul(in[0], in[1])), "~"},
    {"matmul", "BMK KN", ONE(matmul(in[0], in[1])), "~"},
    {"matmul", "BMK BKN", ONE(matmul(in[0], in[1])), "~"},
    {"matmul", "B=1MK AKN", ONE(matmul(in[0], in[1])), "~"},
    {"matmul", "K KN", ONE(matmul(in[0], in[1])), "~"},
    {"matmul", "BMK K", ONE(matmul(in[0], in[1])), "~"},
    {"dot", "K K", ONE(dot(in[0], in[1])), "~"},
    {"outer", "M K", ONE(outer(in[0], in[1])), "n"},
    {"linear", "BMK NK N", ONE(linear(in[0], in[1], in[2])), "~"},
    {"linear", "MK NK", ONE(linear(in[0], in[1])), "~"},
    {"mlp", "BMK FK F NF N", ONE(mlp(in[0], in[1], in[2], in[3], in[4])), "~scl"},
    {"mlp", "MK 2FK NF",
     ONE(mlp(in[0], in[1], {}, in[2], {}, {.activation = Activation::swiglu, .recompute = true})),
     "~scl"},
    {"mlp", "MK FK NF", ONE(mlp(in[0], in[1], {}, in[2], {}, {.activation = Activation::relu2})),
     "~scl"},
    {"grouped_linear", "NI EOI EO N",
     ONE(grouped_linear(in[0], in[1], in[2], groups(in[0].dim(0), in[1].dim(0)), in[3])), "~"},
    {"grouped_linear", "NI EOI EO",
     ONE(grouped_linear(in[0], in[1], in[2], groups(in[0].dim(0), in[1].dim(0)))), "~"},
    {"grouped_linear", "NI EOI",
     ONE(grouped_linear(in[0], in[1], {}, groups(in[0].dim(0), in[1].dim(0)))), "~"},
    {"router_logits", "TH EH E", ONE(router_logits(in[0], in[1], in[2])), "~"},
    // Norms, gates and losses.
    {"layer_norm", "BMC C C", ONE(layer_norm(in[0], in[1], in[2], 0.1)), "c"},
    {"layer_norm", "MC", ONE(layer_norm(in[0], {}, {}, 0.1)), "c"},
    {"layer_norm_residual", "BMC BMC C C",
     CALL(list(layer_norm_residual(in[0], in[1], in[2], in[3], 0.1))), "c"},
    {"rms_norm", "BMC C", ONE(rms_norm(in[0], in[1], 0.1), rms_norm(in[0], in[1], 0.1, true)), "c"},
    {"rms_norm", "MC", ONE(rms_norm(in[0], {}, 0.1)), "c"},
    {"rms_norm_residual", "BMC BMC C", CALL(list(rms_norm_residual(in[0], in[1], in[2], 0.1))),
     "c"},
    {"swiglu", "BMF BMF", ONE(swiglu(in[0], in[1])), "s"},
    {"swiglu", "BM2F", ONE(swiglu(in[0])), "s"},
    {"scaled_swiglu", "N2F N:w", ONE(scaled_swiglu(in[0], in[1])), "s"},
    {"scaled_gelu", "NF N:w", ONE(scaled_gelu(in[0], in[1]), scaled_gelu(in[0], in[1], Gelu::erf)),
     "s"},
    {"activation", "BM2F",
     ONE(activation(in[0], Activation::swiglu), activation(in[0], Activation::geglu)), "s"},
    {"activation", "BMF",
     ONE(activation(in[0], Activation::gelu_tanh), activation(in[0], Activation::gelu_erf),
         activation(in[0], Activation::relu2), activation(in[0], Activation::relu),
         activation(in[0], Activation::silu)),
     "s"},
    {"scaled_activation", "N2F N:w",
     ONE(scaled_activation(in[0], in[1], Activation::swiglu),
         scaled_activation(in[0], in[1], Activation::geglu)),
     "s"},
    {"scaled_activation", "NF N:w",
     ONE(scaled_activation(in[0], in[1], Activation::gelu_tanh),
         scaled_activation(in[0], in[1], Activation::relu2),
         scaled_activation(in[0], in[1], Activation::silu)),
     "s"},
    {"mse_loss", "MK MK", ONE(mse_loss(in[0], in[1]), mse_loss(in[0], in[1], Reduction::none))},
    {"l1_loss", "MK MK", ONE(l1_loss(in[0], in[1]), l1_loss(in[0], in[1], Reduction::none))},
    {"huber_loss", "MK MK",
     ONE(huber_loss(in[0], in[1]), huber_loss(in[0], in[1], 0.5, Reduction::none))},
    {"binary_cross_entropy_with_logits", "MK MK:p",
     ONE(binary_cross_entropy_with_logits(in[0], in[1], Reduction::none)), "c"},
    {"kl_div", "MK MK:p", ONE(kl_div(in[0], in[1]), kl_div(in[0], in[1], Reduction::none)), "c"},
    {"nll_loss", "BMV BM:jV",
     ONE(nll_loss(in[0], in[1]), nll_loss(in[0], in[1], Reduction::none, 1))},
    {"cross_entropy", "MV M:iV", ONE(cross_entropy(in[0], in[1]))},
    {"cross_entropy", "BMV BM:jV", ONE(cross_entropy(in[0], in[1], loss(Reduction::none, 0.1)))},
    {"cross_entropy", "MV M:iV", CALL(with_hits(in[0], in[1]))},
    {"count_valid", "BM:i4", ONE(count_valid(in[0], 2))},
    {"linear_cross_entropy", "MC VC M:iV",
     ONE(linear_cross_entropy(in[0], in[1], in[2], loss(Reduction::mean, 0.1))), "~c"},
    {"linear_cross_entropy", "MC VC M:iV",
     ONE(linear_cross_entropy(in[0], in[1], in[2], loss(Reduction::none))), "~c"},
    {"linear_cross_entropy", "MC VC M:iV",
     ONE(linear_cross_entropy(in[0], in[1], in[2], and_hits(in[2]))), "~c"},
    {"linear_cross_entropy", "MC VC M:iV",
     ONE(whole_part(in, Reduction::mean), whole_part(in, Reduction::none)), "~c"},
    // Attention and related ops.
    {"attention", "BTHD BSHD BSHV", ONE(attention(in[0], in[1], in[2])), "csl"},
    {"attention", "BT2HD BTHD BTHV",
     ONE(attention(in[0], in[1], in[2],
                   {.causal = true, .window = 2, .dropout = 0.2, .key = kKey})),
     "cslg"},
    {"attention", "=1T2HD =1THD =1THV", ONE(attention(in[0], in[1], in[2], packed_rows(in[0]))),
     "cslg"},
    {"attention_packed", "BT4HD",
     ONE(attention_packed(in[0], in[0].dim(2) / 2, in[0].dim(2) / 4, {.causal = true})), "cslg"},
    {"causal_conv1d", "BTC C=3", ONE(causal_conv1d(in[0], in[1]))},
    {"causal_conv1d", "BTC C=3 B=2C", ONE(causal_conv1d(in[0], in[1], conv_state(in[2])))},
    {"causal_conv1d", "=1TC C=4", ONE(causal_conv1d(in[0], in[1], conv_packed(in[0]))), "s"},
    {"gated_delta", "BTHD BTHD BT2HV BT2H:n BT2H:u",
     CALL(list(gated_delta(in[0], in[1], in[2], in[3], in[4]))), "sl"},
    {"gated_delta", "BTHD BTHD BTHV BTH:n BTH:u BHDV:w",
     CALL(list(gated_delta(in[0], in[1], in[2], in[3], in[4], from_state(in[5])))), "sl"},
    {"gated_delta_recurrent", "BTHD BTHD BTHV BTH:n BTH:u",
     CALL(list(gated_delta_recurrent(in[0], in[1], in[2], in[3], in[4]))), "~sl"},
    {"gru", "BT3H 3HH 3H BH:w",
     CALL(list(gru(in[0], in[1], in[2], {.state = in[3], .cu_seqlens = {}}))), "csl"},
    {"gru", "=1T3H 3HH 3H =3H:w", CALL(list(gru(in[0], in[1], in[2], gru_packed(in[0], in[3])))),
     "csl"},
    {"lstm", "BT4H 4HH", CALL(list(lstm(in[0], in[1], {}))), "csl"},
    {"lstm", "BT4H 4HH 4H BH:w BH:w",
     CALL(list(lstm(in[0], in[1], in[2], lstm_from(in[3], in[4])))), "csl"},
    {"rope_tables", "MK", CALL(list(rope_tables(in[0].dim(0), 6)))},
    {"rope", "BTH2D SD:w SD:w", ONE(rope(in[0], in[1], in[2], 1))},
    {"rope", "BTH2D SD:w SD:w BT:jS", ONE(rope(in[0], in[1], in[2], in[3]))},
    {"rope_packed", "BT3H2D SD:w SD:w",
     ONE(rope_packed(in[0], in[0].dim(2) / 3 * 2, in[1], in[2]))},
    {"rope_packed", "BT3H2D SD:w SD:w BT:jS",
     ONE(rope_packed(in[0], in[0].dim(2) / 3 * 2, in[1], in[2], in[3]))},
    // Indexing and order.
    {"index_select", "BDK N:iD", ONE(index_select(in[0], 1, in[1])), "a"},
    {"index_select", "DK N:jD", ONE(index_select(in[0], 0, in[1])), "a"},
    {"gather", "BDK BNK:iD", ONE(gather(in[0], 1, in[1])), "a"},
    {"scatter_add", "BDK BNK:iD BNK", ONE(scatter_add(in[0], 1, in[1], in[2])), "n"},
    {"scatter", "BDK BNK:iD BNK", ONE(scatter(in[0], 1, in[1], in[2])), "a"},
    {"index_add", "BDK N:iD BNK", ONE(index_add(in[0], 1, in[1], in[2])), "n"},
    {"embedding", "VC MN:iV", ONE(embedding(in[0], in[1]))},
    {"one_hot", "MN:i5", ONE(one_hot(in[0], 5), one_hot(in[0], 5, DType::i64))},
    {"tril", "BMN", ONE(tril(in[0]), tril(in[0], 1), tril(in[0], -1)), "a"},
    {"triu", "BMN", ONE(triu(in[0]), triu(in[0], 1), triu(in[0], -1)), "a"},
    {"topk", "BMK", CALL(list(topk(in[0], 2))), "n"},
    {"topk", "BMK", CALL(list(topk(in[0], 1, 1))), "n"},
    {"sort", "BMK", CALL(list(sort(in[0]))), "n"},
    {"sort", "BMK", CALL(list(sort(in[0], 0, true))), "n"},
    {"argsort", "BMK", ONE(argsort(in[0]), argsort(in[0], 0, true)), "n"},
    // Experts.
    {"route", "TE", CALL(list(route(in[0], {}, router(2, RouterScore::softmax)))), "c"},
    {"route", "TE T:b", CALL(list(route(in[0], {}, router(1, RouterScore::softmax, true), in[1]))),
     "c"},
    {"route", "TE E:h", CALL(list(route(in[0], in[1], grouped_router()))), "c"},
    {"route", "TE", CALL(list(route(in[0], {}, router(3, RouterScore::sqrt_softplus)))), "c"},
    {"route_sinkhorn", "=5E =5:b", CALL(list(route_sinkhorn(in[0], 2, true, in[1]))), "d"},
    {"route_sinkhorn", "=5E", CALL(list(route_sinkhorn(in[0], 1, false))), "d"},
    {"limit_capacity", "TK:w TK:i4", CALL(list(limit_capacity({in[0], in[1]}, 4, 2)))},
    {"limit_capacity", "TK:w TK:i4",
     CALL(list(limit_capacity({in[0], in[1]}, 4, 1, DropPolicy::position)))},
    {"limit_capacity_factor", "TK:w TK:i4",
     CALL(list(limit_capacity_factor({in[0], in[1]}, 4, 0.5)))},
    {"sinkhorn", "TE T:b", ONE(sinkhorn(in[0], in[1]))},
    {"count_experts", "TK:i5", ONE(count_experts(in[0], 4))},
    {"count_top_experts", "TE T:b", ONE(count_top_experts(in[0], 2, 1, in[1]))},
    {"balance_loss", "TE T:b",
     ONE(balance_loss(in[0], count_top_experts(in[0], 2), RouterScore::softmax, 0.5, in[1]))},
    {"balance_loss", "TE",
     ONE(balance_loss(in[0], count_top_experts(in[0], 1), RouterScore::sigmoid, 0.5))},
    {"z_loss", "TE T:b", ONE(z_loss(in[0], 0.5, in[1]))},
    {"sort_by_expert", "TK:i5", CALL(list(sort_by_expert(in[0], 4)))},
    {"sort_by_expert", "TK:j4",
     CALL(list(sort_by_expert(in[0], 4, {.alignment = 2, .capacity = 4})))},
    {"permute_tokens", "TC T=2:i5",
     ONE(permute_tokens(in[0], sort_by_expert(in[1], 4, {.alignment = 4})))},
    {"permute_probs", "T=2 T=2:i4", ONE(permute_probs(in[0], sort_by_expert(in[1], 4)))},
    {"combine_tokens", "2TC T=2:i4", ONE(combine_tokens(in[0], sort_by_expert(in[1], 4)))},
    // Views, copies and joins.
    {"view", "BMK", ONE(view(in[0], {in[0].dim(0), 1, in[0].dim(1), in[0].dim(2)})), "a"},
    {"reshape", "BMK", ONE(reshape(in[0], {in[0].dim(2), in[0].dim(0), in[0].dim(1)})), "a"},
    {"permute", "BMK", ONE(permute(in[0], {2, 0, 1})), "a"},
    {"movedim", "BMK", ONE(movedim(in[0], 0, 2), movedim(in[0], -1, 0)), "a"},
    {"transpose", "BMK", ONE(transpose(in[0], 0, 2)), "a"},
    {"expand", "B=1K", ONE(expand(in[0], {2, in[0].dim(0), 3, -1})), "a"},
    {"slice", "BMK", ONE(slice(in[0], 1, 1, kEnd, 2), slice(in[0], -1, -3, -1)), "a"},
    {"narrow", "BMK", ONE(narrow(in[0], 2, -1, 1)), "a"},
    {"select", "BMK", ONE(select(in[0], 1, -1)), "a"},
    {"squeeze", "B=1K", ONE(squeeze(in[0], 1)), "a"},
    {"unsqueeze", "BK", ONE(unsqueeze(in[0], 1)), "a"},
    {"flatten", "BMK", ONE(flatten(in[0]), flatten(in[0], 1, 2)), "a"},
    {"split", "BMK", CALL(rejoined(in[0])), "a"},
    {"unbind", "BMK", CALL(unbind(in[0], 1)), "a"},
    {"cat", "BMK BNK", ONE(cat({in[0], in[1], in[0]}, 1)), "a"},
    {"stack", "BMK BMK", ONE(stack({in[0], in[1]}, 1), stack({in[0], in[1]}, -1)), "a"},
    {"pad", "BMK", ONE(pad(in[0], 1, 2, 1, 1), pad(in[0], 2, 0, 3)), "a"},
    {"roll", "BMK", ONE(roll(in[0], 2, 1), roll(in[0], -1, 2)), "a"},
    {"chunk", "BMK", CALL(chunk(in[0], 2, 1)), "a"},
    {"flip", "BMK", ONE(flip(in[0], 1), flip(in[0], {0, 2})), "a"},
    {"repeat", "BMK", ONE(repeat(in[0], {2, 1, 3}), repeat(in[0], {2, 1, 1, 1})), "a"},
    {"repeat_interleave", "BMK",
     ONE(repeat_interleave(in[0], 2, 1), repeat_interleave(in[0], 3, 2)), "a"},
    {"contiguous", "BMK", ONE(contiguous(in[0])), "a"},
    {"clone", "BMK", ONE(clone(in[0])), "a"},
    {"cast", "BMK", ONE(cast(in[0], DType::f32), cast(in[0], DType::bf16), cast(in[0], DType::f64)),
     "a"},
    {"cast", "BMK:p",
     ONE(cast(in[0], DType::f16), cast(in[0], DType::e4m3), cast(in[0], DType::e5m2),
         cast(in[0], DType::i32), cast(in[0], DType::u8), cast(in[0], DType::boolean)),
     "as"},
    {"to_device", "BMK", ONE(to_device(in[0], kCpu)), "a"},
};

}  // namespace

std::span<const OpLine> ops_table() { return kTable; }

}  // namespace weft::generated
