#include "weft/distributed/messages.h"

#include <cstring>

namespace weft::distributed {

void Note::set_text(const std::string& s) {
  std::strncpy(text, s.c_str(), sizeof text - 1);
  text[sizeof text - 1] = 0;
}

Messages::~Messages() = default;

int Messages::tag(Lane lane, std::int64_t group, std::int64_t call) const {
  // Equal tags of distant calls are harmless: messages of a pair and a lane keep their order.
  const std::int64_t part = largest_tag() / (2 * kLanes);
  const std::int64_t number = call < 0 ? group % part : (group * 4099 + call) % part;
  return static_cast<int>((2 * number + (call < 0)) * kLanes) + static_cast<int>(lane);
}

}  // namespace weft::distributed
