#include "weft/distributed/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kAgain{20};      // between attempts to connect
constexpr std::chrono::milliseconds kAskAgain{500};  // between questions for an unknown name
constexpr std::chrono::seconds kAttempt{5};          // for one; a host may have several addresses

struct Free {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

struct Addresses {
  std::unique_ptr<addrinfo, Free> list;
  int code;  ///< of getaddrinfo()
  const char* why() const { return gai_strerror(code); }
  /// A cluster may learn a host's name only when the host has started.
  bool may_come() const { return code == EAI_AGAIN || code == EAI_NONAME || code == EAI_NODATA; }
};

Addresses addresses_of(const Endpoint& e, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(e.host.c_str(), std::to_string(e.port).c_str(), &hints, &list);
  return {std::unique_ptr<addrinfo, Free>(list), code};
}

void check_known(const Endpoint& e, const Addresses& found) {
  check_system(found.code == 0, "tcp: host '{}' is unknown: {}", e.host, found.why());
}

Socket open(const addrinfo& a) {
  return Socket(::socket(a.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, a.ai_protocol));
}

void set(const Socket& s, int level, int option) {
  const int on = 1;
  setsockopt(s.fd(), level, option, &on, sizeof on);
}

// Small messages leave at once; a machine that vanished is noticed in the end.
void prepare(const Socket& s) {
  set(s, IPPROTO_TCP, TCP_NODELAY);
  set(s, SOL_SOCKET, SO_KEEPALIVE);
}

Endpoint endpoint_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {"?", 0};
  return {host, std::atoi(port)};
}

// Whether the socket can be read or written before then.
bool wait_for(const Socket& s, short events, Until until) {
  pollfd p{.fd = s.fd(), .events = events, .revents = 0};
  for (;;) {
    const int n = ::poll(&p, 1, milliseconds_to(until));
    if (n > 0) return true;
    if (n == 0 && Clock::now() >= until) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

bool connects(const Socket& s, const addrinfo& a, Until until) {
  if (::connect(s.fd(), a.ai_addr, a.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS && errno != EINTR) return false;
  if (!wait_for(s, POLLOUT, until)) return false;
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(s.fd(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string Endpoint::text() const {
  return message(host.find(':') == std::string::npos ? "{}:{}" : "[{}]:{}", host, port);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

int milliseconds_to(Until until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1000));
}

Socket listen_at(const Endpoint& at, int waiting) {
  const Addresses found = addresses_of(at, AI_PASSIVE);
  check_known(at, found);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found.list.get(); a; a = a->ai_next) {
    Socket s = open(*a);
    // Else a job could not start again for a minute after it has ended.
    if (s.is_open()) set(s, SOL_SOCKET, SO_REUSEADDR);
    if (s.is_open() && ::bind(s.fd(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::listen(s.fd(), waiting) == 0)
      return s;
    error = errno;
  }
  check_system(error != EADDRINUSE,
               "tcp: port {} of {} is in use, perhaps by another job; set another MASTER_PORT",
               at.port, at.host);
  check_system(false, "tcp: cannot listen at {}: {}", at.text(), std::strerror(error));
  return {};
}

Socket accept_from(const Socket& listener) {
  Socket s(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (s.is_open()) prepare(s);
  return s;
}

Socket connect_to(const Endpoint& to, Until until) {
  bool has_logged = false;
  for (;;) {
    const Addresses found = addresses_of(to, 0);
    if (!found.may_come() || Clock::now() >= until) check_known(to, found);
    if (found.code != 0 && !std::exchange(has_logged, true))
      log_line(message("tcp: host '{}' is not known yet ({}); trying again until the timeout",
                       to.host, found.why()));
    for (const addrinfo* a = found.list.get(); a; a = a->ai_next) {
      Socket s = open(*a);
      if (!s.is_open() || !connects(s, *a, std::min(until, Clock::now() + kAttempt))) continue;
      // Within one machine a connection to a port that nobody listens at may find itself.
      if (own_end(s).text() == other_end(s).text()) continue;
      prepare(s);
      return s;
    }
    if (found.code == 0 && Clock::now() >= until) return {};
    std::this_thread::sleep_for(found.code == 0 ? kAgain : kAskAgain);
  }
}

Endpoint own_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return {"?", 0};
  return endpoint_of(address, length);
}

Endpoint other_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return {"?", 0};
  return endpoint_of(address, length);
}

std::int64_t receive_some(const Socket& socket, void* data, std::size_t bytes) {
  const ssize_t n = ::recv(socket.fd(), data, bytes, MSG_DONTWAIT);
  if (n > 0) return n;
  return n < 0 && is_for_later(errno) ? 0 : -1;
}

std::int64_t send_some(const Socket& socket, const void* data, std::size_t bytes) {
  const ssize_t n = ::send(socket.fd(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return n;
  return is_for_later(errno) ? 0 : -1;
}

bool receive_all(const Socket& socket, void* data, std::size_t bytes, Until until) {
  for (std::size_t done = 0; done < bytes;) {
    const std::int64_t n = receive_some(socket, static_cast<char*>(data) + done, bytes - done);
    if (n < 0 || (n == 0 && !wait_for(socket, POLLIN, until))) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

bool send_all(const Socket& socket, const void* data, std::size_t bytes, Until until) {
  for (std::size_t done = 0; done < bytes;) {
    const std::int64_t n = send_some(socket, static_cast<const char*>(data) + done, bytes - done);
    if (n < 0 || (n == 0 && !wait_for(socket, POLLOUT, until))) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace weft::distributed
