#pragma once
#include <cstdint>
#include <cstring>

#include "weft/core/default_threads.h"

// What processes that connect over TCP say first. All sizes are fixed, so no message of a stranger
// makes this process allocate. The ranks of a job have one byte order: the version differs
// otherwise.
namespace weft::distributed {

inline constexpr char kTcpMagic[8] = {'w', 'e', 'f', 't', ' ', 't', 'c', 'p'};
inline constexpr std::uint32_t kTcpVersion = 1;

/// A rank introduces itself.
struct TcpHello {
  char magic[8] = {};
  std::uint32_t version = kTcpVersion;
  std::int32_t rank = 0, size = 0;
  std::uint32_t port = 0;  ///< where it listens
  char token[128] = {};
  char machine[64] = {};                               ///< equal for ranks of one machine
  std::uint64_t processors[kMaxProcessors / 64] = {};  ///< those that it may run on
};

/// Rank 0 answers.
struct TcpWelcome {
  enum class Answer : std::int32_t { come_in, refused, somebody_missing };
  char magic[8] = {};
  Answer answer = Answer::come_in;
  std::int32_t size = 0;
  char text[240] = {};  ///< why not
};

/// What follows a welcome, for each rank.
struct TcpSeat {
  char host[64] = {};
  std::uint32_t port = 0;
  std::int32_t processors = 1;  ///< its share by affinity
  std::int32_t neighbours = 1;  ///< ranks of its machine
};

template <class T>
T with_magic() {
  T t;
  std::memcpy(t.magic, kTcpMagic, sizeof kTcpMagic);
  return t;
}

}  // namespace weft::distributed
