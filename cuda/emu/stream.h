#pragma once
#include <functional>

namespace weft::emu {

/// Appends work to a stream of the emulated driver. Device memory is accessible while it runs.
void submit(void* stream, std::function<void()> work);

}  // namespace weft::emu
