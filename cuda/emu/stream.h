#pragma once
#include <functional>

namespace weft::emu {

/// Appends work to a stream of the emulated driver. Device memory is accessible while it runs.
void submit(void* stream, std::function<void()> work);

/// Called by work: advances the clock of events.
void pass_time(double ms);

}  // namespace weft::emu
