#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace weft::test {

/// A simulated disk that keeps only what was synced. While an object exists, fsync() in this
/// process marks a file's contents or a folder's names as durable; everything under `root` is
/// durable at the start. The library does not know about it: a program with power_cut.cpp replaces
/// fsync() by a function that does only this.
class PowerCut {
 public:
  explicit PowerCut(std::string root);
  ~PowerCut();
  PowerCut(const PowerCut&) = delete;
  PowerCut& operator=(const PowerCut&) = delete;

  /// Cuts the power: what is not durable is lost. With a nonzero seed some files and folders keep
  /// their newer state, as on a disk that writes back on its own.
  void cut(std::uint64_t seed = 0);

  /// The effect of this process's fsync().
  void synced(int fd);

 private:
  struct Node {
    bool is_folder = false;
    int handle = -1;                     ///< keeps the inode number from being reused
    std::string data;                    ///< durable content of a file
    std::map<std::string, ino_t> names;  ///< durable names in a folder
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

// Other faults of this program's own system calls.

/// renameat2() refuses to exchange names, as on NFS and FUSE.
void refuse_exchange(bool on);
/// pread() fails with this error after `after` calls; 0 restores it.
void fail_reads(int error, int after = 0);
/// Bytes that pread() has read in this process.
std::int64_t bytes_read();
/// Entries named "busy" cannot be removed.
void refuse_removal(bool on);

}  // namespace weft::test
