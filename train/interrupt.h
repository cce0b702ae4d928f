#pragma once

namespace weft::train {

/// From now on the first Ctrl-C (or SIGTERM, or SIGHUP of a closed terminal) only sets a flag; the
/// second one ends the process.
void catch_interrupts();
bool interrupted();
/// When a run has stopped for it: another one may begin.
void forget_interrupt();

/// From now on a standard output or error that is closed, or whose reader has left, costs its lines
/// and nothing else.
void outlive_readers();

}  // namespace weft::train
