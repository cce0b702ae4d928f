#include "weft/io/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::io {
namespace {

std::string own_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return message("process {} on host '{}'", static_cast<std::int64_t>(::getpid()), host);
}

// The text written by the owner; on another machine it may take a while to appear.
std::string name_in(int fd) {
  char text[512];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  const std::string_view name(text, static_cast<std::size_t>(size > 0 ? size : 0));
  const std::size_t end = name.find('\n');
  return end == std::string_view::npos ? "another process" : std::string(name.substr(0, end));
}

void warn_if_local(int fd, const std::string& path) {
  struct stat s;
  if (::fstat(fd, &s) != 0) return;
  const std::string device = message("{}:{}", major(s.st_dev), minor(s.st_dev));
  std::string mounts;
  const int info = ::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);  // its size is unknown
  char piece[4096];
  for (ssize_t n; info >= 0 && (n = ::read(info, piece, sizeof piece)) > 0;)
    mounts.append(piece, static_cast<std::size_t>(n));
  if (info >= 0) ::close(info);
  if (locks_stay_local(mounts, device))
    log_line(
        message("lock: '{}' is on a file system whose locks only this machine sees: a run "
                "of another machine in this folder would not be noticed",
                path));
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw FileError("lock", "open", path, errno);
  // A lock of the open file description. The classic lock belongs to the process: it is lost when
  // any part of the process closes the file, and it does not exclude two owners in one process.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  int rc;
  while ((rc = ::fcntl(fd_, F_OFD_SETLK, &lock)) != 0 && errno == EINTR) {
  }
  if (rc == 0) {
    const std::string name = own_name() + "\n";
    // The name is only informative: a full disk must not refuse the lock.
    if (::ftruncate(fd_, 0) == 0) (void)!::pwrite(fd_, name.data(), name.size(), 0);
    warn_if_local(fd_, path);
  } else if (errno == EAGAIN || errno == EACCES) {
    holder_ = name_in(fd_);
  } else {
    log_line(message("lock: cannot lock '{}': {}; another run in this folder would not be noticed",
                     path, std::strerror(errno)));
  }
}

FolderLock::~FolderLock() { ::close(fd_); }

bool locks_stay_local(std::string_view mountinfo, std::string_view device) {
  // "36 35 98:0 / /mnt rw,noatime master:1 - nfs server:/x rw,vers=3,local_lock=all"
  while (!mountinfo.empty()) {
    const std::size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    const std::string line = " " + std::string(mountinfo.substr(0, end)) + " ";
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos || line.find(message(" {} ", device)) > dash) continue;
    const std::string_view options = std::string_view(line).substr(dash);
    const auto has = [&](std::string_view text) { return options.find(text) != options.npos; };
    return has(" - nfs") && (has("nolock") || has("local_lock=all") || has("local_lock=posix"));
  }
  return false;
}

}  // namespace weft::io
