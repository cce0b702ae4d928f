#pragma once
#include <functional>

namespace weft::emu {

/// Appends work to a stream of the imitated driver. While it runs, device memory can be touched.
void give(void* stream, std::function<void()> work);

}  // namespace weft::emu
