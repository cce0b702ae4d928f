#pragma once

namespace weft::train {

/// While one of these lives, the first Ctrl-C (or SIGTERM, or SIGHUP of a closed terminal) only
/// sets a flag; the second one ends the process. Ranks that are threads have one each. The last one
/// puts back what was there before, and forgets the interrupt.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
};
bool interrupted();

/// From now on a standard output or error that is closed, or whose reader has left, costs its lines
/// and nothing else.
void outlive_readers();

}  // namespace weft::train
