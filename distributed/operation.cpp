#include "weft/distributed/operation.h"

#include "weft/core/error.h"
#include "weft/distributed/tree.h"

namespace weft::distributed {
namespace {

std::string shape_text(const Operation& op) {
  const auto of = [](const Tensor& t) {
    return message("{} {}", weft::name(t.dtype()), t.shape());
  };
  if (op.out.defined() && op.in.defined() && !op.out.same(op.in))
    return message(", {} from {}", of(op.out), of(op.in));
  if (op.out.defined()) return message(", {}", of(op.out));
  if (op.in.defined()) return message(", {}", of(op.in));
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
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "all_to_all", "broadcast",  "exchange",
                                    "send",       "receive",    "barrier"};
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
      for_each_tree_child((rank - from + size) % size, size, [&](int) { ++children; });
      return width * children * in.numel();
    }
    case Collective::exchange:
    case Collective::send:
      return to == rank ? 0 : width * in.numel();
    case Collective::receive:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

std::string describe(const Operation& op) {
  constexpr const char* kReduces[] = {"", " max", " min"};
  const std::string root =
      op.kind == Collective::broadcast
          ? message(", from rank {}", op.channel->ranks()[static_cast<std::size_t>(op.from)])
          : "";
  return message("{}{} {} of group {}{}{}", name(op.kind), kReduces[static_cast<int>(op.reduce)],
                 op.sequence, op.channel->name(), shape_text(op), root);
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
  if (is_message(a.kind)) {
    // Only the send of one rank and the matching receive of the other must agree.
    if (a.to == rank_b &&
        (b.from != rank_a || a.in.numel() != b.out.numel() || a.in.dtype() != b.out.dtype()))
      return both("sender and receiver must agree");
    return "";
  }
  if (a.kind != b.kind || a.sequence != b.sequence || a.reduce != b.reduce || a.from != b.from)
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

}  // namespace weft::distributed
