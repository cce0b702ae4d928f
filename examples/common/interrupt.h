#pragma once

namespace weft::train {

/// From now on the first Ctrl-C (or SIGTERM) only sets a flag; the second one ends the process.
void catch_interrupts();
bool interrupted();

}  // namespace weft::train
