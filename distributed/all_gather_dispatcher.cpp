#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/row_path.h"

namespace weft::distributed {
namespace {

struct GatherWay {
  RowPath per_token, per_slot;  // one row per token, k rows per token
  RowTrip probs, results;
  // Tokens in flight to all ranks, and the tensor that stands for them on the tape. Their gradient
  // comes back per slot.
  Tensor tokens, mark;
  RowPath::Works forth, home;
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
void depart_tokens(const Tensor& x, const std::shared_ptr<GatherWay>& way) {
  const Tensor whole = contiguous(x);
  way->tokens = way->per_token.post(whole, false, way->forth);
  way->mark = whole.alias({x.dim(0), way->topk, x.dim(1)}, {x.dim(1), 0, 1}, 0);
  if (recording(x))
    Tape::record("depart_tokens", {&x}, {&way->mark}, [way, own = way->own](Backward& b) {
      b.once_differentiable();
      way->home.wait();
      const Tensor& slots = b.dy();
      b.add(0, combine_tokens(reshape(slots, {own.slot_of.dim(0), slots.dim(2)}), own));
    });
}

Tensor arrive_tokens(const std::shared_ptr<GatherWay>& way, const ExpertRows& rows) {
  way->forth.wait();
  Tensor y;
  {
    const NoGradGuard quiet;
    y = permute_tokens(way->tokens, rows);
  }
  way->tokens = {};
  const Tensor mark = std::move(way->mark);
  if (recording(mark))
    Tape::record("arrive_tokens", {&mark}, {&y},
                 [way, rows = by_slot(rows), shape = mark.shape()](Backward& b) {
                   b.once_differentiable();
                   const Tensor sums =
                       way->per_slot.post(combine_tokens(b.dy(), rows), true, way->home);
                   b.add(0, sums.alias(shape, {shape[1] * shape[2], shape[2], 1}, 0));
                 });
  return y;
}

}  // namespace

nn::Dispatch AllGatherDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                      const nn::FixedRows& fixed) const {
  const auto way = new_way<GatherWay>();
  const std::int64_t T = x.dim(0), E = local_experts(), first = first_expert();
  way->topk = routing.experts.dim(1);
  way->experts = routing.experts;
  way->own = slots_in_order(T, way->topk, x.device());
  const Tensor tokens = row_counts(ranks(), [&](std::int64_t) { return T; });
  if (fixed.of_rank) {
    // Slots that exceed the capacity on this rank are not sent.
    const Tensor row_of =
        sort_by_expert(routing.experts, experts_, {.capacity = fixed.of_rank, .read = false})
            .row_of;
    way->experts =
        where(ge(row_of, 0.0), routing.experts, Tensor::full({}, -1, DType::i64, x.device()));
    way->capacity = std::min(ranks() * fixed.of_rank, groups_.batches * fixed.of_batch);
  } else {
    const Tensor own = Tensor::empty({experts_ + 1}, DType::i64, x.device());
    own.narrow(0, 0, experts_).copy_(count_experts(routing.experts, experts_).view({experts_}));
    own.narrow(0, experts_, 1).fill_(static_cast<double>(T));
    Tensor planned =
        Tensor::full({experts_ + 1}, static_cast<double>(T * way->topk / experts_), DType::i64);
    planned.select(0, experts_).fill_(static_cast<double>(T));
    const Tensor table = receive_counts(send_counts(own), planned);
    way->rows = Tensor::zeros({E}, DType::i64);
    for (std::int64_t r = 0; r < ranks(); ++r) {
      const std::int64_t* n = table.data<std::int64_t>() + r * (experts_ + 1);
      tokens.data<std::int64_t>()[r] = n[experts_];
      for (std::int64_t e = 0; e < E; ++e) way->rows.data<std::int64_t>()[e] += n[first + e];
    }
  }
  way->per_token.gather(*groups_.tp_ep, tokens);
  way->per_slot.gather(*groups_.tp_ep, row_counts(ranks(), [&](std::int64_t r) {
    return tokens.data<std::int64_t>()[r] * way->topk;
  }));
  nn::Dispatch d;
  d.tokens = x;
  d.probs = routing.probs;
  d.way = way;
  return d;
}

void AllGatherDispatcher::token_dispatch(nn::Dispatch& d) const {
  GatherWay& way = way_of<GatherWay>(d);
  way.experts = way.per_token.post(way.experts, false, way.gathered);
  depart_tokens(d.tokens, std::static_pointer_cast<GatherWay>(d.way));
  depart(d.probs, way.per_token, trip_of(d, &GatherWay::probs));
  d.tokens = d.probs = {};
}

void AllGatherDispatcher::dispatch_postprocess(nn::Dispatch& d) const {
  GatherWay& way = way_of<GatherWay>(d);
  way.gathered.wait();
  // Experts on other ranks get an index out of range, and no row.
  const Tensor local = sub(way.experts, static_cast<double>(first_expert()));
  const std::int64_t E = local_experts();
  const std::int64_t a =
      nn::row_alignment(alignment_, local.device(), way.capacity, local.numel() / experts_);
  d.rows = sort_by_expert(
      local, E, {.alignment = a, .capacity = (way.capacity + a - 1) / a * a, .read = false});
  if (!way.capacity) {
    std::int64_t* n = way.rows.data<std::int64_t>();
    for (std::int64_t e = 0; e < E; ++e) n[e] = (n[e] + a - 1) / a * a;
    know_rows(d.rows, way.rows);
  }
  d.tokens = arrive_tokens(std::static_pointer_cast<GatherWay>(d.way), d.rows);
  d.probs = permute_probs(arrive(trip_of(d, &GatherWay::probs)), d.rows);
  d.expert_rows = d.rows.rows;
}

Tensor AllGatherDispatcher::combine_preprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, by_slot(d.rows));
}

Tensor AllGatherDispatcher::token_combine(const Tensor& y, const nn::Dispatch& d) const {
  return travel_back(y, way_of<GatherWay>(d).per_slot, trip_of(d, &GatherWay::results));
}

Tensor AllGatherDispatcher::combine_postprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, way_of<GatherWay>(d).own);
}

}  // namespace weft::distributed
