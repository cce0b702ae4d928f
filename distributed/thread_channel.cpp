#include "weft/distributed/thread_channel.h"

#include <cstring>

#include "weft/distributed/sum_ranks.h"

namespace weft::distributed {
namespace {

// Every rank adds up so few bytes for itself: that is faster than to wait for another one's share.
constexpr std::int64_t kSmall = 8 << 10;

std::int64_t width(const Operation& op) { return static_cast<std::int64_t>(size_of(op.dtype())); }

std::int64_t before(const std::vector<std::int64_t>& counts, int rank) {
  std::int64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[static_cast<std::size_t>(r)];
  return sum;
}
std::int64_t at(const std::vector<std::int64_t>& counts, int rank) {
  return counts[static_cast<std::size_t>(rank)];
}

char* element(const Tensor& t, std::int64_t i) {
  return static_cast<char*>(t.raw()) + i * static_cast<std::int64_t>(size_of(t.dtype()));
}

// `to` may be `from`, when a tensor is used in place.
void copy(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
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

void ThreadChannel::carry_out(Operation& op) {
  const int me = rank();
  if (op.kind == Collective::send || op.kind == Collective::exchange) meeting_->show(me, op);
  if (op.kind == Collective::receive || op.kind == Collective::exchange) receive(op);
  if (op.kind == Collective::send || op.kind == Collective::exchange) meeting_->wait_taken(me, op);
  if (is_message(op.kind)) return;

  meeting_->come(me, op, true);
  check_same();
  const bool moves = op.kind != Collective::barrier && !op.out.is_meta();
  if (op.kind == Collective::all_reduce && moves) return all_reduce(op);
  if (moves) {
    const std::int64_t w = width(op);
    switch (op.kind) {
      case Collective::all_gather:
        for (int r = 0; r < size(); ++r)
          copy(element(op.out, before(op.out_count, r)), meeting_->at(r).in.raw(),
               at(op.out_count, r) * w);
        break;
      case Collective::reduce_scatter:
        combine(op, op.out.raw(), before(op.in_count, me), at(op.in_count, me));
        break;
      case Collective::all_to_all:
        for (int r = 0; r < size(); ++r) {
          const Operation& other = meeting_->at(r);
          copy(element(op.out, before(op.out_count, r)),
               element(other.in, before(other.in_count, me)), at(op.out_count, r) * w);
        }
        break;
      default:
        copy(op.out.raw(), meeting_->at(op.from).in.raw(), op.out.numel() * w);
    }
  }
  // Nobody goes before all have read: then a tensor may change again.
  meeting_->come(me, op, false);
}

// Every rank compares the same pairs and comes to the same verdict.
void ThreadChannel::check_same() const {
  const int last = meeting_->at(0).kind == Collective::all_to_all ? size() : 1;
  for (int a = 0; a < last; ++a)
    for (int b = 0; b < size(); ++b)
      if (const std::string text = difference(meeting_->at(a), a, meeting_->at(b), b, *this);
          !text.empty())
        throw Error(text, Fault::system);
}

void ThreadChannel::all_reduce(Operation& op) {
  const int me = rank();
  const std::int64_t w = width(op), bytes = op.out.numel() * w;
  if (bytes <= kSmall) {
    combine(op, scratch_.data(), 0, op.out.numel());
    meeting_->come(me, op, false);
    copy(op.out.raw(), scratch_.data(), bytes);
    return;
  }
  // Each rank adds its share, into its own tensor, where nobody else reads that share ...
  const std::int64_t own = before(op.in_count, me);
  combine(op, element(op.out, own), own, at(op.in_count, me));
  meeting_->come(me, op, true);
  // ... and then takes the other shares from their owners.
  for (int r = 0; r < size(); ++r) {
    const std::int64_t first = before(op.in_count, r);
    copy(element(op.out, first), element(meeting_->at(r).out, first), at(op.in_count, r) * w);
  }
  meeting_->come(me, op, false);
}

void ThreadChannel::combine(const Operation& op, void* to, std::int64_t first,
                            std::int64_t elements) {
  if (elements == 0) return;
  for (int r = 0; r < size(); ++r)
    parts_[static_cast<std::size_t>(r)] = element(meeting_->at(r).in, first);
  combine_ranks(op.dtype(), op.reduce, to, parts_, elements);
}

void ThreadChannel::receive(const Operation& op) {
  const Operation& sent = meeting_->begin_taking(rank(), op);
  const std::string text = difference(sent, op.from, op, rank(), *this);
  if (text.empty() && !op.out.is_meta())
    copy(op.out.raw(), sent.in.raw(), op.out.numel() * width(op));
  if (!text.empty()) job_->fail(text, Fault::system);  // before the sender goes on
  meeting_->end_taking(rank(), op);
  if (!text.empty()) throw Error(text, Fault::system);
}

}  // namespace weft::distributed
