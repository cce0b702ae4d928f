#include "weft/distributed/process_group.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/comm_thread.h"

namespace weft::distributed {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t row_elements(const Tensor& t) {
  std::int64_t n = 1;
  for (int i = 1; i < t.ndim(); ++i) n *= t.dim(i);
  return n;
}

// Elements by rank: from `rows`, or equal parts of `whole` rows.
Counts elements_by_rank(const char* op, const Rows& rows, int size, std::int64_t whole,
                        std::int64_t row) {
  Counts counts(rows);
  if (rows.empty()) {
    check(whole % size == 0, "{}: {} rows do not divide among {} ranks; say how many each has", op,
          whole, size);
    counts.assign(static_cast<std::size_t>(size), whole / size);
  }
  check(static_cast<int>(counts.size()) == size,
        "{}: rows must have one number for each of {} ranks, got {}", op, size, counts.size());
  std::int64_t sum = 0;
  for (std::int64_t& c : counts) {
    check(c >= 0, "{}: rows must be at least 0, got {}", op, c);
    sum += c;
    c *= row;
  }
  check(sum == whole, "{}: rows must add up to {}, got {}", op, whole, sum);
  return counts;
}

void check_tensor(const char* op, const Tensor& t) {
  check(static_cast<bool>(t), "{}: a tensor is null", op);
  check(t.ndim() >= 1 || t.numel() == 1, "{}: tensors must have a first axis", op);
  check(t.is_contiguous(), "{}: tensors must be contiguous, got {} with strides {}", op, t.shape(),
        t.strides());
  check(t.device().is_cpu() || t.is_meta(), "{}: device must be cpu or meta, got {}", op,
        t.device());
}

void check_pair(const char* op, const Tensor& out, const Tensor& in) {
  check_tensor(op, out);
  check_tensor(op, in);
  check(out.dtype() == in.dtype(), "{}: out must have the dtype of in, {}, got {}", op,
        weft::name(in.dtype()), weft::name(out.dtype()));
  check(out.device() == in.device(), "{}: out must be on the device of in, {}, got {}", op,
        in.device(), out.device());
  check(row_elements(out) == row_elements(in),
        "{}: rows of out must be as long as those of in {}, got {}", op, in.shape(), out.shape());
}

std::int64_t rows_of(const Tensor& t) { return t.ndim() ? t.dim(0) : 1; }

// Where each rank's share of a sum begins does not change its bits: any split will do.
Counts equal_shares(std::int64_t elements, int size) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t share = (elements / size + kLine - 1) / kLine * kLine;
  Counts counts;
  for (int r = 0; r < size; ++r) {
    const std::int64_t n = r + 1 == size ? elements : std::min(share, elements);
    counts.push_back(n);
    elements -= n;
  }
  return counts;
}

}  // namespace

void Work::wait() {
  if (!op_) return;
  const std::shared_ptr<Operation> op = std::move(op_);
  if (op->done.load(std::memory_order_acquire) == 0) {
    const auto begin = std::chrono::steady_clock::now();
    op->done.wait(0, std::memory_order_acquire);
    op->thread->waited(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  if (op->error) std::rethrow_exception(op->error);
}

bool Work::done() const { return !op_ || op_->done.load(std::memory_order_acquire) != 0; }

ProcessGroup::ProcessGroup(std::shared_ptr<Channel> channel, std::shared_ptr<CommThread> thread)
    : channel_(std::move(channel)), thread_(std::move(thread)) {}

std::shared_ptr<Operation> ProcessGroup::make(Collective kind, const Tensor& out,
                                              const Tensor& in) {
  auto op = std::make_shared<Operation>();
  op->kind = kind;
  op->out = out;
  op->in = in;
  const bool message = kind >= Collective::exchange && kind <= Collective::receive;
  op->sequence = message ? messages_++ : sequence_++;
  op->channel = channel_;
  if (out) out.bump_version();
  return op;
}

Work ProcessGroup::submit(std::shared_ptr<Operation> op) {
  thread_->submit(op);
  return Work(std::move(op));
}

Work ProcessGroup::all_reduce(const Tensor& x, Reduce reduce) {
  check_tensor("all_reduce", x);
  auto op = make(Collective::all_reduce, x, x);
  op->reduce = reduce;
  op->in_count = op->out_count = equal_shares(x.numel(), size());
  return submit(std::move(op));
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in, const Rows& rows) {
  check_pair("all_gather", out, in);
  Counts counts = elements_by_rank("all_gather", rows, size(), rows_of(out), row_elements(out));
  check(in.numel() == counts[static_cast<std::size_t>(rank())],
        "all_gather: in must have {} rows, got {}",
        rows.empty() ? rows_of(out) / size() : rows[static_cast<std::size_t>(rank())], rows_of(in));
  auto op = make(Collective::all_gather, out, in);
  op->in_count = op->out_count = std::move(counts);
  return submit(std::move(op));
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, const Rows& rows,
                                  Reduce reduce) {
  check_pair("reduce_scatter", out, in);
  Counts counts = elements_by_rank("reduce_scatter", rows, size(), rows_of(in), row_elements(in));
  check(out.numel() == counts[static_cast<std::size_t>(rank())],
        "reduce_scatter: out must have {} rows, got {}",
        rows.empty() ? rows_of(in) / size() : rows[static_cast<std::size_t>(rank())], rows_of(out));
  auto op = make(Collective::reduce_scatter, out, in);
  op->reduce = reduce;
  op->in_count = op->out_count = std::move(counts);
  return submit(std::move(op));
}

Work ProcessGroup::all_to_all(const Tensor& out, const Tensor& in, const Rows& out_rows,
                              const Rows& in_rows) {
  check_pair("all_to_all", out, in);
  check(out.numel() == 0 || !out.storage() || out.storage() != in.storage(),
        "all_to_all: out must not share memory with in");
  Counts to_me = elements_by_rank("all_to_all", out_rows, size(), rows_of(out), row_elements(out));
  Counts from_me = elements_by_rank("all_to_all", in_rows, size(), rows_of(in), row_elements(in));
  auto op = make(Collective::all_to_all, out, in);
  op->out_count = std::move(to_me);
  op->in_count = std::move(from_me);
  return submit(std::move(op));
}

Work ProcessGroup::broadcast(const Tensor& x, int root) {
  check_tensor("broadcast", x);
  check(root >= 0 && root < size(), "broadcast: root must be a rank below {}, got {}", size(),
        root);
  auto op = make(Collective::broadcast, x, x);
  op->from = root;
  op->in_count = op->out_count = {x.numel()};
  return submit(std::move(op));
}

Work ProcessGroup::exchange(const Tensor& out, int from, const Tensor& in, int to) {
  check_pair("exchange", out, in);
  check(from >= 0 && from < size() && to >= 0 && to < size(),
        "exchange: from and to must be ranks below {}, got {} and {}", size(), from, to);
  auto op = make(Collective::exchange, out, in);
  op->from = from;
  op->to = to;
  return submit(std::move(op));
}

Work ProcessGroup::send(const Tensor& x, int to) {
  check_tensor("send", x);
  check(to >= 0 && to < size() && to != rank(), "send: to must be another rank below {}, got {}",
        size(), to);
  auto op = make(Collective::send, {}, x);
  op->to = to;
  return submit(std::move(op));
}

Work ProcessGroup::receive(const Tensor& x, int from) {
  check_tensor("receive", x);
  check(from >= 0 && from < size() && from != rank(),
        "receive: from must be another rank below {}, got {}", size(), from);
  auto op = make(Collective::receive, x, {});
  op->from = from;
  return submit(std::move(op));
}

Work ProcessGroup::barrier() { return submit(make(Collective::barrier, {}, {})); }

}  // namespace weft::distributed
