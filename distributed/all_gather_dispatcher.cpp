#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/row_path.h"

namespace weft::distributed {
namespace {

struct AllGatherState {
  RowPath per_token, per_slot;  // one row per token, k rows per token
  RowTransfer probs, results;
  // Tokens in flight to all ranks, and the tensor that stands for them on the tape. Their gradient
  // comes back per slot.
  RowsInTransit tokens;
  Tensor mark;
  RowPath::Works home;
  Tensor experts;  // of this rank's slots, then of all
  RowPath::Works gathered;
  std::int64_t topk = 0, capacity = 0;
  Tensor rows;     // of the local experts, on the host; null with a capacity
  ExpertRows own;  // this rank's slots in order: combine_tokens() sums tokens by it
};

ExpertRows slots_in_order(std::int64_t tokens, std::int64_t k, Device device) {
  ExpertRows out;
  out.slot_of = Tensor::arange(0, static_cast<double>(tokens * k), 1, DType::i64, device);
  out.row_of = out.slot_of.view({tokens, k});
  return out;
}

// The same rows, with each slot treated as a token.
ExpertRows by_slot(const ExpertRows& rows) {
  ExpertRows out = rows;
  out.row_of = reshape(rows.row_of, {rows.row_of.numel(), 1});
  return out;
}

// Sends x (T, C) to all ranks. The tape records a view that repeats each token k times, so that
// every slot's gradient comes back; they are summed here in slot order.
void start_gather(const Tensor& x, const std::shared_ptr<AllGatherState>& state,
                  nn::TokenForm form) {
  const Tensor whole = contiguous(x);
  state->tokens.post(whole, state->per_token, form);
  state->mark = whole.alias({x.dim(0), state->topk, x.dim(1)}, {x.dim(1), 0, 1}, 0);
  if (recording(x))
    Tape::record("start_gather", {&x}, {&state->mark}, [state, own = state->own](Backward& b) {
      b.once_differentiable();
      state->home.wait();
      const Tensor& slots = b.dy();
      b.add(0, combine_tokens(reshape(slots, {own.slot_of.dim(0), slots.dim(2)}), own));
    });
}

Tensor finish_gather(const std::shared_ptr<AllGatherState>& state, const ExpertRows& rows) {
  Tensor y;
  {
    const NoGradGuard quiet;
    y = permute_tokens(state->tokens.wait(), rows);
  }
  const Tensor mark = std::move(state->mark);
  if (recording(mark))
    Tape::record("finish_gather", {&mark}, {&y},
                 [state, rows = by_slot(rows), shape = mark.shape()](Backward& b) {
                   b.once_differentiable();
                   const Tensor sums =
                       state->per_slot.post(combine_tokens(b.dy(), rows), true, state->home);
                   b.add(0, sums.alias(shape, {shape[1] * shape[2], shape[2], 1}, 0));
                 });
  return y;
}

}  // namespace

nn::Dispatch AllGatherDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                      const nn::FixedRows& fixed) const {
  const auto state = new_state<AllGatherState>();
  const std::int64_t T = x.dim(0), E = local_experts(), first = first_expert();
  state->topk = routing.experts.dim(1);
  state->experts = routing.experts;
  state->own = slots_in_order(T, state->topk, x.device());
  const Tensor tokens = row_counts(ranks(), [&](std::int64_t) { return T; });
  if (fixed.of_rank) {
    // Slots that exceed the capacity on this rank are not sent.
    const Tensor row_of =
        sort_by_expert(routing.experts, experts_, {.capacity = fixed.of_rank, .read = false})
            .row_of;
    state->experts =
        where(ge(row_of, 0.0), routing.experts, Tensor::full({}, -1, DType::i64, x.device()));
    state->capacity = std::min(ranks() * fixed.of_rank, groups_.batches * fixed.of_batch);
  } else {
    const Tensor own = Tensor::empty({experts_ + 1}, DType::i64, x.device());
    own.narrow(0, 0, experts_).copy_(count_experts(routing.experts, experts_).view({experts_}));
    own.narrow(0, experts_, 1).fill_(static_cast<double>(T));
    Tensor planned =
        Tensor::full({experts_ + 1}, static_cast<double>(T * state->topk / experts_), DType::i64);
    planned.select(0, experts_).fill_(static_cast<double>(T));
    const Tensor table = receive_counts(send_counts(own), planned);
    state->rows = Tensor::zeros({E}, DType::i64);
    for (std::int64_t r = 0; r < ranks(); ++r) {
      const std::int64_t* n = table.data<std::int64_t>() + r * (experts_ + 1);
      tokens.data<std::int64_t>()[r] = n[experts_];
      for (std::int64_t e = 0; e < E; ++e) state->rows.data<std::int64_t>()[e] += n[first + e];
    }
  }
  state->per_token.gather(*groups_.tp_ep, tokens);
  state->per_slot.gather(*groups_.tp_ep, row_counts(ranks(), [&](std::int64_t r) {
    return tokens.data<std::int64_t>()[r] * state->topk;
  }));
  nn::Dispatch d;
  d.tokens = x;
  d.probs = routing.probs;
  d.state = state;
  return d;
}

void AllGatherDispatcher::token_dispatch(nn::Dispatch& d) const {
  AllGatherState& state = state_of<AllGatherState>(d);
  state.experts = state.per_token.post(state.experts, false, state.gathered);
  start_gather(d.tokens, std::static_pointer_cast<AllGatherState>(d.state), form_);
  send_tokens(d.probs, state.per_token, transfer_of(d, &AllGatherState::probs));
  d.tokens = d.probs = {};
}

void AllGatherDispatcher::dispatch_postprocess(nn::Dispatch& d) const {
  AllGatherState& state = state_of<AllGatherState>(d);
  state.gathered.wait();
  // Experts on other ranks get an index out of range, and no row.
  const Tensor local = sub(state.experts, static_cast<double>(first_expert()));
  const std::int64_t E = local_experts();
  const std::int64_t a =
      nn::row_alignment(alignment_, local.device(), state.capacity, local.numel() / experts_);
  d.rows = sort_by_expert(
      local, E, {.alignment = a, .capacity = (state.capacity + a - 1) / a * a, .read = false});
  if (!state.capacity) {
    std::int64_t* n = state.rows.data<std::int64_t>();
    for (std::int64_t e = 0; e < E; ++e) n[e] = (n[e] + a - 1) / a * a;
    know_rows(d.rows, state.rows);
  }
  d.tokens = finish_gather(std::static_pointer_cast<AllGatherState>(d.state), d.rows);
  d.probs = permute_probs(receive_tokens(transfer_of(d, &AllGatherState::probs)), d.rows);
  d.expert_rows = d.rows.rows;
}

Tensor AllGatherDispatcher::combine_preprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, by_slot(d.rows));
}

Tensor AllGatherDispatcher::token_combine(const Tensor& y, const nn::Dispatch& d) const {
  return return_tokens(y, state_of<AllGatherState>(d).per_slot,
                       transfer_of(d, &AllGatherState::results));
}

Tensor AllGatherDispatcher::combine_postprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, state_of<AllGatherState>(d).own);
}

}  // namespace weft::distributed
