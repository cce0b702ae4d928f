#include "weft/autograd/recurrent.h"

#include <algorithm>

#include "weft/autograd/cu_seqlens.h"
#include "weft/autograd/linear_common.h"
#include "weft/autograd/operand.h"
#include "weft/core/kernels/recurrent.h"

namespace weft {
namespace {

// One call of either op; `c` stays null for a GRU.
struct Call {
  const char* op;
  RecurrentKind kind;
  Tensor gates, weight, bias, h, c, cu_seqlens;
  std::int64_t steps = 0;

  RecurrentSpec spec() const {
    const bool data = cu_seqlens.defined() && !cu_seqlens.is_meta();
    return {.kind = kind,
            .all = {.cu_seqlens = data ? cu_seqlens.data<std::int32_t>() : nullptr,
                    .count = cu_seqlens.defined() ? cu_seqlens.dim(0) - 1 : gates.dim(0),
                    .length = gates.dim(1)},
            .steps = steps,
            .units = weight.dim(1)};
  }
};

void check_operand(const Call& c, const char* name, const Tensor& t, const Shape& shape) {
  check(t.shape() == shape, "{}: {} must have shape {}, got {}", c.op, name, shape, t.shape());
  check(t.dtype() == c.gates.dtype(), "{}: {} must have the dtype of gates, {}, got {}", c.op, name,
        c.gates.dtype(), t.dtype());
  check(t.device() == c.gates.device(), "{}: {} must be on the device of gates, {}, got {}", c.op,
        name, c.gates.device(), t.device());
}

void check_operands(const Call& c) {
  const std::int64_t gates = c.kind == RecurrentKind::gru ? 3 : 4;
  detail::check_tensor(c.op, "gates", c.gates);
  detail::check_tensor(c.op, "weight_hh", c.weight);
  if (!is_compute(c.gates.dtype())) throw_bad_dtype(c.op, c.gates.dtype(), kFloatingNames);
  check(c.gates.ndim() == 3, "{}: gates must have shape (batch, tokens, {} units), got {}", c.op,
        gates, c.gates.shape());
  check(c.gates.dim(2) > 0 && c.gates.dim(2) % gates == 0,
        "{}: the last axis of gates must be {} times the number of units, got {}", c.op, gates,
        c.gates.dim(2));
  const std::int64_t units = c.gates.dim(2) / gates;
  check_operand(c, "weight_hh", c.weight, {gates * units, units});
  if (c.bias.defined()) check_operand(c, "bias_hh", c.bias, {gates * units});
}

void check_state(const Call& c, const char* name, const Tensor& t, DType real) {
  if (!t.defined()) return;
  const Shape expected{c.spec().all.count, c.weight.dim(1)};
  check(t.shape() == expected && t.dtype() == real, "{}: {} must be {} {}, got {} {}", c.op, name,
        real, expected, t.dtype(), t.shape());
  check(t.device() == c.gates.device(), "{}: {} must be on the device of gates, {}, got {}", c.op,
        name, c.gates.device(), t.device());
}

// Sets the sequences and the length of the longest one, which the kernels need on the host.
void find_sequences(Call& c, const Tensor& given) {
  c.steps = c.gates.dim(1);
  if (!given.defined()) return;
  check(c.gates.dim(0) == 1, "{}: with cu_seqlens gates must be one row, got {}", c.op,
        c.gates.shape());
  const Tensor on_host = given.is_meta() ? given : given.to(kCpu);
  c.cu_seqlens = detail::checked_cu_seqlens(c.op, on_host, "gates", c.gates);
  c.steps = 0;
  if (on_host.is_meta()) return;
  const Tensor dense = contiguous(on_host);
  const std::int32_t* p = dense.data<std::int32_t>();
  for (std::int64_t i = 1; i < dense.dim(0); ++i)
    c.steps = std::max<std::int64_t>(c.steps, p[i] - p[i - 1]);
}

Tensor scratch_of(const RecurrentSpec& s, const Tensor& like) {
  return Tensor::empty({s.all.count, s.scratch()}, like.dtype(), like.device());
}
Tensor packed_of(const RecurrentSpec& s, const Tensor& like) {
  if (like.device().is_gpu()) return {};
  return Tensor::empty({recurrent_packed(s)}, like.dtype(), like.device());
}

Tensor dense_or_null(const Tensor& t) { return t.defined() ? contiguous(t) : t; }

// Inputs: gates, weight, bias, h, c. Outputs: y, h, c.
void backward(Backward& b, const RecurrentSpec& s, const Tensor& weight, const Tensor& saved,
              const Tensor& y, const Tensor& h, const Tensor& c) {
  b.once_differentiable();
  const bool lstm = s.kind == RecurrentKind::lstm;
  const auto like = [&](const Shape& shape) { return Tensor::empty(shape, y.dtype(), y.device()); };
  const Tensor dgates = like({y.dim(0), y.dim(1), s.gates()}), previous = empty_like(y);
  const Tensor dhidden = lstm ? Tensor() : empty_like(dgates);
  const Tensor dh = like({s.all.count, s.units}), dc = lstm ? empty_like(dh) : Tensor();
  const Tensor dy = dense_or_null(b.dy(0)), dlast = dense_or_null(b.dy(1)),
               dcell = lstm ? dense_or_null(b.dy(2)) : Tensor();
  detail::count_product(y.dim(0) * y.dim(1), weight.numel());
  dispatch<cpu::recurrent_bwd, cuda::recurrent_bwd>(RecurrentBwdIn{.weight = weight,
                                                                   .saved = saved,
                                                                   .y = y,
                                                                   .h = h,
                                                                   .c = c,
                                                                   .dy = dy,
                                                                   .dh = dlast,
                                                                   .dc = dcell},
                                                    s,
                                                    RecurrentBwdOut{.dgates = dgates,
                                                                    .dhidden = dhidden,
                                                                    .previous = previous,
                                                                    .dh = dh,
                                                                    .dc = dc,
                                                                    .scratch = scratch_of(s, y),
                                                                    .packed = packed_of(s, y)});
  // One product for the gradient of the weight, over all tokens.
  detail::add_linear_gradients(b, 1, 2, detail::as_matrix(lstm ? dgates : dhidden),
                               detail::as_matrix(previous));
  b.add(0, dgates);
  b.add(3, dh);
  if (lstm) b.add(4, dc);
}

LstmOutput run(Call call, const Tensor& cu_seqlens) {
  check_operands(call);
  find_sequences(call, cu_seqlens);
  const DType dtype = call.gates.dtype(), real = dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool lstm = call.kind == RecurrentKind::lstm;
  check_state(call, lstm ? "state.h" : "state", call.h, real);
  check_state(call, "state.c", call.c, real);

  const Tensor gates = contiguous(cast(call.gates, real));
  const Tensor weight = contiguous(cast(call.weight, real));
  const Tensor bias = call.bias.defined() ? contiguous(cast(call.bias, real)) : call.bias;
  const Tensor h = dense_or_null(call.h), c = dense_or_null(call.c);
  const RecurrentSpec s = call.spec();
  const auto like = [&](const Shape& shape) { return Tensor::empty(shape, real, gates.device()); };
  const bool recorded = recording(gates, weight, bias, h, c);
  const Tensor saved = recorded ? like({gates.dim(0), gates.dim(1), s.saved()}) : Tensor();
  const Tensor y = like({gates.dim(0), gates.dim(1), s.units});
  const Tensor last_h = like({s.all.count, s.units}), last_c = lstm ? empty_like(last_h) : Tensor();
  detail::count_product(y.dim(0) * y.dim(1), weight.numel());
  dispatch<cpu::recurrent_fwd, cuda::recurrent_fwd>(
      RecurrentFwdIn{.gates = gates, .weight = weight, .bias = bias, .h = h, .c = c}, s,
      RecurrentFwdOut{.saved = saved,
                      .y = y,
                      .h = last_h,
                      .c = last_c,
                      .scratch = scratch_of(s, y),
                      .packed = packed_of(s, y)});
  if (recorded) {
    TensorList outputs{y, last_h};
    if (lstm) outputs.push_back(last_c);
    // The spec points to the boundaries, so they are kept too.
    Tape::record(call.op, {&gates, &weight, &bias, &h, &c}, outputs,
                 [s, sw = save(weight, "weight_hh"), saved = save(saved, "gates"),
                  sy = save(y, "y"), sh = save(h, "state"), sc = save(c, "state.c"),
                  boundaries = save(call.cu_seqlens, "cu_seqlens")](Backward& b) {
                   boundaries.get();
                   backward(b, s, sw.get(), saved.get(), sy.get(), sh.get(), sc.get());
                 });
  }
  return {cast(y, dtype), {last_h, last_c}};
}

}  // namespace

GruOutput gru(const Tensor& gates, const Tensor& weight_hh, const Tensor& bias_hh,
              const GruOptions& o) {
  LstmOutput out =
      run({"gru", RecurrentKind::gru, gates, weight_hh, bias_hh, o.state, {}, {}}, o.cu_seqlens);
  return {std::move(out.y), std::move(out.state.h)};
}

LstmOutput lstm(const Tensor& gates, const Tensor& weight_hh, const Tensor& bias_hh,
                const LstmOptions& o) {
  check(o.state.h.defined() == o.state.c.defined(),
        "lstm: state must have both h and c, got only {}", o.state.h.defined() ? "h" : "c");
  return run({"lstm", RecurrentKind::lstm, gates, weight_hh, bias_hh, o.state.h, o.state.c, {}},
             o.cu_seqlens);
}

}  // namespace weft
