#pragma once
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/messages.h"

namespace weft::distributed {

/// Messages over MPI: all that Weft uses of it. MPI does not tell that a process has ended: hear()
/// tells it of the ranks of this machine. The constructor initializes MPI unless the program
/// has done so; finish() finalizes it.
class MpiMessages : public Messages {
 public:
  /// Waits for every rank. If that takes longer than timeout_s (at least 10 s), calls `too_late`
  /// (or prints a line if it is null) and ends the process.
  explicit MpiMessages(double timeout_s, std::function<void()> too_late = {});
  ~MpiMessages() override;

  int rank() const override;
  int size() const override;
  int processors() const override;
  int largest_tag() const override;
  void send(int to, int tag, const void* data, std::int64_t bytes, int batch) override;
  void receive(int from, int tag, void* data, std::int64_t bytes, int batch) override;
  void progress() override;
  bool has_moved(int queue) override;
  int under_way(int batch) const override;
  bool waits_for(int queue, int rank) const override;
  const std::string& trouble(int queue) const override;
  void abandon(int queue) override;
  void tell(int to, const Note& note) override;
  bool hear(Note& note) override;
  /// Finalizes MPI if it was initialized here.
  void finish() override;
  /// From now on this process ends with MPI_Abort and a nonzero status, because the other ranks
  /// cannot be left waiting for it.
  void doom() override;
  /// Ends every rank.
  [[noreturn]] void abort(int status) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::distributed
