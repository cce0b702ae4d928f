#include "weft/distributed/operation.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/tree.h"

namespace weft::distributed {
namespace {

std::string shape_text(const Tensor& t) {
  return message("{} {}", weft::name(t.dtype()), t.shape());
}

std::string shape_text(const Operation& op) {
  if (op.kind == Collective::batch)
    return message(", {} sends and {} receives", op.sends.size(), op.receives.size());
  const bool messages = is_message(op.kind);
  const Tensor out = !messages ? op.out : op.receives.empty() ? Tensor() : op.receives[0].tensor;
  const Tensor in = !messages ? op.in : op.sends.empty() ? Tensor() : op.sends[0].tensor;
  if (out.defined() && in.defined() && !out.same(in))
    return message(", {} from {}", shape_text(out), shape_text(in));
  if (out.defined()) return ", " + shape_text(out);
  if (in.defined()) return ", " + shape_text(in);
  return "";
}

std::int64_t sum_without(const std::vector<std::int64_t>& counts, int own) {
  std::int64_t sum = 0;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r)
    if (r != own) sum += counts[static_cast<std::size_t>(r)];
  return sum;
}

}  // namespace

const char* name(Collective c) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast",  "exchange",   "send",           "receive",
                                    "batch",      "barrier"};
  return kNames[static_cast<int>(c)];
}

std::int64_t Operation::bytes_sent(int rank, int size) const {
  const auto width = static_cast<std::int64_t>(size_of(dtype()));
  if (size == 1) return 0;
  switch (kind) {
    case Collective::all_reduce:  // shards to their owners, and the sum of its own shard to all
      return width *
             (sum_without(in_count, rank) + (size - 1) * in_count[static_cast<std::size_t>(rank)]);
    case Collective::all_gather:
      return width * (size - 1) * in.numel();
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return width * sum_without(in_count, rank);
    case Collective::broadcast: {  // as over MPI: down a tree
      std::int64_t children = 0;
      for_each_tree_child((rank - root + size) % size, size, [&](int) { ++children; });
      return width * children * in.numel();
    }
    case Collective::exchange:
    case Collective::send:
    case Collective::receive:
    case Collective::batch: {
      std::int64_t bytes = 0;
      for (const Transfer& t : sends)
        if (t.rank != rank)
          bytes += t.tensor.numel() * static_cast<std::int64_t>(size_of(t.tensor.dtype()));
      return bytes;
    }
    case Collective::barrier:
      return 0;
  }
  return 0;
}

bool Operation::needs(int rank) const {
  if (!is_message(kind)) return true;
  const auto is_it = [&](const Transfer& t) { return t.rank == rank; };
  return std::any_of(sends.begin(), sends.end(), is_it) ||
         std::any_of(receives.begin(), receives.end(), is_it);
}

std::string describe(const Operation& op) {
  constexpr const char* kReduces[] = {"", " max", " min"};
  const std::string root =
      op.kind == Collective::broadcast
          ? message(", from rank {}", op.channel->ranks()[static_cast<std::size_t>(op.root)])
          : "";
  return message("{}{} {} of group {}{}{}", name(op.kind), kReduces[static_cast<int>(op.reduce)],
                 op.sequence, op.channel->name(), shape_text(op), root);
}

std::string describe(const Operation& op, const Transfer& transfer) {
  return message("{} {} of group {}, {}", name(op.kind), op.sequence, op.channel->name(),
                 shape_text(transfer.tensor));
}

std::string difference(const Operation& a, int rank_a, const Operation& b, int rank_b,
                       const Channel& channel) {
  const auto rank = [&](int r) { return channel.ranks()[static_cast<std::size_t>(r)]; };
  const auto both = [&](const char* rule) {
    return message("{}: rank {} called {}, rank {} called {}", rule, rank(rank_a), describe(a),
                   rank(rank_b), describe(b));
  };
  const auto at = [](const std::vector<std::int64_t>& v, int r) {
    return v[static_cast<std::size_t>(r)];
  };
  if (a.kind != b.kind || a.sequence != b.sequence || a.reduce != b.reduce || a.root != b.root)
    return both("all ranks of a group must make the same calls");
  if (a.kind != Collective::barrier && a.dtype() != b.dtype())
    return both("all ranks of a group must give the same dtype");
  if (a.kind == Collective::all_to_all) {
    if (at(a.in_count, rank_b) != at(b.out_count, rank_a))
      return both(message("rank {} must expect what rank {} sends, {} elements, got {}",
                          rank(rank_b), rank(rank_a), at(a.in_count, rank_b),
                          at(b.out_count, rank_a))
                      .c_str());
    return "";
  }
  if (a.out_count != b.out_count || a.in_count != b.in_count)
    return both("all ranks of a group must give the same rows");
  return "";
}

std::string difference(const Operation& sender, const Transfer& sent, const Operation& receiver,
                       const Transfer& expected, const Channel& channel) {
  if (sent.tensor.numel() == expected.tensor.numel() &&
      sent.tensor.dtype() == expected.tensor.dtype())
    return "";
  const auto rank = [&](int r) { return channel.ranks()[static_cast<std::size_t>(r)]; };
  return message("sender and receiver must agree: rank {} called {}, rank {} called {}",
                 rank(expected.rank), describe(sender, sent), rank(sent.rank),
                 describe(receiver, expected));
}

}  // namespace weft::distributed
