#pragma once
#include <string_view>

namespace weft::emu {

/// Whether the driver finds code for a card: a list as in WEFT_CUDA_CODE, and 90 for compute
/// capability 9.0. sm_80 is machine code for the cards 8.x from 8.0 on, sm_90a for 9.0 only, and
/// compute_80 is PTX for every later card.
bool has_code(std::string_view list, int capability);

}  // namespace weft::emu
