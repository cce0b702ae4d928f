#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "weft/io/file.h"
#include "weft/io/folder_lock.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::folder_lock_test {
using test::error_of;

namespace {

std::string process(pid_t pid) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return "process " + std::to_string(pid) + " on host '" + host + "'";
}

}  // namespace

TEST_CASE("folder lock: one owner at a time") {
  const test::TempFolder folder;
  auto first = std::make_unique<io::FolderLock>(folder.path());
  CHECK(first->holder() == "");
  CHECK(io::read_file(folder / "lock") == process(::getpid()) + "\n");
  {
    const io::FolderLock second(folder.path());
    CHECK(second.holder() == process(::getpid()));
  }
  CHECK(io::FolderLock(folder.path()).holder() == process(::getpid()));  // still the first owner's
  first.reset();
  CHECK(io::FolderLock(folder.path()).holder() == "");
  CHECK(error_of([&] { io::FolderLock(folder / "none"); }) ==
        "lock: cannot open '" + folder / "none/lock" + "': No such file or directory");
}

TEST_CASE("folder lock: a killed owner releases it") {
  const test::TempFolder folder;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const io::FolderLock lock(folder.path());
    const char taken = lock.holder().empty();
    if (::write(ready[1], &taken, 1) == 1) ::pause();
    ::_exit(1);
  }
  char taken = 0;
  REQUIRE(::read(ready[0], &taken, 1) == 1);
  CHECK(taken == 1);
  CHECK(io::FolderLock(folder.path()).holder() == process(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(io::FolderLock(folder.path()).holder() == "");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("folder lock: mounts whose locks are local to one machine are detected") {
  const std::string mounts =
      "21 27 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
      "90 27 0:50 / /a rw shared:1 - nfs server:/a rw,vers=3,local_lock=none,addr=1\n"
      "91 27 0:51 / /b rw shared:1 - nfs server:/b rw,vers=3,nolock,local_lock=all,addr=1\n"
      "92 27 0:52 / /c rw - nfs4 server:/c rw,vers=4.2,local_lock=none\n"
      "93 27 0:53 / /d rw - nfs server:/d rw,vers=3,local_lock=posix\n"
      "94 27 0:54 / /nolock rw - ext4 /dev/nolock rw";
  const auto local = [&](const char* device) { return io::locks_stay_local(mounts, device); };
  CHECK(local("0:51"));
  CHECK(local("0:53"));
  for (const char* device : {"0:19", "0:50", "0:52", "0:54", "0:5", "8:1"}) {
    CAPTURE(device);
    CHECK_FALSE(local(device));
  }
}

}  // namespace weft::folder_lock_test
