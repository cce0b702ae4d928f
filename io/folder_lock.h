#pragma once
#include <string>
#include <string_view>

namespace weft::io {

/// Reserves a folder for one owner with a lock on FOLDER/lock, which the system releases when the
/// process ends for any reason. The file stays and names the last owner. Other machines see the
/// lock where the file system forwards it, as NFS does; log_line() warns where it does not.
class FolderLock {
 public:
  /// Takes the lock if it is free, in this process and in others.
  /// Throws FileError when the file cannot be created.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// "" for the owner, else a description of the owner: "process 4711 on host 'a'".
  const std::string& holder() const { return holder_; }

 private:
  int fd_ = -1;
  std::string holder_;
};

/// Whether the device MAJOR:MINOR is mounted so that only this machine sees its locks. `mountinfo`
/// is the text of /proc/self/mountinfo.
bool locks_stay_local(std::string_view mountinfo, std::string_view device);

}  // namespace weft::io
