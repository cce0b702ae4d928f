#include "weft/distributed/process_group.h"

#include <algorithm>
#include <utility>

#include "weft/core/cuda_graph.h"
#include "weft/core/error.h"
#include "weft/distributed/comm_thread.h"

namespace weft::distributed {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t rows_of(const Tensor& t) { return t.ndim() ? t.dim(0) : 1; }

std::int64_t row_elements(const Tensor& t) {
  std::int64_t n = 1;
  for (int i = 1; i < t.ndim(); ++i) n *= t.dim(i);
  return n;
}

// Element counts by rank: from `rows`, or equal shares of the rows of `whole`.
void elements_by_rank(const char* op, RowList rows, int size, const Tensor& whole, Counts& counts) {
  const std::int64_t total = rows_of(whole), row = row_elements(whole);
  if (rows.empty()) {
    check(total % size == 0, "{}: {} rows do not divide among {} ranks; say how many each has", op,
          total, size);
    counts.assign(static_cast<std::size_t>(size), total / size * row);
    return;
  }
  check(rows.size() == size, "{}: rows must have one number for each of {} ranks, got {}", op, size,
        rows.size());
  std::int64_t sum = 0;
  for (int r = 0; r < size; ++r) {
    check(rows[r] >= 0, "{}: rows must be at least 0, got {}", op, rows[r]);
    sum += rows[r];
    counts.push_back(rows[r] * row);
  }
  check(sum == total, "{}: rows must add up to {}, got {}", op, total, sum);
}

void check_tensor(const char* op, const Channel& channel, const Tensor& t) {
  check(t.defined(), "{}: a tensor is null", op);
  check(t.is_contiguous(), "{}: tensors must be contiguous, got {} with strides {}", op, t.shape(),
        t.strides());
  check(t.device() == channel.device() || t.is_meta() || channel.takes(t.device()),
        "{}: device must be {} or meta, got {}", op, channel.device(), t.device());
}

void check_pair(const char* op, const Channel& channel, const Tensor& out, const Tensor& in) {
  check_tensor(op, channel, out);
  check_tensor(op, channel, in);
  check(out.dtype() == in.dtype(), "{}: out must have the dtype of in, {}, got {}", op, in.dtype(),
        out.dtype());
  check(out.device() == in.device(), "{}: out must be on the device of in, {}, got {}", op,
        in.device(), out.device());
  check(row_elements(out) == row_elements(in),
        "{}: rows of out must be as long as those of in {}, got {}", op, in.shape(), out.shape());
}

void check_reducible(const char* op, DType t) {
  if (!is_compute(t) && !is_integral(t)) throw_bad_dtype(op, t, kNumericNames);
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a.numel() > 0 && b.numel() > 0 && a.storage() == b.storage() &&
         a.offset() < b.offset() + b.numel() && b.offset() < a.offset() + a.numel();
}

// `part` must be this rank's elements of `whole`, or separate memory.
void check_in_place(const char* op, const char* name, const Tensor& part, const Tensor& whole,
                    const Counts& counts, int rank) {
  if (!overlap(part, whole)) return;
  std::int64_t begin = whole.offset();
  for (int r = 0; r < rank; ++r) begin += counts[static_cast<std::size_t>(r)];
  check(part.offset() == begin, "{}: {} shares memory with more than the rows of its own rank", op,
        name);
}

// The split of a reduction does not change its bits: any split will do.
void equal_shares(std::int64_t elements, int size, Counts& counts) {
  constexpr std::int64_t kLine = 64;
  const std::int64_t share = (elements / size + kLine - 1) / kLine * kLine;
  for (int r = 0; r < size; ++r) {
    const std::int64_t n = r + 1 == size ? elements : std::min(share, elements);
    counts.push_back(n);
    elements -= n;
  }
}

}  // namespace

RowList::RowList(std::span<const std::int64_t> rows) : rows_(rows.data()), size_(rows.size()) {}
RowList::RowList(std::initializer_list<std::int64_t> rows)
    : RowList(std::span(rows.begin(), rows.size())) {}

Work::Work(Work&& o) noexcept : thread_(std::move(o.thread_)), op_(std::exchange(o.op_, nullptr)) {}

Work& Work::operator=(Work&& o) noexcept {
  std::swap(thread_, o.thread_);
  std::swap(op_, o.op_);
  return *this;
}

Work::~Work() {
  if (op_) thread_->give_back(*op_);
}

void Work::wait() {
  if (!op_) return;
  const Work ending = std::move(*this);
  ending.thread_->wait(*ending.op_);
}

bool Work::done() const { return !op_ || op_->done.load(std::memory_order_acquire); }

// An operation while it is filled in: if a check throws, it is returned, and at_once() is reset.
struct ProcessGroup::Call {
  Call(ProcessGroup& group, Collective kind)
      : op(group.thread_->take()),
        work(group.thread_, op),
        wakes(!std::exchange(group.at_once_, false)) {
    op.kind = kind;
  }
  Operation& op;
  Work work;
  bool wakes;
};

ProcessGroup::ProcessGroup(std::shared_ptr<Channel> channel, std::shared_ptr<CommThread> thread,
                           Lane lane)
    : channel_(std::move(channel)), thread_(std::move(thread)), lane_(lane) {}

Work ProcessGroup::submit(Call& call) {
  cuda::detail::refuse_in_capture(
      "graph: a collective cannot be inside a capture, since other ranks would wait for it; call "
      "it before or after replay()");
  Operation& op = call.op;
  if (const Tensor& t = op.some_tensor(); t.defined())
    if (t.device().is_cuda()) op.stream = cuda::Stream::current(t.device());
  op.sequence = is_message(op.kind) ? messages_++ : sequence_++;
  op.lane = lane_;
  op.channel = channel_;
  if (op.out.defined()) op.out.bump_version();
  for (const Transfer& t : op.receives) t.tensor.bump_version();
  thread_->submit(op, call.wakes);
  return std::move(call.work);
}

Work ProcessGroup::all_reduce(const Tensor& x, Reduce reduce) {
  Call call(*this, Collective::all_reduce);
  check_tensor("all_reduce", *channel_, x);
  check_reducible("all_reduce", x.dtype());
  Operation& op = call.op;
  op.out = op.in = x;
  op.reduce = reduce;
  equal_shares(x.numel(), size(), op.in_count);
  op.out_count = op.in_count;
  return submit(call);
}

Work ProcessGroup::all_gather(const Tensor& out, const Tensor& in, RowList rows) {
  Call call(*this, Collective::all_gather);
  check_pair("all_gather", *channel_, out, in);
  Operation& op = call.op;
  elements_by_rank("all_gather", rows, size(), out, op.out_count);
  check(in.numel() == op.out_count[static_cast<std::size_t>(rank())],
        "all_gather: in must have {} rows, got {}",
        rows.empty() ? rows_of(out) / size() : rows[rank()], rows_of(in));
  check_in_place("all_gather", "in", in, out, op.out_count, rank());
  op.in_count = op.out_count;
  op.out = out;
  op.in = in;
  return submit(call);
}

Work ProcessGroup::reduce_scatter(const Tensor& out, const Tensor& in, RowList rows,
                                  Reduce reduce) {
  Call call(*this, Collective::reduce_scatter);
  check_pair("reduce_scatter", *channel_, out, in);
  check_reducible("reduce_scatter", in.dtype());
  Operation& op = call.op;
  elements_by_rank("reduce_scatter", rows, size(), in, op.in_count);
  check(out.numel() == op.in_count[static_cast<std::size_t>(rank())],
        "reduce_scatter: out must have {} rows, got {}",
        rows.empty() ? rows_of(in) / size() : rows[rank()], rows_of(out));
  check_in_place("reduce_scatter", "out", out, in, op.in_count, rank());
  op.reduce = reduce;
  op.out_count = op.in_count;
  op.out = out;
  op.in = in;
  return submit(call);
}

Work ProcessGroup::all_to_all(const Tensor& out, const Tensor& in, RowList out_rows,
                              RowList in_rows) {
  Call call(*this, Collective::all_to_all);
  check_pair("all_to_all", *channel_, out, in);
  check(!overlap(out, in), "all_to_all: out must not share memory with in");
  Operation& op = call.op;
  elements_by_rank("all_to_all", out_rows, size(), out, op.out_count);
  elements_by_rank("all_to_all", in_rows, size(), in, op.in_count);
  const std::int64_t sent = count_of(op.in_count, rank()), own = count_of(op.out_count, rank());
  check(own == sent, "all_to_all: a rank must expect the {} elements that it sends itself, got {}",
        sent, own);
  op.out = out;
  op.in = in;
  return submit(call);
}

Work ProcessGroup::broadcast(const Tensor& x, int root) {
  Call call(*this, Collective::broadcast);
  check_tensor("broadcast", *channel_, x);
  check(root >= 0 && root < size(), "broadcast: root must be a rank below {}, got {}", size(),
        root);
  Operation& op = call.op;
  op.out = op.in = x;
  op.root = root;
  op.in_count.push_back(x.numel());
  op.out_count = op.in_count;
  return submit(call);
}

Work ProcessGroup::exchange(const Tensor& out, int from, const Tensor& in, int to) {
  Call call(*this, Collective::exchange);
  check_pair("exchange", *channel_, out, in);
  check(!overlap(out, in), "exchange: out must not share memory with in");
  check(from >= 0 && from < size() && to >= 0 && to < size(),
        "exchange: from and to must be ranks below {}, got {} and {}", size(), from, to);
  call.op.sends.push_back({in, to});
  call.op.receives.push_back({out, from});
  return submit(call);
}

Work ProcessGroup::send(const Tensor& x, int to) {
  Call call(*this, Collective::send);
  check_tensor("send", *channel_, x);
  check(to >= 0 && to < size() && to != rank(), "send: to must be another rank below {}, got {}",
        size(), to);
  call.op.sends.push_back({x, to});
  return submit(call);
}

Work ProcessGroup::receive(const Tensor& x, int from) {
  Call call(*this, Collective::receive);
  check_tensor("receive", *channel_, x);
  check(from >= 0 && from < size() && from != rank(),
        "receive: from must be another rank below {}, got {}", size(), from);
  call.op.receives.push_back({x, from});
  return submit(call);
}

Work ProcessGroup::batch(const std::vector<Transfer>& sends,
                         const std::vector<Transfer>& receives) {
  Call call(*this, Collective::batch);
  Operation& op = call.op;
  op.sends = sends;
  op.receives = receives;
  op.for_each_tensor([&](const Tensor& t) { check_tensor("batch", *channel_, t); });
  op.for_each_tensor([&](const Tensor& t) {
    check(t.device() == op.some_tensor().device(),
          "batch: all tensors must be on one device, got {} and {}", op.some_tensor().device(),
          t.device());
  });
  for (const auto* const list : {&op.sends, &op.receives})
    for (const Transfer& t : *list)
      check(t.rank >= 0 && t.rank < size(), "batch: ranks must be below {}, got {}", size(),
            t.rank);
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const auto apart = [&](const Transfer& t) { return !overlap(receives[i].tensor, t.tensor); };
    check(std::all_of(receives.begin(), receives.begin() + static_cast<std::ptrdiff_t>(i), apart) &&
              std::all_of(sends.begin(), sends.end(), apart),
          "batch: a tensor that receives must not share memory with another, got receive {}", i);
  }
  return submit(call);
}

Work ProcessGroup::barrier() {
  Call call(*this, Collective::barrier);
  return submit(call);
}

void ProcessGroup::check_well() const {
  thread_->for_program([this] { channel_->check_well(); });
}

}  // namespace weft::distributed
