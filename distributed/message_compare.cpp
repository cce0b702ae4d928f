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

std::uint64_t MessageChannel::hash_of(const GroupCall& call) {
  return hash(hash(kHash, call.name), call.ranks());
}

CallPrint MessageChannel::print_for(const Operation& op, int peer) const {
  CallPrint p;
  p.kind = op.kind;
  p.reduce = op.reduce;
  p.dtype = op.dtype();
  p.has_out = op.out.defined();
  p.has_in = op.in.defined();
  p.in_place = op.out.defined() && op.in.defined() && op.out.same(op.in);
  p.root = op.root;
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

CallPrint MessageChannel::print_for(const Operation& op, const Transfer& transfer) const {
  const Tensor& t = transfer.tensor;
  CallPrint p;
  p.kind = op.kind;
  p.dtype = t.dtype();
  p.sequence = op.sequence;
  p.group = group_hash_;
  p.has_in = true;
  p.in_dims = t.ndim();
  std::copy(t.shape().begin(), t.shape().end(), p.in_shape);
  return p;
}

void MessageChannel::send_print(const CallPrint& print, int to, std::size_t slot) {
  own_prints_[slot] = print;
  queue_.send(ranks()[static_cast<std::size_t>(to)], tag_, &own_prints_[slot], sizeof print, kData);
}

void MessageChannel::expect_print(int from) {
  receive(from, &prints_[print_peers_.size()], sizeof(CallPrint), kPrints);
  print_peers_.push_back(from);
}

void MessageChannel::compare_with_ring(const Operation& op) {
  const int next = (rank() + 1) % size();
  expect_print((rank() + size() - 1) % size());
  send_print(print_for(op, next), next, 0);
}

void MessageChannel::compare_with_all(const Operation& op) {
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size();
    expect_print((rank() + size() - i) % size());
    send_print(print_for(op, to), to, static_cast<std::size_t>(i - 1));
  }
}

void MessageChannel::check_prints(const Operation& op) {
  if (print_peers_.empty() || queue_.under_way(kPrints) > 0 || queue_.is_in_trouble()) return;
  for (std::size_t i = 0; i < print_peers_.size(); ++i) {
    check_group(prints_[i], print_peers_[i]);
    if (is_message(op.kind))
      check_message(op, prints_[i], op.receives[i]);
    else
      check_print(op, prints_[i], print_peers_[i]);
  }
  print_peers_.clear();
}

void MessageChannel::check_group(const CallPrint& print, int peer) const {
  if (print.group == group_hash_) return;
  job_->fail(message(
      "world: every rank must make the same calls of group() in the same order: call {}, group {} "
      "of rank {}, is another one on rank {}",
      number_, name(), ranks()[static_cast<std::size_t>(rank())],
      ranks()[static_cast<std::size_t>(peer)]));
}

void MessageChannel::check_message(const Operation& op, const CallPrint& print,
                                   const Transfer& expected) {
  Operation sender;
  sender.kind = print.kind;
  sender.sequence = print.sequence;
  sender.channel = op.channel;
  const Transfer sent{shape_only(print.in_dims, print.in_shape, print.dtype), rank()};
  if (const std::string text = difference(sender, sent, op, expected, *this); !text.empty())
    job_->fail(text);
}

void MessageChannel::check_print(const Operation& op, const CallPrint& print, int peer) {
  const CallPrint own = print_for(op, peer);
  if (print.kind == own.kind && print.reduce == own.reduce && print.dtype == own.dtype &&
      print.root == own.root && print.sequence == own.sequence && print.counts == own.counts &&
      print.sends == own.expects && print.expects == own.sends)
    return;
  // The part of the other rank's operation that difference() compares; all backends use it.
  Operation other;
  other.kind = print.kind;
  other.reduce = print.reduce;
  other.sequence = print.sequence;
  other.channel = op.channel;
  other.root = print.root;
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
  std::string text = peer < rank() ? difference(other, peer, op, rank(), *this)
                                   : difference(op, rank(), other, peer, *this);
  if (text.empty()) text = difference(other, peer, op, rank(), *this);
  if (text.empty()) text = difference(op, rank(), other, peer, *this);
  if (!text.empty()) job_->fail(text);
}

}  // namespace weft::distributed
