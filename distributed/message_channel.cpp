#include "weft/distributed/message_channel.h"

#include <algorithm>
#include <cstring>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/sum_ranks.h"
#include "weft/distributed/tree.h"

namespace weft::distributed {
namespace {

// Bytes of a shard that each rank sends at a time: large enough to be fast, small enough that two
// pieces from every rank fit in a few MiB.
constexpr std::int64_t kPiece = 1 << 20, kSmallPiece = 64 << 10, kStaging = 8 << 20;

using Counts = std::vector<std::int64_t>;

void copy(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

MessageChannel::MessageChannel(const GroupCall& call, std::shared_ptr<MessageJob> job)
    : Channel(call.name, call.ranks(), call.rank),
      job_(std::move(job)),
      queue_(job_->queue(call.queue)),
      number_(call.number),
      group_hash_(hash_of(call)),
      own_prints_(call.ranks().size()),
      prints_(call.ranks().size()),
      parts_(call.ranks().size()) {}

void MessageChannel::run(Operation& op) {
  if (op.stream)
    run_over_host(op);
  else
    run_on_host(op);
}

// Copies run in the caller's stream: work that the caller enqueues after wait() follows the result,
// and memory that it frees is reused only after that.
void MessageChannel::run_over_host(const Operation& op) {
  const cuda::StreamScope scope(*op.stream);
  Operation& host = on_host_;
  host.kind = op.kind;
  host.reduce = op.reduce;
  host.sequence = op.sequence;
  host.number = op.number;
  host.channel = op.channel;
  host.out_count = op.out_count;
  host.in_count = op.in_count;
  host.lane = op.lane;
  host.root = op.root;
  const CategoryScope category(Category::communication);
  const auto on_host = [](const Tensor& t) { return Tensor::empty(t.shape(), t.dtype()); };
  for (const Transfer& t : op.sends) {
    host.sends.push_back({on_host(t.tensor), t.rank});
    cuda::detail::copy_across(t.tensor, host.sends.back().tensor);
  }
  for (const Transfer& t : op.receives) host.receives.push_back({on_host(t.tensor), t.rank});
  if (op.in.defined()) host.in = on_host(op.in);
  const bool in_place = op.out.defined() && op.in.defined() && op.out.same(op.in);
  if (op.out.defined()) host.out = in_place ? host.in : on_host(op.out);
  if (op.in.defined()) cuda::detail::copy_across(op.in, host.in);  // waits for the GPU
  run_on_host(host);
  if (op.out.defined()) cuda::detail::copy_across(host.out, op.out);
  for (std::size_t i = 0; i < op.receives.size(); ++i)
    cuda::detail::copy_across(host.receives[i].tensor, op.receives[i].tensor);
  host.in = host.out = {};
  host.sends.clear();
  host.receives.clear();
  host.channel.reset();
}

void MessageChannel::run_on_host(Operation& op) {
  const std::int64_t call = is_message(op.kind) ? -1 : op.sequence;
  tag_ = queue_.tag(op.lane, number_, call);
  queue_.enter(op, number_, call);
  try {
    carry_out(op);
  } catch (const std::exception& e) {
    queue_.abandon(op, e.what());
    throw;
  }
  queue_.leave();
}

void MessageChannel::carry_out(Operation& op) {
  if (is_message(op.kind)) return pass_messages(op);
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
    ;  // only the comparison
  else if (op.kind == Collective::all_reduce || op.kind == Collective::reduce_scatter)
    reduce(op);
  else if (op.kind == Collective::broadcast)
    broadcast(op);
  else
    move(op);
  queue_.wait([&] {
    check_prints(op);
    return queue_.under_way() == 0;
  });
}

void MessageChannel::wait(const Operation& op, std::initializer_list<Batch> batches) {
  queue_.wait([&] {
    check_prints(op);
    return std::all_of(batches.begin(), batches.end(),
                       [&](Batch b) { return queue_.under_way(b) == 0; });
  });
}

void MessageChannel::send(int to, const void* data, std::int64_t bytes, Batch batch) {
  if (to != rank()) job_->count(bytes);
  queue_.send(ranks()[static_cast<std::size_t>(to)], tag_, data, bytes, batch);
}

void MessageChannel::receive(int from, void* data, std::int64_t bytes, Batch batch) {
  queue_.receive(ranks()[static_cast<std::size_t>(from)], tag_, data, bytes, batch);
}

// Each rank sends every peer that peer's shard, adds what it receives for its own shard, and sends
// the sum to all. The next piece is in flight while one is added.
void MessageChannel::reduce(Operation& op) {
  const auto width = static_cast<std::int64_t>(size_of(op.dtype()));
  const bool all = op.kind == Collective::all_reduce;
  const std::int64_t others = std::max(1, size() - 1);
  const std::int64_t piece =
      std::clamp(kStaging / 2 / others, kSmallPiece, kPiece) / 64 * 64 / width;
  const std::int64_t own = count_of(op.in_count, rank()),
                     own_begin = count_before(op.in_count, rank());
  char* staging = queue_.staging(2 * others * std::min(own, piece) * width);

  const auto elements = [&](int r, std::int64_t k) {  // of piece k of rank r's shard
    return std::clamp<std::int64_t>(count_of(op.in_count, r) - k * piece, 0, piece);
  };
  const auto arrived = [&](int r, std::int64_t k) {
    const std::int64_t slot = k % 2 * others + (r < rank() ? r : r - 1);
    return staging + slot * std::min(own, piece) * width;
  };
  const auto send_parts = [&](std::int64_t k) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      send(r, bytes_of(op.in, count_before(op.in_count, r) + k * piece), elements(r, k) * width,
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
    // In place, the sums of the other shards arrive where this rank's parts of them were sent from.
    wait(op, {sums, k % 2 ? kSendParts2 : kSendParts});
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      send(r, sum, elements(rank(), k) * width, sums);
      receive(r, bytes_of(op.out, count_before(op.in_count, r) + k * piece), elements(r, k) * width,
              sums);
    }
  }
}

// Down a binomial tree, in pieces: a rank passes a piece on while the next one arrives.
void MessageChannel::broadcast(Operation& op) {
  const std::int64_t bytes = op.out.numel() * op.element_bytes();
  char* const data = bytes_of(op.out, 0);
  const int place = (rank() - op.root + size()) % size();
  const auto at = [&](int other) { return (other + op.root) % size(); };
  const auto piece = [&](std::int64_t begin) { return std::min(kPiece, bytes - begin); };
  const auto expect = [&](std::int64_t begin) {
    if (place > 0 && begin < bytes)
      receive(at(tree_parent(place)), data + begin, piece(begin),
              begin / kPiece % 2 ? kParts2 : kParts);
  };
  expect(0);
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    expect(begin + kPiece);
    const bool odd = begin / kPiece % 2;
    const Batch sends = odd ? kSendParts2 : kSendParts;
    wait(op, {odd ? kParts2 : kParts, sends});
    for_each_tree_child(place, size(),
                        [&](int child) { send(at(child), data + begin, piece(begin), sends); });
  }
}

void MessageChannel::move(Operation& op) {
  const auto width = static_cast<std::int64_t>(size_of(op.dtype()));
  // Each rank gets all of `in`, or its own part of it. Start with the next rank, so that the ranks
  // do not all send to the same one.
  const bool gather = op.kind == Collective::all_gather;
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    receive(from, bytes_of(op.out, count_before(op.out_count, from)),
            count_of(op.out_count, from) * width, kData);
    if (gather)
      send(to, op.in.raw(), op.in.numel() * width, kData);
    else
      send(to, bytes_of(op.in, count_before(op.in_count, to)), count_of(op.in_count, to) * width,
           kData);
  }
  const std::int64_t own = count_before(op.out_count, rank());
  copy(bytes_of(op.out, own), bytes_of(op.in, gather ? 0 : count_before(op.in_count, rank())),
       count_of(op.out_count, rank()) * width);
}

// Dissemination barrier: in rounds of 1, 2, 4, ... ranks ahead, every rank hears of every other
// one.
void MessageChannel::barrier() {
  char out = 0, in = 0;
  for (int ahead = 1; ahead < size(); ahead *= 2) {
    queue_.send(ranks()[static_cast<std::size_t>((rank() + ahead) % size())], tag_, &out, 1, kSums);
    receive((rank() + size() - ahead) % size(), &in, 1, kSums);
    queue_.wait([&] { return queue_.under_way(kSums) == 0; });
  }
}

void MessageChannel::pass_messages(Operation& op) {
  const auto bytes = [](const Tensor& t) {
    return t.numel() * static_cast<std::int64_t>(size_of(t.dtype()));
  };
  const bool moves = !op.is_meta();
  print_peers_.clear();
  prints_.resize(std::max(prints_.size(), op.receives.size()));
  own_prints_.resize(std::max(own_prints_.size(), op.sends.size()));
  for (const Transfer& t : op.receives) {
    expect_print(t.rank);
    if (moves) receive(t.rank, t.tensor.raw(), bytes(t.tensor), kData);
  }
  for (std::size_t i = 0; i < op.sends.size(); ++i) {
    const Transfer& t = op.sends[i];
    send_print(print_for(op, t), t.rank, i);
    if (moves) send(t.rank, t.tensor.raw(), bytes(t.tensor), kData);
  }
  queue_.wait([&] {
    check_prints(op);
    return queue_.under_way() == 0;
  });
}

}  // namespace weft::distributed
