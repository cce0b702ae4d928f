#include "weft/distributed/placed.h"

#include "weft/core/error.h"
#include "weft/nn/fp8.h"

namespace weft::distributed {

void check_all_placed(const ShardFiles& files, const nn::GptConfig& config,
                      const std::set<std::string>& placed, const std::string& where) {
  for (const std::string& name : files.names()) {
    const bool spare = nn::is_fp8_state(name) || (config.tied() && name == "head.weight");
    check(spare || placed.contains(name), "{} has no place for the tensor {} of this model", where,
          name);
  }
}

}  // namespace weft::distributed
