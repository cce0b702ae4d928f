#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::emu {

using Bytes = std::vector<char>;

/// Where the ranks of an imitated communicator meet: files in a folder, so that ranks may be
/// threads or processes. The last one to leave removes it.
class Board {
 public:
  /// The path of a new folder.
  static std::string make();
  Board(std::string folder, int rank, int size);
  /// What all have shown, in the order of ranks; nothing when given up.
  std::vector<Bytes> meet(const Bytes& own);
  void send(int to, const Bytes& bytes);
  Bytes receive(int from);
  void leave();
  /// Whoever waits here goes on, without what it waited for. Another thread may call it.
  void give_up();

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void put(const std::string& name, const Bytes& bytes) const;
  bool wait(const std::string& name, Bytes& bytes) const;

  const std::string folder_;
  const int rank_, size_;
  std::atomic<bool> given_up_{false};
  std::int64_t round_ = 0;
  std::vector<std::int64_t> sent_, received_;  // by rank
};

}  // namespace weft::emu
