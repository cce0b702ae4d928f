#include "weft/core/state_dict.h"

#include "weft/core/error.h"

namespace weft {

StateDict with_prefix(const StateDict& state, const std::string& prefix) {
  StateDict out;
  for (const auto& [name, tensor] : state) out.emplace(prefix + name, tensor);
  return out;
}

StateDict without_prefix(const StateDict& state, const std::string& prefix) {
  StateDict out;
  for (const auto& [name, tensor] : state)
    if (name.starts_with(prefix)) out.emplace(name.substr(prefix.size()), tensor);
  check(!out.empty(), "without_prefix: a name must begin with '{}', got {}", prefix,
        state.empty() ? "no names" : "'" + state.begin()->first + "' and others");
  return out;
}

StateDict renamed(const StateDict& state,
                  const std::vector<std::pair<std::string, std::string>>& pairs) {
  StateDict all = state;
  for (const auto& [from, to] : pairs) {
    check(!from.empty(), "renamed: the text to replace must not be empty");
    StateDict out;
    bool occurs = false;
    for (const auto& [name, tensor] : all) {
      std::string fresh = name;
      for (std::size_t at = fresh.find(from); at != fresh.npos;
           at = fresh.find(from, at + to.size())) {
        fresh.replace(at, from.size(), to);
        occurs = true;
      }
      check(out.emplace(fresh, tensor).second,
            "renamed: every entry needs its own name, got '{}' twice after '{}' became '{}'", fresh,
            from, to);
    }
    check(occurs, "renamed: '{}' must occur in a name, got none", from);
    all = std::move(out);
  }
  return all;
}

}  // namespace weft
