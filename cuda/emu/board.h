#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::emu {

using Bytes = std::vector<char>;

/// Rendezvous of the ranks of an emulated communicator: files in a folder, so that ranks may be
/// threads or processes. The last rank to leave removes the folder.
class Board {
 public:
  /// Creates a folder and returns its path.
  static std::string make();
  Board(std::string folder, int rank, int size);
  /// Exchanges `own` with all ranks and returns the data of all, in rank order; empty after
  /// abort(). The kernel of an aborted rank goes through its remaining steps without data: its
  /// peers receive zeros in place of what it had still to pass on, and do not notice.
  std::vector<Bytes> exchange(const Bytes& own);
  /// The same for a rank that does not take part until abort().
  void hang(const Bytes& own);
  void send(int to, const Bytes& bytes);
  Bytes receive(int from);
  void leave();
  /// Wakes every thread that waits here; the waits return without data. Any thread may call it.
  void abort();

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void put(const std::string& name, const Bytes& bytes) const;
  bool wait(const std::string& name, Bytes& bytes) const;
  void pass_zeros(std::size_t bytes);

  const std::string folder_;
  const int rank_, size_;
  std::atomic<bool> aborted_{false};
  std::int64_t round_ = 0;
  std::vector<std::int64_t> sent_, received_;  // by rank
};

}  // namespace weft::emu
