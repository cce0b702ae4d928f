#include "weft/distributed/messages.h"

#include <cstring>

namespace weft::distributed {

void Note::set_text(const std::string& s) {
  std::strncpy(text, s.c_str(), sizeof text - 1);
  text[sizeof text - 1] = 0;
}

Messages::~Messages() = default;

int Messages::tag(std::int64_t group, std::int64_t call) const {
  // Equal tags of distant calls are harmless: messages of a pair keep their order.
  const std::int64_t half = largest_tag() / 2;
  if (call < 0) return static_cast<int>(2 * (group % half) + 1);
  return static_cast<int>(2 * ((group * 4099 + call) % half));
}

}  // namespace weft::distributed
