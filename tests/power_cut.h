#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace weft::test {

/// A disk that keeps only what it was told to keep. While one lives, fsync() of this process marks
/// what a file holds, or which names a folder has, as durable; all under `root` is durable at
/// first. The library knows nothing of it: a program with power_cut.cpp has an fsync() of its own,
/// which does nothing else.
class PowerCut {
 public:
  explicit PowerCut(std::string root);
  ~PowerCut();
  PowerCut(const PowerCut&) = delete;
  PowerCut& operator=(const PowerCut&) = delete;

  /// The power goes: what is not durable is gone. With a seed other than 0 some files and some
  /// folders are as they were all the same, as a disk that writes on its own may have it.
  void cut(std::uint64_t seed = 0);

  /// What this process's fsync() does.
  void synced(int fd);

 private:
  struct Node {
    bool is_folder = false;
    int handle = -1;                     ///< keeps the inode's number from being used again
    std::string data;                    ///< durable content of a file
    std::map<std::string, ino_t> names;  ///< durable names of a folder
  };
  struct Image {
    bool is_folder = false;
    std::string data;
    std::map<std::string, Image> entries;
  };

  ino_t known(const std::string& path);
  void remember(ino_t number);
  void remember_all(const std::string& path);
  std::map<std::string, ino_t> names_now(ino_t number);
  Image image_of(ino_t number, std::mt19937_64* coin);
  void forget();

  std::string root_;
  std::map<ino_t, Node> nodes_;
};

// What else this program's own system calls can be told to do.

/// renameat2() refuses to exchange names, as on NFS and FUSE.
void refuse_exchange(bool on);
/// pread() fails with this error after so many calls; 0: no more.
void fail_reads(int error, int after = 0);
/// Entries named "busy" cannot be removed.
void refuse_removal(bool on);

}  // namespace weft::test
