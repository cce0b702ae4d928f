#pragma once
#include <functional>

namespace weft::emu {

/// Appends work to a stream of the emulated driver. Device memory is accessible while it runs.
void submit(void* stream, std::function<void()> work);
/// The same for work that waits for other ranks: a thread of the stream runs it, and all before it,
/// as soon as it can, as a GPU would.
void submit_promptly(void* stream, std::function<void()> work);
/// Called by such work: runs f, which waits, while the host and other streams go on. Device memory
/// is not accessible to f.
void while_others_run(const std::function<void()>& f);

/// Called by work: advances the clock of events.
void pass_time(double ms);

}  // namespace weft::emu
