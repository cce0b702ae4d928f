#include "weft/distributed/thread_channel.h"

#include <cstring>

#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/distributed/sum_ranks.h"

namespace weft::distributed {
namespace {

// Every rank adds up so few bytes for itself: that is faster than to wait for another one's share.
constexpr std::int64_t kSmall = 8 << 10;

char* element(const Tensor& t, std::int64_t i) {
  return static_cast<char*>(t.raw()) + i * static_cast<std::int64_t>(size_of(t.dtype()));
}

// `to` may be `from`, when a tensor is used in place.
void copy(const Operation& op, void* to, const void* from, std::int64_t bytes) {
  if (to == from || bytes == 0) return;
  if (!op.stream) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  if constexpr (kWithCuda) {
    cuda::detail::use_device(op.stream->device().index);
    cuda::rt::copy(to, from, bytes, cuda::rt::CopyKind::on_device, op.stream->handle());
  }
}

void mark(cuda::Event& event, const Operation& op) {
  if (op.stream) event.record(*op.stream);
}

Device device_of(const Operation& op) {
  return op.out.defined() ? op.out.device() : op.in.defined() ? op.in.device() : kCpu;
}

}  // namespace

ThreadChannel::ThreadChannel(const std::string& name, const std::vector<int>& ranks, int rank,
                             std::shared_ptr<Job> job, std::shared_ptr<Meeting> meeting)
    : Channel(name, ranks, rank),
      job_(std::move(job)),
      meeting_(std::move(meeting)),
      parts_(ranks.size()),
      scratch_(kSmall) {}

void ThreadChannel::run(Operation& op) {
  try {
    carry_out(op);
  } catch (const std::exception& e) {
    job_->fail(e.what(), Fault::system);
    meeting_->withdraw(rank(), op);
    throw;
  }
}

bool ThreadChannel::takes(Device device) const {
  check(!device.is_cuda() || size() <= kMaxGpuRanks,
        "group {}: at most {} threads can share a GPU, got {} ranks", name(), kMaxGpuRanks, size());
  return device.is_cuda();
}

void ThreadChannel::carry_out(Operation& op) {
  const int me = rank();
  mark(op.ready, op);
  if (op.kind == Collective::send || op.kind == Collective::exchange) meeting_->show(me, op);
  if (op.kind == Collective::receive || op.kind == Collective::exchange) receive(op);
  if (op.kind == Collective::send || op.kind == Collective::exchange) meeting_->wait_taken(me, op);
  if (is_message(op.kind)) return;

  meeting_->come(me, op, true);
  check_same();
  if (op.kind == Collective::barrier || op.out.is_meta()) return meeting_->come(me, op, false);
  hold(op, &Operation::ready);
  const std::int64_t w = op.element_bytes();
  switch (op.kind) {
    case Collective::all_reduce:
      return all_reduce(op);
    case Collective::all_gather:
      for (int r = 0; r < size(); ++r)
        copy(op, element(op.out, count_before(op.out_count, r)), meeting_->at(r).in.raw(),
             count_of(op.out_count, r) * w);
      break;
    case Collective::reduce_scatter:
      combine(op, 0, count_before(op.in_count, me), count_of(op.in_count, me));
      break;
    case Collective::all_to_all:
      for (int r = 0; r < size(); ++r) {
        const Operation& other = meeting_->at(r);
        copy(op, element(op.out, count_before(op.out_count, r)),
             element(other.in, count_before(other.in_count, me)), count_of(op.out_count, r) * w);
      }
      break;
    default:
      copy(op, op.out.raw(), meeting_->at(op.from).in.raw(), op.out.numel() * w);
  }
  leave(op);
}

void ThreadChannel::hold(const Operation& op, cuda::Event Operation::*event) const {
  if (!op.stream) return;
  for (int r = 0; r < size(); ++r)
    if (r != rank()) (meeting_->at(r).*event).wait(*op.stream);
}

// Nobody goes before all have read: then a tensor may change again. On a GPU their streams wait for
// that, not the host.
void ThreadChannel::leave(Operation& op) {
  if (op.stream) {
    mark(op.read, op);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) op.read.wait(*meeting_->at(r).stream);
  }
  meeting_->come(rank(), op, false);
}

// Every rank compares the same pairs and comes to the same verdict.
void ThreadChannel::check_same() const {
  const int last = meeting_->at(0).kind == Collective::all_to_all ? size() : 1;
  for (int a = 0; a < last; ++a)
    for (int b = 0; b < size(); ++b)
      if (const std::string text = difference(meeting_->at(a), a, meeting_->at(b), b, *this);
          !text.empty())
        throw Error(text, Fault::system);
  for (int r = 1; r < size(); ++r) check_same_device(meeting_->at(0), 0, meeting_->at(r), r);
}

void ThreadChannel::check_same_device(const Operation& a, int rank_a, const Operation& b,
                                      int rank_b) const {
  if (device_of(a) == device_of(b)) return;
  const auto rank = [&](int r) { return ranks()[static_cast<std::size_t>(r)]; };
  throw Error(
      message("{}: all ranks of a group must use the same device, rank {} uses {}, rank {} {}",
              describe(a), rank(rank_a), device_of(a), rank(rank_b), device_of(b)),
      Fault::system);
}

void ThreadChannel::all_reduce(Operation& op) {
  const int me = rank();
  const std::int64_t w = op.element_bytes(), bytes = op.out.numel() * w;
  if (bytes <= kSmall && !op.stream) {
    for (int r = 0; r < size(); ++r) parts_[static_cast<std::size_t>(r)] = meeting_->at(r).in.raw();
    if (bytes > 0) combine_ranks(op.dtype(), op.reduce, scratch_.data(), parts_, op.out.numel());
    meeting_->come(me, op, false);
    copy(op, op.out.raw(), scratch_.data(), bytes);
    return;
  }
  // Each rank adds its share, into its own tensor, where nobody else reads that share ...
  const std::int64_t own = count_before(op.in_count, me);
  combine(op, own, own, count_of(op.in_count, me));
  mark(op.summed, op);
  meeting_->come(me, op, true);
  hold(op, &Operation::summed);
  // ... and then takes the other shares from their owners.
  for (int r = 0; r < size(); ++r) {
    const std::int64_t first = count_before(op.in_count, r);
    copy(op, element(op.out, first), element(meeting_->at(r).out, first),
         count_of(op.in_count, r) * w);
  }
  leave(op);
}

// Elements to, to + 1, ... of op.out <- the reduction of elements first, first + 1, ... of all
// ranks.
void ThreadChannel::combine(const Operation& op, std::int64_t to, std::int64_t first,
                            std::int64_t elements) {
  if (elements == 0) return;
  for (int r = 0; r < size(); ++r)
    parts_[static_cast<std::size_t>(r)] = element(meeting_->at(r).in, first);
  if (!op.stream)
    return combine_ranks(op.dtype(), op.reduce, element(op.out, to), parts_, elements);
  if constexpr (kWithCuda) {
    RankParts parts{{}, size()};
    for (int r = 0; r < size(); ++r) parts.at[r] = parts_[static_cast<std::size_t>(r)];
    const cuda::StreamScope scope(*op.stream);
    cuda::detail::use_device(op.stream->device().index);
    cuda::sum_ranks(op.out, to, elements, parts, op.reduce);
  }
}

void ThreadChannel::receive(Operation& op) {
  const Operation& sent = meeting_->begin_taking(rank(), op);
  std::string text = difference(sent, op.from, op, rank(), *this);
  try {
    check_same_device(sent, op.from, op, rank());
    if (text.empty() && !op.out.is_meta()) {
      if (op.stream) sent.ready.wait(*op.stream);
      copy(op, op.out.raw(), sent.in.raw(), op.out.numel() * op.element_bytes());
      if (op.stream) {
        mark(op.read, op);
        op.read.wait(*sent.stream);
      }
    }
  } catch (const Error& e) {
    text = e.what();
  }
  if (!text.empty()) job_->fail(text, Fault::system);  // before the sender goes on
  meeting_->end_taking(rank(), op);
  if (!text.empty()) throw Error(text, Fault::system);
}

}  // namespace weft::distributed
