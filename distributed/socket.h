#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace weft::distributed {

/// A TCP socket: non-blocking, closed on exec and by the destructor, with TCP_NODELAY.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Socket& operator=(Socket&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Socket() { close(); }
  void close();
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A host, by name or by an address of IPv4 or IPv6, and a port.
struct Endpoint {
  std::string host;
  int port = 0;
  /// "127.0.0.1:29500" or "[::1]:29500"
  std::string text() const;
};
/// Whether only the own machine reaches this host.
bool is_loopback(const std::string& host);

using Until = std::chrono::steady_clock::time_point;

/// Listens at one of the host's addresses; port 0 takes a free one. Throws Error (Fault::system) on
/// an unknown host and on a port in use.
Socket listen_at(const Endpoint& at, int waiting);
/// A waiting connection; not open if there is none.
Socket accept_from(const Socket& listener);
/// Connects. Until the deadline it tries again while nobody listens there or the host's name is
/// unknown. Returns a closed socket if nobody listens by then. Throws Error (Fault::system) if the
/// name is still unknown.
Socket connect_to(const Endpoint& to, Until until);
/// This side's address and the other's.
Endpoint own_end(const Socket& socket);
Endpoint other_end(const Socket& socket);

/// Receives or sends at most `bytes` bytes without waiting: how many; 0: none now; -1: the
/// connection is closed.
std::int64_t receive_some(const Socket& socket, void* data, std::size_t bytes);
std::int64_t send_some(const Socket& socket, const void* data, std::size_t bytes);
/// The same for exactly `bytes` bytes, which it waits for. False if the connection was closed or
/// the time is over.
bool receive_all(const Socket& socket, void* data, std::size_t bytes, Until until);
bool send_all(const Socket& socket, const void* data, std::size_t bytes, Until until);

/// Milliseconds until then, at least 0, for poll().
int milliseconds_to(Until until);

}  // namespace weft::distributed
