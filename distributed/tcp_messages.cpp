#include "weft/distributed/tcp_messages.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

// For the other ranks to hang up at the end; each has said before that it ends.
constexpr std::chrono::milliseconds kGoodbye{1000};

}  // namespace

TcpMessages::TcpMessages(const TcpPlace& place, double timeout_s) : rank_(place.rank) {
  TcpPeers peers = connect_ranks(place, timeout_s);
  processors_ = peers.processors;
  for (int r = 0; r < place.size; ++r)
    connections_.push_back(
        r == rank_ ? nullptr
                   : std::make_unique<TcpConnection>(
                         std::move(peers.sockets[static_cast<std::size_t>(r)]), r, counts_));
}

TcpMessages::~TcpMessages() = default;

void TcpMessages::send(int to, int tag, const void* data, std::int64_t bytes, int batch) {
  if (bytes == 0) return;
  if (to == rank_) return to_itself({tag, static_cast<const char*>(data), nullptr, bytes, batch});
  connections_[static_cast<std::size_t>(to)]->send(tag, data, bytes, batch);
}

void TcpMessages::receive(int from, int tag, void* data, std::int64_t bytes, int batch) {
  if (bytes == 0) return;
  if (from == rank_) return to_itself({tag, nullptr, static_cast<char*>(data), bytes, batch});
  connections_[static_cast<std::size_t>(from)]->receive(tag, data, bytes, batch);
}

// The first of a send and a receive waits for the other.
void TcpMessages::to_itself(const Own& own) {
  const auto other = std::find_if(own_.begin(), own_.end(), [&](const Own& o) {
    return o.tag == own.tag && !o.from == !own.to && !o.to == !own.from;
  });
  if (other == own_.end()) {
    own_.push_back(own);
    ++counts_.batch[own.batch];
    return;
  }
  if (other->bytes == own.bytes)
    std::memmove(own.to ? own.to : other->to, own.from ? own.from : other->from,
                 static_cast<std::size_t>(own.bytes));
  else
    counts_.of_batch(own.batch).trouble =
        message("a message of rank {} had {} bytes instead of {}", rank_,
                own.from ? own.bytes : other->bytes, own.to ? own.bytes : other->bytes);
  --counts_.batch[other->batch];
  counts_.of_batch(own.batch).moved = true;
  own_.erase(other);
}

void TcpMessages::pump(int wait_ms) {
  std::vector<pollfd> polled;
  std::vector<TcpConnection*> of;
  for (const auto& c : connections_) {
    if (!c || !c->is_open()) continue;
    polled.push_back({c->fd(), static_cast<short>(c->has_output() ? POLLIN | POLLOUT : POLLIN), 0});
    of.push_back(c.get());
  }
  if (polled.empty() || ::poll(polled.data(), polled.size(), wait_ms) <= 0) return;
  for (std::size_t i = 0; i < of.size(); ++i)
    if (polled[i].revents) of[i]->pump(notes_);
}

bool TcpMessages::has_moved(int queue) { return std::exchange(counts_.of[queue].moved, false); }

bool TcpMessages::waits_for(int queue, int rank) const {
  const auto is_its = [&](const Own& o) { return o.batch / kBatches == queue; };
  const TcpConnection* const c = connections_[static_cast<std::size_t>(rank)].get();
  return c ? c->is_busy(queue) : std::any_of(own_.begin(), own_.end(), is_its);
}

void TcpMessages::abandon(int queue) {
  for (const auto& c : connections_)
    if (c) c->abandon(queue);
  std::erase_if(own_, [&](const Own& o) { return o.batch / kBatches == queue; });
  std::fill_n(counts_.batch + queue * kBatches, kBatches, 0);
  counts_.of[queue] = {};
}

void TcpMessages::tell(int to, const Note& note) {
  Note own = note;
  own.from = rank_;
  if (to == rank_)
    notes_.push_back(own);
  else
    connections_[static_cast<std::size_t>(to)]->tell(own);
}

bool TcpMessages::hear(Note& note) {
  if (notes_.empty()) pump(0);
  if (notes_.empty()) return false;
  note = notes_.front();
  notes_.pop_front();
  return true;
}

void TcpMessages::finish() {
  const Until until = std::chrono::steady_clock::now() + kGoodbye;
  const auto any = [&](auto is) {
    return std::any_of(connections_.begin(), connections_.end(),
                       [&](const auto& c) { return c && c->is_open() && is(*c); });
  };
  while (std::chrono::steady_clock::now() < until &&
         any([](const TcpConnection& c) { return c.has_output(); }))
    pump(milliseconds_to(until));
  for (const auto& c : connections_)
    if (c) c->end_output();
  // To hang up before the others have read everything could lose it.
  while (std::chrono::steady_clock::now() < until && any([](const TcpConnection&) { return true; }))
    pump(milliseconds_to(until));
}

void TcpMessages::abort(int status) { std::_Exit(status); }

}  // namespace weft::distributed
