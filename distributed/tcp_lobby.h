#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "weft/distributed/socket.h"
#include "weft/distributed/tcp_connect.h"
#include "weft/distributed/tcp_hello.h"

namespace weft::distributed {

/// Where a rank waits for others to connect. Lets in those that know the job's token and have a
/// rank of their own; others are refused. Nobody can make it wait longer or allocate more.
class TcpLobby {
 public:
  struct Guest {
    Socket socket;
    TcpHello hello;
  };

  /// For ranks `first` and higher. With `welcomes`, refused ranks are told why, and one that hangs
  /// up counts as missing again.
  TcpLobby(Socket listener, const TcpPlace& place, int first, bool welcomes);
  /// Whether all came before then.
  bool wait(Until until);
  std::map<int, Guest>& guests() { return guests_; }
  /// "rank 2" or "ranks 2, 3"
  std::string missing() const;

 private:
  struct Stranger {
    Socket socket;
    TcpHello hello;
    std::size_t came = 0;
  };

  void accept();
  bool hears(Stranger& s);
  std::string refusal(const TcpHello& hello) const;
  void refuse(const Stranger& s, const std::string& why);

  const Socket listener_;
  const TcpPlace& place_;
  const int first_;
  const bool welcomes_;
  std::deque<Stranger> strangers_;
  std::map<int, Guest> guests_;
  int lines_ = 0;
};

}  // namespace weft::distributed
