// The ranks of a group compare their calls.
#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/message_channel.h"

namespace weft::distributed {
namespace {

// FNV-1a.
constexpr std::uint64_t kHash = 14695981039346656037u;
template <class Numbers>
std::uint64_t hash(std::uint64_t h, const Numbers& numbers) {
  for (const auto n : numbers) h = (h ^ static_cast<std::uint64_t>(n)) * 1099511628211u;
  return h;
}

Tensor shape_only(int dims, const std::int64_t* shape, DType dtype) {
  return Tensor::empty(Shape(shape, shape + dims), dtype, kMeta);
}

}  // namespace

std::uint64_t MpiChannel::hash_of(const std::string& name, const std::vector<int>& ranks) {
  return hash(hash(kHash, name), ranks);
}

CallPrint MpiChannel::print_for(const Operation& op, int peer) const {
  CallPrint p;
  p.kind = op.kind;
  p.reduce = op.reduce;
  p.dtype = op.dtype();
  p.has_out = op.out.defined();
  p.has_in = op.in.defined();
  p.in_place = op.out.defined() && op.in.defined() && op.out.same(op.in);
  p.from = op.from;
  p.to = op.to;
  p.sequence = op.sequence;
  p.group = group_hash_;
  if (op.kind == Collective::all_to_all) {
    p.sends = count_of(op.in_count, peer);
    p.expects = count_of(op.out_count, peer);
  } else {
    p.counts = hash(hash(kHash, op.out_count), op.in_count);
  }
  if (p.has_out) {
    p.out_dims = op.out.ndim();
    std::copy(op.out.shape().begin(), op.out.shape().end(), p.out_shape);
  }
  if (p.has_in) {
    p.in_dims = op.in.ndim();
    std::copy(op.in.shape().begin(), op.in.shape().end(), p.in_shape);
  }
  return p;
}

void MpiChannel::send_print(const Operation& op, int to, int slot) {
  CallPrint& print = own_prints_[static_cast<std::size_t>(slot)];
  print = print_for(op, to);
  messages_.send(ranks()[static_cast<std::size_t>(to)], tag_, &print, sizeof print, kData);
}

void MpiChannel::expect_print(int from, int slot) {
  receive(from, &prints_[static_cast<std::size_t>(slot)], sizeof(CallPrint), kPrints);
  print_peers_.push_back(from);
}

void MpiChannel::compare_with_ring(const Operation& op) {
  expect_print((rank() + size() - 1) % size(), 0);
  send_print(op, (rank() + 1) % size(), 0);
}

void MpiChannel::compare_with_all(const Operation& op) {
  for (int i = 1; i < size(); ++i) {
    expect_print((rank() + size() - i) % size(), i - 1);
    send_print(op, (rank() + i) % size(), i - 1);
  }
}

void MpiChannel::check_prints(const Operation& op) {
  if (print_peers_.empty() || messages_.under_way(kPrints) > 0 || !messages_.trouble().empty())
    return;
  for (std::size_t i = 0; i < print_peers_.size(); ++i)
    check_print(op, prints_[i], print_peers_[i]);
  print_peers_.clear();
}

void MpiChannel::check_print(const Operation& op, const CallPrint& print, int peer) {
  const CallPrint own = print_for(op, peer);
  const bool pairs = is_message(op.kind);
  if (print.group != own.group)
    job_->fail(message(
        "world: every rank must make the same calls of group() in the same order: call {}, group "
        "{} of rank {}, is another one on rank {}",
        number_, name(), ranks()[static_cast<std::size_t>(rank())],
        ranks()[static_cast<std::size_t>(peer)]));
  if (!pairs && print.kind == own.kind && print.reduce == own.reduce && print.dtype == own.dtype &&
      print.from == own.from && print.sequence == own.sequence && print.counts == own.counts &&
      print.sends == own.expects && print.expects == own.sends)
    return;
  // The part of the other rank's operation that difference() compares; all backends use it.
  Operation other;
  other.kind = print.kind;
  other.reduce = print.reduce;
  other.sequence = print.sequence;
  other.channel = op.channel;
  other.from = print.from;
  other.to = print.to;
  if (print.has_out) other.out = shape_only(print.out_dims, print.out_shape, print.dtype);
  if (print.has_in)
    other.in = print.in_place ? other.out : shape_only(print.in_dims, print.in_shape, print.dtype);
  if (print.kind == Collective::all_to_all) {
    other.out_count.resize(static_cast<std::size_t>(size()));
    other.in_count.resize(static_cast<std::size_t>(size()));
    other.out_count[static_cast<std::size_t>(rank())] = print.expects;
    other.in_count[static_cast<std::size_t>(rank())] = print.sends;
  } else if (print.counts == own.counts) {
    other.out_count = op.out_count;
    other.in_count = op.in_count;
  }
  std::string text;
  if (pairs) {
    text = difference(other, peer, op, rank(), *this);
  } else {
    text = peer < rank() ? difference(other, peer, op, rank(), *this)
                         : difference(op, rank(), other, peer, *this);
    if (text.empty()) text = difference(other, peer, op, rank(), *this);
    if (text.empty()) text = difference(op, rank(), other, peer, *this);
  }
  if (!text.empty()) job_->fail(text);
}

}  // namespace weft::distributed
