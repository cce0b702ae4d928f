#pragma once
#include <utility>

#include "weft/distributed/process_group.h"

// Rows that travel in a ring while others are multiplied: what the products of overlap.h and
// fp8_overlap.h share. Matrices are contiguous.
namespace weft::distributed::detail {

/// Throws Error "op: ..." unless x (..., K), weight (N, K) and bias (N) or null fit each other.
void check_row_operands(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias);

/// Rows [first, first + count) of a matrix.
inline Tensor rows(const Tensor& t, std::int64_t first, std::int64_t count) {
  return t.alias({count, t.dim(1)}, {t.dim(1), 1}, first * t.dim(1));
}

/// (1, ..., rows, columns) with as many axes as x.
Shape shape_with(const Tensor& x, std::int64_t rows, std::int64_t columns);

/// Fills all (ranks n, C) with the rows of every rank; `own` holds this rank's rows. Calls use(c)
/// when the rows of rank c have arrived; the next rows are in flight meanwhile.
template <class F>
void ring_gather(const Tensor& all, const Tensor& own, ProcessGroup& group, F&& use) {
  const std::int64_t n = own.dim(0);
  const int ranks = group.size(), rank = group.rank();
  rows(all, rank * n, n).copy_(own);
  for (int i = 0; i < ranks; ++i) {
    const int here = (rank - i + ranks) % ranks, next = (here - 1 + ranks) % ranks;
    Work arrival;
    if (i + 1 < ranks)
      arrival = group.exchange(rows(all, next * n, n), (rank - 1 + ranks) % ranks,
                               rows(all, here * n, n), (rank + 1) % ranks);
    use(here);
    arrival.wait();
  }
}

/// out <- the sum over ranks of parts (ranks n, N), which holds n rows from each rank.
void add_parts(const Tensor& parts, const Tensor& out, int ranks);

/// out (n, N): this rank's rows of the sum over ranks of a product (ranks n, N), of which
/// multiply(first, count, into) computes some rows.
template <class F>
void ring_scatter(const Tensor& out, ProcessGroup& group, F&& multiply) {
  const int ranks = group.size(), rank = group.rank();
  const std::int64_t n = out.dim(0);
  // The products sent to each rank, and those received from it; this rank's own product goes to
  // `come`.
  const Tensor sent = Tensor::empty({ranks * n, out.dim(1)}, out.dtype(), out.device());
  const Tensor come = empty_like(sent);
  Work on_its_way;
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
    multiply(to * n, n, rows(sent, to * n, n));
    on_its_way.wait();
    on_its_way = group.exchange(rows(come, from * n, n), from, rows(sent, to * n, n), to);
  }
  multiply(rank * n, n, rows(come, rank * n, n));
  on_its_way.wait();
  add_parts(come, out, ranks);
}

/// The same in two stages, most columns first: multiply(first, count, into) computes some columns,
/// whose number in the second stage is a multiple of `multiple`.
template <class F>
void pipeline_scatter(const Tensor& out, ProcessGroup& group, std::int64_t multiple, F&& multiply) {
  // Two stages, because each product packs its operands again: four stages of a fourth of the
  // columns took 9 to 16 % longer than one product. The second stage, whose transfer is exposed,
  // has 1 / kLastPart of the columns.
  constexpr std::int64_t kLastPart = 4;
  const std::int64_t columns = out.dim(1), all = out.dim(0) * group.size(),
                     last = columns / kLastPart / multiple * multiple;
  struct Part {
    std::int64_t first, count;
    Tensor product = {}, sum = {};
    Work scattered = {};
  } parts[] = {{0, columns - last}, {columns - last, last}};
  for (Part& p : parts) {
    p.product = Tensor::empty({all, p.count}, out.dtype(), out.device());
    p.sum = Tensor::empty({out.dim(0), p.count}, out.dtype(), out.device());
    multiply(p.first, p.count, p.product);
    p.scattered = group.reduce_scatter(p.sum, p.product);
  }
  for (Part& p : parts) {
    p.scattered.wait();
    out.alias({out.dim(0), p.count}, {columns, 1}, p.first).copy_(p.sum);
  }
}

}  // namespace weft::distributed::detail
