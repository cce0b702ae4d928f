#include "weft/distributed/tcp_lobby.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr int kMostLines = 8;  // about refused connections

// Takes the same time whatever differs.
bool is_same_token(const char (&a)[128], const std::string& token) {
  char b[128] = {};
  std::copy(token.begin(), token.end(), b);
  unsigned char differs = 0;
  for (std::size_t i = 0; i < sizeof b; ++i)
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  return differs == 0;
}

bool begins_well(const TcpHello& hello, std::size_t came) {
  return std::memcmp(hello.magic, kTcpMagic, std::min(came, sizeof kTcpMagic)) == 0;
}

}  // namespace

TcpLobby::TcpLobby(Socket listener, const TcpPlace& place, int first, bool welcomes)
    : listener_(std::move(listener)), place_(place), first_(first), welcomes_(welcomes) {}

std::string TcpLobby::missing() const {
  std::string list;
  int many = 0;
  for (int r = first_; r < place_.size; ++r)
    if (!guests_.contains(r)) list += message("{}{}", many++ ? ", " : "", r);
  return message("rank{} {}", many > 1 ? "s" : "", list);
}

bool TcpLobby::wait(Until until) {
  std::vector<pollfd> polled;
  const auto all = [&] { return static_cast<int>(guests_.size()) == place_.size - first_; };
  while (!all()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    polled.clear();
    const auto add = [&](const Socket& s) { polled.push_back({s.fd(), POLLIN, 0}); };
    add(listener_);
    for (const Stranger& s : strangers_) add(s.socket);
    if (welcomes_)
      for (const auto& [rank, guest] : guests_) add(guest.socket);
    if (::poll(polled.data(), polled.size(), milliseconds_to(until)) <= 0) continue;
    // A guest is silent until it is welcome.
    if (welcomes_)
      std::erase_if(guests_, [](const auto& g) {
        char byte = 0;
        return receive_some(g.second.socket, &byte, 1) != 0;
      });
    std::erase_if(strangers_, [this](Stranger& s) { return !hears(s); });
    if (polled[0].revents) accept();
  }
  return true;
}

void TcpLobby::accept() {
  const auto most = static_cast<std::size_t>(place_.size) + 64;
  Socket socket = accept_from(listener_);
  if (!socket.is_open()) return;
  if (strangers_.size() >= most) strangers_.pop_front();
  strangers_.push_back({std::move(socket), {}, 0});
}

// Whether it remains a stranger, of whom more may come.
bool TcpLobby::hears(Stranger& s) {
  const std::int64_t n =
      receive_some(s.socket, reinterpret_cast<char*>(&s.hello) + s.came, sizeof s.hello - s.came);
  if (n < 0) return false;
  s.came += static_cast<std::size_t>(n);
  if (!begins_well(s.hello, s.came)) {
    refuse(s, "it is no rank of Weft");
    return false;
  }
  if (s.came < sizeof s.hello) return true;
  if (const std::string why = refusal(s.hello); !why.empty()) {
    refuse(s, why);
    return false;
  }
  const int rank = s.hello.rank;
  guests_[rank] = {std::move(s.socket), s.hello};
  return false;
}

// Somebody without the token learns nothing else.
std::string TcpLobby::refusal(const TcpHello& hello) const {
  if (hello.version != kTcpVersion) return "it is another version of Weft";
  if (!is_same_token(hello.token, place_.token)) return "its WEFT_TOKEN is another one";
  if (hello.size != place_.size)
    return message("its WORLD_SIZE is {} and not {}", hello.size, place_.size);
  if (hello.rank < first_ || hello.rank >= place_.size)
    return message("its RANK {} is not in {} to {}", hello.rank, first_, place_.size - 1);
  if (guests_.contains(hello.rank)) return message("another process is rank {}", hello.rank);
  return "";
}

void TcpLobby::refuse(const Stranger& s, const std::string& why) {
  if (lines_++ < kMostLines)
    log_line(message("tcp: rank {} refused a connection from {}: {}", place_.rank,
                     other_end(s.socket).text(), why));
  if (!welcomes_) return;
  auto answer = with_magic<TcpWelcome>();
  answer.answer = TcpWelcome::Answer::refused;
  why.copy(answer.text, sizeof answer.text - 1);
  send_some(s.socket, &answer, sizeof answer);
}

}  // namespace weft::distributed
