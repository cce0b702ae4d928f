#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "weft/distributed/messages.h"
#include "weft/distributed/socket.h"

namespace weft::distributed {

/// What precedes each message on a connection.
struct TcpFrame {
  /// small: a message that the receiver may keep until it is expected. offer, accept, large: a
  /// longer one, whose bytes leave when the receiver has said where they go. note: a Note.
  enum class Kind : std::int32_t { small, offer, accept, large, note };
  Kind kind = Kind::small;
  std::int32_t tag = 0;
  std::int64_t id = 0;     ///< of an offer; its sender numbers them
  std::int64_t bytes = 0;  ///< of the message; of an accept 0
};

/// Longest message that is sent before it is expected.
inline constexpr std::int64_t kTcpSmall = 64 << 10;

/// The connection between this rank and one other: sends messages and notes in order, and finds the
/// memory for those that come. Sizes that do not match what this rank expects end the connection or
/// become trouble(); nothing is allocated by a size that a frame gives, except small messages.
class TcpConnection {
 public:
  /// Counts of what is pending, shared by the connections of a rank.
  struct Counts {
    int batch[Messages::kBatches * Messages::kQueues] = {};
    struct Queue {
      bool moved = false;
      std::string trouble;
    } of[Messages::kQueues];
    Queue& of_batch(int b) { return of[b / Messages::kBatches]; }
  };

  TcpConnection(Socket socket, int peer, Counts& counts);

  void send(int tag, const void* data, std::int64_t bytes, int batch);
  void receive(int tag, void* data, std::int64_t bytes, int batch);
  void tell(const Note& note);
  /// Sends and receives what it can without waiting. Notes that came go to `notes`; so does one of
  /// Kind::lost when the connection ends.
  void pump(std::deque<Note>& notes);
  /// Whether a message of the queue is pending.
  bool is_busy(int queue) const;
  bool has_output() const { return !out_.empty(); }
  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.fd(); }
  /// Forgets pending messages of the queue. Memory given to send() and receive() for them is not
  /// used again.
  void abandon(int queue);
  /// Says that nothing more will be sent.
  void end_output();

 private:
  struct Sent {
    std::string head;            // frame, and what follows it if that is small
    const char* data = nullptr;  // what follows if it is large
    std::int64_t bytes = 0;
    int batch = -1;         // -1: not counted
    std::int64_t done = 0;  // bytes of both
  };
  struct Expected {
    int tag = 0;
    char* data = nullptr;
    std::int64_t bytes = 0;
    int batch = 0;
    std::int64_t id = -1;  // of the accepted offer
  };
  struct Arrived {
    TcpFrame frame;
    std::string data;  // of a small message
  };
  struct Offered {
    std::int64_t id = 0;
    const char* data = nullptr;
    std::int64_t bytes = 0;
    int batch = 0;
  };

  void write();
  void read();
  bool fill();
  void take(const TcpFrame& frame);
  bool receive_body();
  void end_message();
  void meet(const Expected& expected, const Arrived& arrived);
  void accept(const Expected& expected, std::int64_t id);
  void ended(int batch);
  void close(const char* why);

  Socket socket_;
  const int peer_;
  Counts& counts_;
  std::deque<Sent> out_;
  std::deque<Expected> expected_;  // not yet matched, in order
  std::deque<Expected> accepted_;  // offers whose bytes are to come
  std::deque<Arrived> arrived_;    // not yet expected, in order
  std::deque<Offered> offered_;
  std::int64_t next_id_ = 0;
  std::deque<Note> heard_;
  bool has_abandoned_ = false, is_deaf_ = false;  // deaf: the other side receives nothing more

  std::vector<char> buffer_;  // bytes begin_ to end_ were received and not yet read
  std::size_t begin_ = 0, end_ = 0;
  // The message that is being received, after its frame.
  bool in_message_ = false;
  TcpFrame frame_;
  std::string own_;             // its memory, if not that of `into_`
  Expected into_{.batch = -1};  // what expects it; batch -1: nothing
  char* target_ = nullptr;      // null: is thrown away
  std::int64_t left_ = 0;
};

}  // namespace weft::distributed
