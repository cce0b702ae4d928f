#include <algorithm>
#include <optional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/token_permute.h"
#include "weft/core/memory_trace.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/row_path.h"

namespace weft::distributed {
namespace {

// A layer's rows in flight: sent by expert, over ep, then over etp; they arrive ordered by rank
// (etp, then ep) and expert.
struct AllToAllState {
  RowPath path;
  RowTransfer tokens, probs, results;
  std::int64_t capacity = 0;  // rows of each rank per expert; 0: as many as there are
  std::int64_t most = 0;      // rows of an expert without padding; 0: padding is kept
  // The order of the received rows, each as a token with one slot; without `slot_of`, in order.
  ExpertRows sorted;
  Tensor counts;  // (ranks, experts): rows that each rank sends, without padding; and their gather
  Work counted;
  Tensor rows;  // of the experts
};

// Number of rows that each rank of tp_ep sends to each expert.
class RowCounts {
 public:
  RowCounts(Tensor table, std::int64_t etp) : table_(std::move(table)), etp_(etp) {}
  std::int64_t of(std::int64_t p, std::int64_t q, std::int64_t expert) const {
    return table_.data<std::int64_t>()[(p * etp_ + q) * table_.dim(1) + expert];
  }
  std::int64_t sum(std::int64_t p, std::int64_t q, std::int64_t first, std::int64_t n) const {
    std::int64_t total = 0;
    for (std::int64_t e = first; e < first + n; ++e) total += of(p, q, e);
    return total;
  }

 private:
  Tensor table_;
  std::int64_t etp_;
};

// Reorders (q, p, expert) to (expert, p, q); pads the rows of each expert to a multiple.
ExpertRows sort_chunks(const RowCounts& counts, std::int64_t P, std::int64_t Q, std::int64_t first,
                       std::int64_t E, std::int64_t alignment, Device device) {
  // Start of each chunk (q, p, expert).
  const Tensor begins = Tensor::empty({P * Q * E + 1}, DType::i64);
  std::int64_t* source = begins.data<std::int64_t>();
  source[0] = 0;
  for (std::int64_t i = 0; i < P * Q * E; ++i)
    source[i + 1] = source[i] + counts.of(i / E % P, i / E / P, first + i % E);
  ExpertRows out;
  out.rows = Tensor::empty({E}, DType::i64);
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    std::int64_t rows = 0;
    for (std::int64_t p = 0; p < P; ++p)
      for (std::int64_t q = 0; q < Q; ++q) rows += counts.of(p, q, first + e);
    rows = (rows + alignment - 1) / alignment * alignment;
    out.rows.data<std::int64_t>()[e] = rows;
    total += rows;
  }
  // No reordering is needed if one expert's rows come from one rank after the other.
  if (alignment == 1 && (P * Q == 1 || (E == 1 && (P == 1 || Q == 1)))) return out;
  // From each chunk's first row, to which row, how many; then the padding of its expert.
  const Tensor chunks = Tensor::empty({(P * Q + 1) * E, 3}, DType::i64);
  std::int64_t* chunk = chunks.data<std::int64_t>();
  std::int64_t row = 0;
  const auto add = [&](std::int64_t from, std::int64_t n) {
    *chunk++ = from;
    *chunk++ = row;
    *chunk++ = n;
    row += n;
  };
  std::int64_t end = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    for (std::int64_t p = 0; p < P; ++p)
      for (std::int64_t q = 0; q < Q; ++q)
        add(source[(q * P + p) * E + e], counts.of(p, q, first + e));
    end += out.rows.data<std::int64_t>()[e];
    add(-1, end - row);
  }
  out.row_of = Tensor::empty({source[P * Q * E], 1}, DType::i64, device);
  out.slot_of = Tensor::empty({total}, DType::i64, device);
  std::optional<UntracedScope> untraced;
  if (device == kMeta) untraced.emplace();  // on the CPU it is `chunks`
  dispatch<cpu::place_chunks, cuda::place_chunks>(to_device(chunks, device), out.row_of,
                                                  out.slot_of);
  return out;
}

// The same if all chunks have `capacity` rows; the two orders are inverses of each other.
Tensor swap_chunks(const Tensor& x, std::int64_t a, std::int64_t b, std::int64_t c) {
  const std::int64_t row = x.ndim() > 1 ? x.dim(1) : 1;
  const std::int64_t chunk = a * b * c > 0 ? x.numel() / (a * b * c) : 0;
  return reshape(permute(reshape(x, {a, b, c, chunk}), {2, 1, 0, 3}),
                 x.ndim() > 1 ? Shape{x.dim(0), row} : Shape{x.dim(0)});
}

// Each rank sends `rows` rows to each of E experts. At most `most` rows of an expert are not
// padding: moves those together. counts (ranks, experts): rows of each rank that are not padding.
ExpertRows without_fillers(const Tensor& counts, std::int64_t first, std::int64_t E,
                           std::int64_t rows, std::int64_t most) {
  const Device device = counts.device();
  const auto numbers = [&](std::int64_t n) {
    return Tensor::arange(0, static_cast<double>(n), 1, DType::i64, device);
  };
  const Tensor used = counts.narrow(1, first, E).t().contiguous().view({E, counts.dim(0), 1});
  const Tensor expert = where(lt(numbers(rows).view({1, 1, rows}), used),
                              numbers(E).view({E, 1, 1}), Tensor::full({}, -1, DType::i64, device));
  ExpertRows out =
      sort_by_expert(expert.view({expert.numel(), 1}), E, {.capacity = most, .read = false});
  out.rows = {};  // stored in the state
  return out;
}

}  // namespace

nn::Dispatch AllToAllDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                     const nn::FixedRows& fixed) const {
  const auto state = new_state<AllToAllState>();
  const std::int64_t P = groups_.ep->size(), Q = groups_.etp->size(), E = local_experts();
  const std::int64_t p = groups_.ep->rank(), q = groups_.etp->rank(), first = first_expert();
  const std::int64_t alignment = nn::row_alignment(alignment_, x.device(), fixed.of_rank,
                                                   routing.experts.numel() * ranks() / experts_);
  const auto aligned = [&](std::int64_t n) { return (n + alignment - 1) / alignment * alignment; };
  state->capacity = aligned(fixed.of_rank);
  nn::Dispatch d;
  d.rows = sort_by_expert(
      routing.experts, experts_,
      {.alignment = state->capacity ? alignment : 1, .capacity = state->capacity, .read = false});
  const auto permute_rows = [&] {
    d.tokens = permute_tokens(x, d.rows);
    d.probs = permute_probs(routing.probs, d.rows);
  };
  if (state->capacity) {
    const auto of_rank = [&](std::int64_t) { return E * state->capacity; };
    state->path.all_to_all(*groups_.ep, row_counts(P, of_rank), row_counts(P, of_rank));
    state->path.gather(*groups_.etp, row_counts(Q, [&](std::int64_t) { return P * of_rank(0); }));
    const std::int64_t all = P * Q * state->capacity;
    const std::int64_t most = aligned(groups_.batches * fixed.of_batch);
    if (most < all) {
      state->most = most;
      Counts sent = send_counts(
          minimum(count_experts(routing.experts, experts_), static_cast<double>(state->capacity)));
      state->counts = std::move(sent.all);
      state->counted = std::move(sent.work);
    }
    state->rows = Tensor::full({E}, static_cast<double>(std::min(most, all)), DType::i64);
  } else {
    Counts sent = send_counts(d.rows.counts);
    // On the CPU this rank's own counts are known; permute its rows meanwhile.
    if (x.device().is_cpu()) {
      know_rows(d.rows, d.rows.counts);
      permute_rows();
    }
    const Tensor table = receive_counts(std::move(sent), d.rows.rows);
    if (!d.rows.rows.defined()) know_rows(d.rows, table.select(0, p * Q + q));
    const RowCounts counts(table, Q);
    state->path.all_to_all(
        *groups_.ep, row_counts(P, [&](std::int64_t r) { return counts.sum(p, q, r * E, E); }),
        row_counts(P, [&](std::int64_t r) { return counts.sum(r, q, first, E); }));
    state->path.gather(*groups_.etp, row_counts(Q, [&](std::int64_t r) {
      std::int64_t total = 0;
      for (std::int64_t s = 0; s < P; ++s) total += counts.sum(s, r, first, E);
      return total;
    }));
    state->sorted = sort_chunks(counts, P, Q, first, E, alignment, x.device());
    state->rows = state->sorted.rows;
  }
  if (!d.tokens.defined()) permute_rows();
  d.state = state;
  return d;
}

void AllToAllDispatcher::token_dispatch(nn::Dispatch& d) const {
  AllToAllState& state = state_of<AllToAllState>(d);
  send_tokens(d.tokens, state.path, transfer_of(d, &AllToAllState::tokens), form_);
  send_tokens(d.probs, state.path, transfer_of(d, &AllToAllState::probs));
  d.tokens = d.probs = {};
}

void AllToAllDispatcher::dispatch_postprocess(nn::Dispatch& d) const {
  AllToAllState& state = state_of<AllToAllState>(d);
  d.tokens = receive_tokens(transfer_of(d, &AllToAllState::tokens));
  d.probs = receive_tokens(transfer_of(d, &AllToAllState::probs));
  d.expert_rows = state.rows;
  if (state.capacity) {
    const std::int64_t P = groups_.ep->size(), Q = groups_.etp->size(), E = local_experts();
    d.tokens = swap_chunks(d.tokens, Q, P, E);
    d.probs = swap_chunks(d.probs, Q, P, E);
    if (state.most) {
      state.counted.wait();
      state.sorted = without_fillers(state.counts, first_expert(), E, state.capacity, state.most);
      state.counts = {};
    }
  }
  if (state.sorted.slot_of.defined()) {
    d.tokens = permute_tokens(d.tokens, state.sorted);
    d.probs = permute_probs(reshape(d.probs, state.sorted.row_of.shape()), state.sorted);
  }
}

Tensor AllToAllDispatcher::combine_preprocess(const Tensor& y, const nn::Dispatch& d) const {
  const AllToAllState& state = state_of<AllToAllState>(d);
  const Tensor rows = state.sorted.slot_of.defined() ? combine_tokens(y, state.sorted) : y;
  return state.capacity
             ? swap_chunks(rows, local_experts(), groups_.ep->size(), groups_.etp->size())
             : rows;
}

Tensor AllToAllDispatcher::token_combine(const Tensor& y, const nn::Dispatch& d) const {
  return return_tokens(y, state_of<AllToAllState>(d).path, transfer_of(d, &AllToAllState::results));
}

Tensor AllToAllDispatcher::combine_postprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, d.rows);
}

}  // namespace weft::distributed
