#pragma once
// Ranks over TCP as threads of one process.
#include <chrono>
#include <string>

#include "weft/distributed/tcp_hello.h"
#include "weft/distributed/tcp_world.h"

namespace weft::distributed::tcp_test {

constexpr double kSeconds = 60;  // for what is expected to happen

inline Until soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

inline int free_port(const std::string& host = "127.0.0.1") {
  return own_end(listen_at({host, 0}, 1)).port;
}

inline TcpPlace place(int rank, int size, int port, const std::string& host = "127.0.0.1") {
  return {rank, size, {host, port}, "secret"};
}

inline TcpHello hello(int rank, int size, const std::string& token = "secret") {
  auto h = with_magic<TcpHello>();
  h.rank = rank;
  h.size = size;
  token.copy(h.token, sizeof h.token - 1);
  return h;
}

}  // namespace weft::distributed::tcp_test
