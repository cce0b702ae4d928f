#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/view.h"
#include "weft/distributed/expert_dispatcher.h"
#include "weft/distributed/row_path.h"

namespace weft::distributed {
namespace {

// Rows on the way of one layer: from this rank by expert, over ep, then over etp; they arrive by
// rank (etp, then ep) and expert.
struct ExchangeWay {
  RowPath path;
  RowTrip tokens, probs, results;
  std::int64_t capacity = 0;  // rows of each rank for each expert; 0: as many as there are
  std::int64_t most = 0;      // rows of an expert without fillers; 0: they stay
  // Of the rows that arrive, each as a token with one slot; without `slot_of` they are in order.
  ExpertRows sorted;
  Tensor counts;  // (ranks, experts): what each rank sends beside fillers; and its gather
  Work counted;
  Tensor rows;  // of the experts
};

// Rows of each rank of tp_ep for each expert.
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

// From (q, p, expert) to (expert, p, q), the rows of each expert filled up to a multiple.
ExpertRows sort_chunks(const RowCounts& counts, std::int64_t P, std::int64_t Q, std::int64_t first,
                       std::int64_t E, std::int64_t alignment, Device device) {
  // Where a chunk (q, p, expert) begins.
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
  // Nothing to move where one expert's rows come from one rank after the other.
  if (alignment == 1 && (P * Q == 1 || (E == 1 && (P == 1 || Q == 1)))) return out;
  const Tensor row_of = Tensor::empty({source[P * Q * E], 1}, DType::i64);
  const Tensor slot_of = Tensor::full({total}, -1, DType::i64);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    std::int64_t row = begin;
    for (std::int64_t p = 0; p < P; ++p)
      for (std::int64_t q = 0; q < Q; ++q) {
        std::int64_t from = source[(q * P + p) * E + e];
        for (std::int64_t i = counts.of(p, q, first + e); i > 0; --i) {
          row_of.data<std::int64_t>()[from] = row;
          slot_of.data<std::int64_t>()[row++] = from++;
        }
      }
    begin += out.rows.data<std::int64_t>()[e];
  }
  out.row_of = to_device(row_of, device);
  out.slot_of = to_device(slot_of, device);
  return out;
}

// The same where all chunks have `capacity` rows; one of the two orders is the other's way back.
Tensor swap_chunks(const Tensor& x, std::int64_t a, std::int64_t b, std::int64_t c) {
  const std::int64_t row = x.ndim() > 1 ? x.dim(1) : 1;
  const std::int64_t chunk = a * b * c > 0 ? x.numel() / (a * b * c) : 0;
  return reshape(permute(reshape(x, {a, b, c, chunk}), {2, 1, 0, 3}),
                 x.ndim() > 1 ? Shape{x.dim(0), row} : Shape{x.dim(0)});
}

// `rows` rows of each rank for each of E experts, of which `most` of an expert are no fillers:
// moved together. counts (ranks, experts): of each rank's, those that are none.
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
  out.rows = {};  // the way has them
  return out;
}

}  // namespace

nn::Dispatch AllToAllDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                                     const nn::FixedRows& fixed) const {
  const auto way = new_way<ExchangeWay>();
  const std::int64_t P = groups_.ep->size(), Q = groups_.etp->size(), E = local_experts();
  const std::int64_t p = groups_.ep->rank(), q = groups_.etp->rank(), first = first_expert();
  const std::int64_t alignment = nn::row_alignment(alignment_, x.device(), fixed.of_rank,
                                                   routing.experts.numel() * ranks() / experts_);
  const auto aligned = [&](std::int64_t n) { return (n + alignment - 1) / alignment * alignment; };
  way->capacity = aligned(fixed.of_rank);
  nn::Dispatch d;
  d.rows = sort_by_expert(
      routing.experts, experts_,
      {.alignment = way->capacity ? alignment : 1, .capacity = way->capacity, .read = false});
  const auto permute_rows = [&] {
    d.tokens = permute_tokens(x, d.rows);
    d.probs = permute_probs(routing.probs, d.rows);
  };
  if (way->capacity) {
    const auto of_rank = [&](std::int64_t) { return E * way->capacity; };
    way->path.all_to_all(*groups_.ep, row_counts(P, of_rank), row_counts(P, of_rank));
    way->path.gather(*groups_.etp, row_counts(Q, [&](std::int64_t) { return P * of_rank(0); }));
    const std::int64_t all = P * Q * way->capacity;
    const std::int64_t most = aligned(groups_.batches * fixed.of_batch);
    if (most < all) {
      way->most = most;
      Counts sent = send_counts(
          minimum(count_experts(routing.experts, experts_), static_cast<double>(way->capacity)));
      way->counts = std::move(sent.all);
      way->counted = std::move(sent.work);
    }
    way->rows = Tensor::full({E}, static_cast<double>(std::min(most, all)), DType::i64);
  } else {
    Counts sent = send_counts(d.rows.counts);
    // On the CPU this rank's own are known, and its rows are copied in the meantime.
    if (x.device().is_cpu()) {
      know_rows(d.rows, d.rows.counts);
      permute_rows();
    }
    const Tensor table = receive_counts(std::move(sent), d.rows.rows);
    if (!d.rows.rows.defined()) know_rows(d.rows, table.select(0, p * Q + q));
    const RowCounts counts(table, Q);
    way->path.all_to_all(*groups_.ep,
                         row_counts(P, [&](std::int64_t r) { return counts.sum(p, q, r * E, E); }),
                         row_counts(P, [&](std::int64_t r) { return counts.sum(r, q, first, E); }));
    way->path.gather(*groups_.etp, row_counts(Q, [&](std::int64_t r) {
      std::int64_t total = 0;
      for (std::int64_t s = 0; s < P; ++s) total += counts.sum(s, r, first, E);
      return total;
    }));
    way->sorted = sort_chunks(counts, P, Q, first, E, alignment, x.device());
    way->rows = way->sorted.rows;
  }
  if (!d.tokens.defined()) permute_rows();
  d.way = way;
  return d;
}

void AllToAllDispatcher::token_dispatch(nn::Dispatch& d) const {
  ExchangeWay& way = way_of<ExchangeWay>(d);
  depart(d.tokens, way.path, trip_of(d, &ExchangeWay::tokens));
  depart(d.probs, way.path, trip_of(d, &ExchangeWay::probs));
  d.tokens = d.probs = {};
}

void AllToAllDispatcher::dispatch_postprocess(nn::Dispatch& d) const {
  ExchangeWay& way = way_of<ExchangeWay>(d);
  d.tokens = arrive(trip_of(d, &ExchangeWay::tokens));
  d.probs = arrive(trip_of(d, &ExchangeWay::probs));
  d.expert_rows = way.rows;
  if (way.capacity) {
    const std::int64_t P = groups_.ep->size(), Q = groups_.etp->size(), E = local_experts();
    d.tokens = swap_chunks(d.tokens, Q, P, E);
    d.probs = swap_chunks(d.probs, Q, P, E);
    if (way.most) {
      way.counted.wait();
      way.sorted = without_fillers(way.counts, first_expert(), E, way.capacity, way.most);
      way.counts = {};
    }
  }
  if (way.sorted.slot_of.defined()) {
    d.tokens = permute_tokens(d.tokens, way.sorted);
    d.probs = permute_probs(reshape(d.probs, way.sorted.row_of.shape()), way.sorted);
  }
}

Tensor AllToAllDispatcher::combine_preprocess(const Tensor& y, const nn::Dispatch& d) const {
  const ExchangeWay& way = way_of<ExchangeWay>(d);
  const Tensor rows = way.sorted.slot_of.defined() ? combine_tokens(y, way.sorted) : y;
  return way.capacity ? swap_chunks(rows, local_experts(), groups_.ep->size(), groups_.etp->size())
                      : rows;
}

Tensor AllToAllDispatcher::token_combine(const Tensor& y, const nn::Dispatch& d) const {
  return travel_back(y, way_of<ExchangeWay>(d).path, trip_of(d, &ExchangeWay::results));
}

Tensor AllToAllDispatcher::combine_postprocess(const Tensor& y, const nn::Dispatch& d) const {
  return combine_tokens(y, d.rows);
}

}  // namespace weft::distributed
