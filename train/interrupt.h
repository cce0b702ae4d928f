#pragma once

namespace weft::train {

/// While an instance exists, the first Ctrl-C (or SIGTERM, or SIGHUP from a closed terminal) only
/// sets a flag; the second Ctrl-C or SIGTERM ends the process. Each rank that is a thread has its
/// own instance. The last one to be destroyed restores the previous handlers and clears the flag.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
};
bool interrupted();

/// If standard output or error is closed, or its reader exits, only the output is lost. A write
/// beyond the limit of a file's size fails and ends no process.
void outlive_readers();

}  // namespace weft::train
