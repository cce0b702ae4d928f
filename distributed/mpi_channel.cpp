#include "weft/distributed/mpi_channel.h"

#include <algorithm>
#include <cstring>

#include "weft/core/error.h"
#include "weft/distributed/sum_ranks.h"

namespace weft::distributed {
namespace {

// Of a share, from each rank: large enough to be fast, small enough that two pieces from everybody
// stay within some MiB.
constexpr std::int64_t kPiece = 1 << 20, kSmallPiece = 64 << 10, kStaging = 8 << 20;

using Counts = std::vector<std::int64_t>;

std::int64_t at(const Counts& counts, int rank) { return counts[static_cast<std::size_t>(rank)]; }

std::int64_t before(const Counts& counts, int rank) {
  std::int64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += at(counts, r);
  return sum;
}

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

bool is_pair(Collective kind) {
  return kind == Collective::exchange || kind == Collective::send || kind == Collective::receive;
}

void copy(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

char* bytes_of(const Tensor& t, std::int64_t element) {
  return static_cast<char*>(t.raw()) + element * static_cast<std::int64_t>(size_of(t.dtype()));
}

}  // namespace

MpiChannel::MpiChannel(const std::string& name, const std::vector<int>& ranks, int rank,
                       std::shared_ptr<MpiJob> job, int number)
    : Channel(name, ranks, rank),
      job_(std::move(job)),
      messages_(job_->messages()),
      number_(number),
      group_hash_(hash(hash(kHash, name), ranks)),
      own_prints_(ranks.size()),
      prints_(ranks.size()),
      parts_(ranks.size()) {}

void MpiChannel::run(Operation& op) {
  const std::int64_t call = is_pair(op.kind) ? -1 : op.sequence;
  tag_ = messages_.tag(number_, call);
  job_->enter(op, number_, call);
  try {
    carry_out(op);
  } catch (...) {
    job_->abandon(op);
    throw;
  }
  job_->leave();
}

void MpiChannel::carry_out(Operation& op) {
  if (is_pair(op.kind)) return pair(op);
  print_peers_.clear();
  if (size() > 1) {
    if (op.kind == Collective::all_to_all)
      compare_with_all(op);
    else
      compare_with_ring(op);
  }
  if (op.kind == Collective::barrier)
    barrier();
  else if (op.out.is_meta())
    ;  // nothing but the comparison
  else if (op.kind == Collective::all_reduce || op.kind == Collective::reduce_scatter)
    reduce(op);
  else
    move(op);
  job_->wait([&] {
    check_prints(op);
    return messages_.under_way() == 0;
  });
}

void MpiChannel::wait(const Operation& op, std::initializer_list<Batch> batches) {
  job_->wait([&] {
    check_prints(op);
    return std::all_of(batches.begin(), batches.end(),
                       [&](Batch b) { return messages_.under_way(b) == 0; });
  });
}

void MpiChannel::send(int to, const void* data, std::int64_t bytes, Batch batch) {
  if (to != rank()) job_->count(bytes);
  messages_.send(ranks()[static_cast<std::size_t>(to)], tag_, data, bytes, batch);
}

void MpiChannel::receive(int from, void* data, std::int64_t bytes, Batch batch) {
  messages_.receive(ranks()[static_cast<std::size_t>(from)], tag_, data, bytes, batch);
}

// Each rank sends every other one its version of that one's share, adds what comes for its own, and
// sends the sum to everybody. The next piece is on its way while one is added.
void MpiChannel::reduce(Operation& op) {
  const auto width = static_cast<std::int64_t>(size_of(op.dtype()));
  const bool all = op.kind == Collective::all_reduce;
  const std::int64_t others = std::max(1, size() - 1);
  const std::int64_t piece =
      std::clamp(kStaging / 2 / others, kSmallPiece, kPiece) / 64 * 64 / width;
  const std::int64_t own = at(op.in_count, rank()), own_begin = before(op.in_count, rank());
  char* staging = job_->staging(2 * others * std::min(own, piece) * width);

  const auto elements = [&](int r, std::int64_t k) {  // of piece k of the share of rank r
    return std::clamp<std::int64_t>(at(op.in_count, r) - k * piece, 0, piece);
  };
  const auto arrived = [&](int r, std::int64_t k) {
    const std::int64_t slot = k % 2 * others + (r < rank() ? r : r - 1);
    return staging + slot * std::min(own, piece) * width;
  };
  const auto send_parts = [&](std::int64_t k) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      send(r, bytes_of(op.in, before(op.in_count, r) + k * piece), elements(r, k) * width,
           k % 2 ? kSendParts2 : kSendParts);
      receive(r, arrived(r, k), elements(rank(), k) * width, k % 2 ? kParts2 : kParts);
    }
  };
  const std::int64_t longest = *std::max_element(op.in_count.begin(), op.in_count.end());
  const std::int64_t pieces = (longest + piece - 1) / piece;
  if (pieces > 0) send_parts(0);
  for (std::int64_t k = 0; k < pieces; ++k) {
    if (k + 1 < pieces) {
      wait(op, {k % 2 ? kSendParts : kSendParts2});
      send_parts(k + 1);
    }
    char* const sum = bytes_of(op.out, (all ? own_begin : 0) + k * piece);
    if (elements(rank(), k) > 0) {
      wait(op, {k % 2 ? kParts2 : kParts});
      for (int r = 0; r < size(); ++r)
        parts_[static_cast<std::size_t>(r)] =
            r == rank() ? bytes_of(op.in, own_begin + k * piece) : arrived(r, k);
      combine_ranks(op.dtype(), op.reduce, sum, parts_, elements(rank(), k));
    }
    if (!all) continue;
    const Batch sums = k % 2 ? kSums2 : kSums;
    wait(op, {sums});
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      send(r, sum, elements(rank(), k) * width, sums);
      receive(r, bytes_of(op.out, before(op.in_count, r) + k * piece), elements(r, k) * width,
              sums);
    }
  }
}

void MpiChannel::move(Operation& op) {
  const auto width = static_cast<std::int64_t>(size_of(op.dtype()));
  if (op.kind == Collective::broadcast) {
    const std::int64_t bytes = op.out.numel() * width;
    if (rank() != op.from) return receive(op.from, op.out.raw(), bytes, kData);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) send(r, op.out.raw(), bytes, kData);
    return;
  }
  // What goes to each rank: all of `in`, or its own part of it. Beginning with the next rank, so
  // that not all send to the same one.
  const bool gather = op.kind == Collective::all_gather;
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    receive(from, bytes_of(op.out, before(op.out_count, from)), at(op.out_count, from) * width,
            kData);
    if (gather)
      send(to, op.in.raw(), op.in.numel() * width, kData);
    else
      send(to, bytes_of(op.in, before(op.in_count, to)), at(op.in_count, to) * width, kData);
  }
  const std::int64_t own = before(op.out_count, rank());
  copy(bytes_of(op.out, own), bytes_of(op.in, gather ? 0 : before(op.in_count, rank())),
       at(op.out_count, rank()) * width);
}

// Rounds of 1, 2, 4, ... ranks ahead: in the end each rank has heard of every other one.
void MpiChannel::barrier() {
  char out = 0, in = 0;
  for (int ahead = 1; ahead < size(); ahead *= 2) {
    messages_.send(ranks()[static_cast<std::size_t>((rank() + ahead) % size())], tag_, &out, 1,
                   kSums);
    receive((rank() + size() - ahead) % size(), &in, 1, kSums);
    job_->wait([&] { return messages_.under_way(kSums) == 0; });
  }
}

void MpiChannel::pair(Operation& op) {
  const auto width = static_cast<std::int64_t>(size_of(op.dtype()));
  print_peers_.clear();
  const bool moves = !(op.out ? op.out : op.in).is_meta();
  if (op.from >= 0) {
    expect_print(op.from, 0);
    if (moves) receive(op.from, op.out.raw(), op.out.numel() * width, kData);
  }
  if (op.to >= 0) {
    send_print(op, op.to, 0);
    if (moves) send(op.to, op.in.raw(), op.in.numel() * width, kData);
  }
  job_->wait([&] {
    check_prints(op);
    return messages_.under_way() == 0;
  });
}

CallPrint MpiChannel::print_for(const Operation& op, int peer) const {
  CallPrint p;
  p.kind = op.kind;
  p.reduce = op.reduce;
  p.dtype = op.dtype();
  p.has_out = static_cast<bool>(op.out);
  p.has_in = static_cast<bool>(op.in);
  p.in_place = op.out && op.in && op.out.same(op.in);
  p.from = op.from;
  p.to = op.to;
  p.sequence = op.sequence;
  p.group = group_hash_;
  if (op.kind == Collective::all_to_all) {
    p.sends = at(op.in_count, peer);
    p.expects = at(op.out_count, peer);
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
  const bool pairs = is_pair(op.kind);
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
  // The other rank's operation, as far as it matters, for the one comparison that all backends use.
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
