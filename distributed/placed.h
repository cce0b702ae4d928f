#pragma once
#include <set>
#include <string>

#include "weft/distributed/shard_files.h"
#include "weft/nn/gpt_config.h"

namespace weft::distributed {

/// Of a model whose parameters `placed` go into a file of another program: throws Error that names
/// a tensor for which that file has no place, since a weight that is left out changes what the
/// model computes. Scales of FP8 and the second name of a tied head may be left out. `where` starts
/// the message: "hf: mixtral".
void check_all_placed(const ShardFiles& files, const nn::GptConfig& config,
                      const std::set<std::string>& placed, const std::string& where);

}  // namespace weft::distributed
