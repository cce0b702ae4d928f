#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "weft/distributed/tcp_connect.h"
#include "weft/distributed/tcp_connection.h"

namespace weft::distributed {

/// Messages over TCP: a connection for each pair of ranks.
class TcpMessages : public Messages {
 public:
  /// Connects the ranks; throws as connect_ranks().
  TcpMessages(const TcpPlace& place, double timeout_s);
  ~TcpMessages() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(connections_.size()); }
  int processors() const override { return processors_; }
  int largest_tag() const override { return (1 << 30) - 1; }
  void send(int to, int tag, const void* data, std::int64_t bytes, int batch) override;
  void receive(int from, int tag, void* data, std::int64_t bytes, int batch) override;
  void progress() override { pump(0); }
  bool has_moved(int queue) override;
  int under_way(int batch) const override { return counts_.batch[batch]; }
  bool waits_for(int queue, int rank) const override;
  const std::string& trouble(int queue) const override { return counts_.of[queue].trouble; }
  void abandon(int queue) override;
  void tell(int to, const Note& note) override;
  bool hear(Note& note) override;
  void finish() override;
  [[noreturn]] void abort(int status) override;

 private:
  struct Own {  // of a message to itself
    int tag = 0;
    const char* from = nullptr;
    char* to = nullptr;
    std::int64_t bytes = 0;
    int batch = 0;
  };
  void to_itself(const Own& own);
  void pump(int wait_ms);

  const int rank_;
  int processors_ = 1;
  TcpConnection::Counts counts_;
  std::vector<std::unique_ptr<TcpConnection>> connections_;  // by rank; null for its own
  std::deque<Own> own_;
  std::deque<Note> notes_;
};

}  // namespace weft::distributed
