#include "weft/distributed/thread_channel.h"

#include <cstring>

#include "weft/core/cpu/stream_copy.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/kernels/sum_ranks.h"
#include "weft/distributed/sum_ranks.h"

namespace weft::distributed {
namespace {

// Up to this size every rank adds all values itself: that is faster than waiting for the other
// shares.
constexpr std::int64_t kSmall = 8 << 10;

char* element(const Tensor& t, std::int64_t i) {
  return static_cast<char*>(t.raw()) + i * static_cast<std::int64_t>(size_of(t.dtype()));
}

// `to` may equal `from` when a tensor is used in place.
void copy(const Operation& op, void* to, const void* from, std::int64_t bytes) {
  if (to == from || bytes == 0) return;
  if (!op.stream) {
    const auto n = static_cast<std::size_t>(bytes);
    if (n < cpu::kStreamBytes)
      std::memcpy(to, from, n);
    else
      cpu::stream_copy(to, from, n);
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
  const Tensor& t = op.some_tensor();
  return t.defined() ? t.device() : kCpu;
}

}  // namespace

ThreadChannel::ThreadChannel(const std::string& name, const std::vector<int>& ranks, int rank,
                             std::shared_ptr<Job> job, std::shared_ptr<Rendezvous> rendezvous)
    : Channel(name, ranks, rank),
      job_(std::move(job)),
      rendezvous_(std::move(rendezvous)),
      parts_(ranks.size()),
      scratch_(kSmall) {}

void ThreadChannel::run(Operation& op) {
  try {
    carry_out(op);
  } catch (const std::exception& e) {
    job_->fail(e.what(), Fault::system);
    rendezvous_->leave(rank(), op);
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
  if (is_message(op.kind)) return pass_messages(op);

  rendezvous_->arrive(me, op, true);
  check_same();
  if (op.kind == Collective::barrier || op.out.is_meta()) return rendezvous_->arrive(me, op, false);
  wait_for_peers(op, &Operation::ready);
  const std::int64_t w = op.element_bytes();
  switch (op.kind) {
    case Collective::all_reduce:
      return all_reduce(op);
    case Collective::all_gather:
      for (int r = 0; r < size(); ++r)
        copy(op, element(op.out, count_before(op.out_count, r)), rendezvous_->at(r).in.raw(),
             count_of(op.out_count, r) * w);
      break;
    case Collective::reduce_scatter:
      combine(op, 0, count_before(op.in_count, me), count_of(op.in_count, me));
      break;
    case Collective::all_to_all:
      for (int r = 0; r < size(); ++r) {
        const Operation& other = rendezvous_->at(r);
        copy(op, element(op.out, count_before(op.out_count, r)),
             element(other.in, count_before(other.in_count, me)), count_of(op.out_count, r) * w);
      }
      break;
    default:
      copy(op, op.out.raw(), rendezvous_->at(op.root).in.raw(), op.out.numel() * w);
  }
  leave(op);
}

void ThreadChannel::wait_for_peers(const Operation& op, cuda::Event Operation::*event) const {
  if (!op.stream) return;
  for (int r = 0; r < size(); ++r)
    if (r != rank()) (rendezvous_->at(r).*event).wait(*op.stream);
}

// No rank continues before all have read, because a tensor may change after that. On a GPU the
// streams wait for this, not the host.
void ThreadChannel::leave(Operation& op) {
  if (op.stream) {
    mark(op.read, op);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) op.read.wait(*rendezvous_->at(r).stream);
  }
  rendezvous_->arrive(rank(), op, false);
}

// Every rank compares the same pairs and reaches the same result.
void ThreadChannel::check_same() const {
  const int last = rendezvous_->at(0).kind == Collective::all_to_all ? size() : 1;
  for (int a = 0; a < last; ++a)
    for (int b = 0; b < size(); ++b)
      if (const std::string text = difference(rendezvous_->at(a), a, rendezvous_->at(b), b, *this);
          !text.empty())
        throw Error(text, Fault::system);
  for (int r = 1; r < size(); ++r) check_same_device(rendezvous_->at(0), 0, rendezvous_->at(r), r);
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
    for (int r = 0; r < size(); ++r)
      parts_[static_cast<std::size_t>(r)] = rendezvous_->at(r).in.raw();
    if (bytes > 0) combine_ranks(op.dtype(), op.reduce, scratch_.data(), parts_, op.out.numel());
    rendezvous_->arrive(me, op, false);
    copy(op, op.out.raw(), scratch_.data(), bytes);
    return;
  }
  // Reduce-scatter: each rank adds its shard into its own tensor, where no peer reads it ...
  const std::int64_t own = count_before(op.in_count, me);
  combine(op, own, own, count_of(op.in_count, me));
  mark(op.summed, op);
  rendezvous_->arrive(me, op, true);
  wait_for_peers(op, &Operation::summed);
  // ... all-gather: then it copies the other shards from their owners.
  for (int r = 0; r < size(); ++r) {
    const std::int64_t first = count_before(op.in_count, r);
    copy(op, element(op.out, first), element(rendezvous_->at(r).out, first),
         count_of(op.in_count, r) * w);
  }
  leave(op);
}

// Elements to, to + 1, ... of op.out <- the reduction over all ranks of elements first, first + 1,
// ...
void ThreadChannel::combine(const Operation& op, std::int64_t to, std::int64_t first,
                            std::int64_t elements) {
  if (elements == 0) return;
  for (int r = 0; r < size(); ++r)
    parts_[static_cast<std::size_t>(r)] = element(rendezvous_->at(r).in, first);
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

// All are posted before any is awaited, so that ranks that send to each other do not deadlock.
void ThreadChannel::pass_messages(Operation& op) {
  rendezvous_->post_sends(rank(), op);
  received_.assign(op.receives.size(), 0);
  for (std::size_t i = 0; i < op.receives.size(); ++i) receive(op);
  rendezvous_->wait_received(rank(), op);
}

void ThreadChannel::receive(Operation& op) {
  const auto [sender, sent, index] = rendezvous_->begin_receive(rank(), op, received_);
  const Transfer& expected = op.receives[index];
  received_[index] = 1;
  std::string text = difference(*sender, *sent, op, expected, *this);
  try {
    check_same_device(*sender, expected.rank, op, rank());
    const Tensor& to = expected.tensor;
    if (text.empty() && !to.is_meta()) {
      if (op.stream) sender->ready.wait(*op.stream);
      copy(op, to.raw(), sent->tensor.raw(),
           to.numel() * static_cast<std::int64_t>(size_of(to.dtype())));
      if (op.stream) {
        mark(op.read, op);
        op.read.wait(*sender->stream);
      }
    }
  } catch (const Error& e) {
    text = e.what();
  }
  if (!text.empty()) job_->fail(text, Fault::system);  // before the sender continues
  rendezvous_->end_receive(rank(), expected.rank);
  if (!text.empty()) throw Error(text, Fault::system);
}

}  // namespace weft::distributed
