#include "weft/distributed/tcp_connect.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>

#include "weft/core/cgroup.h"
#include "weft/core/default_threads.h"
#include "weft/core/error.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/distributed/processor_share.h"
#include "weft/distributed/tcp_lobby.h"

namespace weft::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Seats = std::vector<TcpSeat>;

// Least time in seconds for all ranks to come, for busy machines.
constexpr double kLeastSeconds = 10;
// For rank 0's answer after its own time is over.
constexpr std::chrono::seconds kAnswerTime{5};

std::atomic<bool> has_tried{false};

std::optional<int> variable(const char* name) {
  const char* const text = std::getenv(name);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const long n = std::strtol(text, &end, 10);
  check(*text && !*end && n >= 0 && n < (1L << 30), "tcp_world: {} must be a number, got '{}'",
        name, text);
  return static_cast<int>(n);
}

Processors processors_of(const TcpHello& hello) {
  Processors set;
  for (std::size_t p = 0; p < set.size(); ++p) set[p] = (hello.processors[p / 64] >> (p % 64)) & 1;
  return set;
}

TcpHello own_hello(const TcpPlace& place, int port) {
  auto hello = with_magic<TcpHello>();
  hello.rank = place.rank;
  hello.size = place.size;
  hello.port = static_cast<std::uint32_t>(port);
  place.token.copy(hello.token, sizeof hello.token - 1);
  machine_name().copy(hello.machine, sizeof hello.machine - 1);
  const Processors own = own_processors();
  for (std::size_t p = 0; p < own.size(); ++p)
    if (own[p]) hello.processors[p / 64] |= std::uint64_t{1} << (p % 64);
  return hello;
}

// Divides each machine's processors among its ranks.
void share_processors(const std::vector<TcpHello>& ranks, Seats& seats) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::vector<Processors> allowed;
    std::size_t own = 0;
    for (std::size_t other = 0; other < ranks.size(); ++other) {
      if (std::strncmp(ranks[other].machine, ranks[r].machine, sizeof ranks[r].machine) != 0)
        continue;
      if (other == r) own = allowed.size();
      allowed.push_back(processors_of(ranks[other]));
    }
    seats[r].processors = processor_share(allowed, own);
    seats[r].neighbours = static_cast<int>(allowed.size());
  }
}

// A quota applies to all ranks of a machine together: they are started in one cgroup.
int processors_at(const TcpSeat& seat) {
  const auto quota = weft::detail::cgroup_limits().processors;
  if (!quota) return seat.processors;
  return std::min(seat.processors, std::max(1, static_cast<int>(*quota / seat.neighbours)));
}

// Rank 0: waits for all others, and tells each where they are.
void receive_guests(const TcpPlace& place, double limit, Until until, TcpPeers& peers) {
  Socket listener = listen_at(place.master, place.size);
  const std::string at = own_end(listener).host;
  const bool is_hidden = is_loopback(at) && !is_loopback(place.master.host);
  if (is_hidden && variable("LOCAL_WORLD_SIZE").value_or(place.size) < place.size)
    log_line(
        message("tcp_world: MASTER_ADDR {} is {} on its own machine (see /etc/hosts), so ranks "
                "of other machines cannot come",
                place.master.host, at));
  TcpLobby lobby(std::move(listener), place, 1, true);
  auto answer = with_magic<TcpWelcome>();
  answer.size = place.size;
  if (!lobby.wait(until)) {
    const std::string why = message(
        "{} did not come to {} within {} s{}", lobby.missing(), place.master.text(), limit,
        is_hidden ? message("; {} is {} here, where no other machine comes", place.master.host, at)
                  : std::string());
    answer.answer = TcpWelcome::Answer::somebody_missing;
    why.copy(answer.text, sizeof answer.text - 1);
    for (auto& [rank, guest] : lobby.guests()) send_some(guest.socket, &answer, sizeof answer);
    check_system(false, "tcp_world: {}", why);
  }
  std::vector<TcpHello> hellos{own_hello(place, place.master.port)};
  Seats seats(1);
  for (const auto& [rank, guest] : lobby.guests()) {  // by rank
    hellos.push_back(guest.hello);
    seats.emplace_back().port = guest.hello.port;
    other_end(guest.socket).host.copy(seats.back().host, sizeof seats.back().host - 1);
  }
  share_processors(hellos, seats);
  for (auto& [rank, guest] : lobby.guests()) {
    check_system(send_all(guest.socket, &answer, sizeof answer, until + kAnswerTime) &&
                     send_all(guest.socket, seats.data(), seats.size() * sizeof seats[0],
                              until + kAnswerTime),
                 "tcp_world: rank {} was lost at the start", rank);
    peers.sockets[static_cast<std::size_t>(rank)] = std::move(guest.socket);
  }
  peers.processors = processors_at(seats[0]);
}

Seats ask_rank_0(const TcpPlace& place, const Socket& socket, const TcpHello& hello, Until until) {
  const std::string at = place.master.text();
  TcpWelcome answer;
  check_system(send_all(socket, &hello, sizeof hello, until) &&
                   receive_all(socket, &answer, sizeof answer, until + kAnswerTime),
               "tcp_world: {} did not answer rank {}: rank 0 has ended or is another program", at,
               place.rank);
  check(std::memcmp(answer.magic, kTcpMagic, sizeof kTcpMagic) == 0,
        "tcp_world: what rank {} found at {} is no rank 0 of Weft", place.rank, at);
  answer.text[sizeof answer.text - 1] = 0;
  check_system(answer.answer != TcpWelcome::Answer::somebody_missing, "tcp_world: {}", answer.text);
  check(answer.answer == TcpWelcome::Answer::come_in && answer.size == place.size,
        "tcp_world: rank 0 at {} refused rank {}: {}", at, place.rank, answer.text);
  Seats seats(static_cast<std::size_t>(place.size));
  check_system(
      receive_all(socket, seats.data(), seats.size() * sizeof seats[0], until + kAnswerTime),
      "tcp_world: rank 0 was lost at the start");
  for (TcpSeat& s : seats) s.host[sizeof s.host - 1] = 0;
  return seats;
}

// The others: rank 0 first, then those with lower ranks; those with higher ones connect to this
// one.
void visit(const TcpPlace& place, double limit, Until until, TcpPeers& peers) {
  Socket up = connect_to(place.master, until);
  check_system(up.is_open(),
               "tcp_world: rank {} found nobody at {} within {} s: rank 0 did not start, or has "
               "another MASTER_ADDR or MASTER_PORT",
               place.rank, place.master.text(), limit);
  Socket listener = listen_at({own_end(up).host, 0}, place.size);
  const TcpHello hello = own_hello(place, own_end(listener).port);
  const Seats seats = ask_rank_0(place, up, hello, until);
  peers.sockets[0] = std::move(up);
  for (int r = 1; r < place.rank; ++r) {
    const TcpSeat& seat = seats[static_cast<std::size_t>(r)];
    Socket s = connect_to({seat.host, static_cast<int>(seat.port)}, until);
    check_system(s.is_open() && send_all(s, &hello, sizeof hello, until),
                 "tcp_world: rank {} could not connect to rank {} within {} s", place.rank, r,
                 limit);
    peers.sockets[static_cast<std::size_t>(r)] = std::move(s);
  }
  TcpLobby lobby(std::move(listener), place, place.rank + 1, false);
  check_system(lobby.wait(until), "tcp_world: {} did not connect to rank {} within {} s",
               lobby.missing(), place.rank, limit);
  for (auto& [rank, guest] : lobby.guests())
    peers.sockets[static_cast<std::size_t>(rank)] = std::move(guest.socket);
  peers.processors = processors_at(seats[static_cast<std::size_t>(place.rank)]);
}

}  // namespace

TcpPlace tcp_place() {
  TcpPlace place;
  const std::optional<int> rank = variable("RANK"), size = variable("WORLD_SIZE");
  check(rank && size,
        "tcp_world: RANK and WORLD_SIZE must be set; scripts/launch.sh -n RANKS PROGRAM sets them");
  place.rank = *rank;
  place.size = *size;
  if (const char* host = std::getenv("MASTER_ADDR")) place.master.host = host;
  if (const auto port = variable("MASTER_PORT")) place.master.port = *port;
  if (const char* token = std::getenv("WEFT_TOKEN")) place.token = token;
  return place;
}

bool has_tried_to_connect() { return has_tried; }

TcpPeers connect_ranks(const TcpPlace& place, double timeout_s) {
  has_tried = true;
  check(place.size >= 1 && place.rank >= 0 && place.rank < place.size,
        "tcp_world: RANK must be below WORLD_SIZE {}, got {}", place.size, place.rank);
  check(place.master.port > 0 && place.master.port < 65536,
        "tcp_world: MASTER_PORT must be 1 to 65535, got {}", place.master.port);
  check(place.token.size() < sizeof TcpHello::token,
        "tcp_world: WEFT_TOKEN must have at most {} characters, got {}", sizeof TcpHello::token - 1,
        place.token.size());
  check(
      !place.token.empty() || is_loopback(place.master.host),
      "tcp_world: WEFT_TOKEN must be set, to a secret that all ranks know, when rank 0 listens at "
      "{}: anybody could connect",
      place.master.text());
  const double limit = std::max(timeout_s, kLeastSeconds);
  const Until until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(limit));
  TcpPeers peers;
  peers.sockets.resize(static_cast<std::size_t>(place.size));
  if (place.size == 1)
    peers.processors = allowed_processors();
  else if (place.rank == 0)
    receive_guests(place, limit, until, peers);
  else
    visit(place, limit, until, peers);
  return peers;
}

}  // namespace weft::distributed
