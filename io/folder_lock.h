#pragma once
#include <string>
#include <string_view>

namespace weft::io {

/// Keeps a folder for one owner: a lock on FOLDER/lock, which the system drops when its process
/// ends, however it ends. The file stays and says who has it. Other machines see the lock where the
/// file system passes it on, as NFS does; log_line() tells where it does not.
class FolderLock {
 public:
  /// Takes the lock if nobody has it, in this process or another one.
  /// Throws FileError when the file cannot be made.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// "" for an owner, else who the owner is: "process 4711 on host 'a'".
  const std::string& holder() const { return holder_; }

 private:
  int fd_ = -1;
  std::string holder_;
};

/// Is the device MAJOR:MINOR mounted so that only this machine sees its locks? `mountinfo` is the
/// text of /proc/self/mountinfo.
bool locks_stay_local(std::string_view mountinfo, std::string_view device);

}  // namespace weft::io
