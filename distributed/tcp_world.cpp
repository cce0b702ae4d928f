#include "weft/distributed/tcp_world.h"

#include "weft/distributed/message_world.h"
#include "weft/distributed/tcp_messages.h"

namespace weft::distributed {

std::unique_ptr<World> tcp_world(const WorldOptions& options) {
  return tcp_world(options, tcp_place());
}

std::unique_ptr<World> tcp_world(const WorldOptions& options, const TcpPlace& place) {
  return message_world("tcp", std::make_unique<TcpMessages>(place, options.timeout_s), options);
}

}  // namespace weft::distributed
