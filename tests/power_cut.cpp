#include "weft/tests/power_cut.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace weft::test {
namespace {

std::mutex mutex;
PowerCut* active = nullptr;
std::atomic<bool> no_exchange{false}, no_removal{false};
std::atomic<int> read_error{0}, reads_left{0};
std::atomic<std::int64_t> bytes{0};

std::string path_of(int handle) { return "/proc/self/fd/" + std::to_string(handle); }

std::string content_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

PowerCut::PowerCut(std::string root) : root_(std::move(root)) {
  remember_all(root_);
  const std::lock_guard lock(mutex);
  active = this;
}

PowerCut::~PowerCut() {
  const std::lock_guard lock(mutex);
  active = nullptr;
  forget();
}

void PowerCut::forget() {
  for (const auto& [number, node] : nodes_) ::close(node.handle);
  nodes_.clear();
}

// A file that the disk has not seen yet has no durable contents.
ino_t PowerCut::known(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) throw std::runtime_error("no file " + path);
  Node& node = nodes_[s.st_ino];
  if (node.handle < 0) {
    node.is_folder = S_ISDIR(s.st_mode);
    node.handle = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  }
  return s.st_ino;
}

std::map<std::string, ino_t> PowerCut::names_now(ino_t number) {
  std::map<std::string, ino_t> names;
  const std::string folder = path_of(nodes_.at(number).handle);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names[entry.path().filename().string()] = known(entry.path().string());
  return names;
}

void PowerCut::remember(ino_t number) {
  const bool is_folder = nodes_.at(number).is_folder;
  if (is_folder) {
    std::map<std::string, ino_t> names = names_now(number);
    nodes_.at(number).names = std::move(names);
  } else {
    nodes_.at(number).data = content_of(path_of(nodes_.at(number).handle));
  }
}

void PowerCut::remember_all(const std::string& path) {
  const ino_t number = known(path);
  remember(number);
  if (nodes_.at(number).is_folder)
    for (const auto& [name, child] : names_now(number)) remember_all(path + "/" + name);
}

void PowerCut::synced(int fd) { remember(known(path_of(fd))); }

PowerCut::Image PowerCut::image_of(ino_t number, std::mt19937_64* coin) {
  const Node node = nodes_.at(number);
  const bool as_it_was = coin && (*coin)() % 2 == 0;
  Image image;
  image.is_folder = node.is_folder;
  if (node.is_folder)
    for (const auto& [name, child] : as_it_was ? names_now(number) : node.names)
      image.entries[name] = image_of(child, coin);
  else
    image.data = as_it_was ? content_of(path_of(node.handle)) : node.data;
  return image;
}

void PowerCut::cut(std::uint64_t seed) {
  namespace fs = std::filesystem;
  std::mt19937_64 coin(seed);
  const Image kept = image_of(known(root_), seed ? &coin : nullptr);
  for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry.path());
  const auto put = [](const auto& self, const Image& image, const std::string& path) -> void {
    if (!image.is_folder) {
      std::ofstream(path, std::ios::binary) << image.data;
      return;
    }
    fs::create_directories(path);
    for (const auto& [name, child] : image.entries) self(self, child, path + "/" + name);
  };
  put(put, kept, root_);
  forget();
  remember_all(root_);
}

void refuse_exchange(bool on) { no_exchange = on; }
void refuse_removal(bool on) { no_removal = on; }
void fail_reads(int error, int after) {
  reads_left = after;
  read_error = error;
}

std::int64_t bytes_read() { return bytes; }

}  // namespace weft::test

// The dynamic linker prefers a program's own functions to the C library's, in libraries as well.
extern "C" int fsync(int fd) {
  const std::lock_guard lock(weft::test::mutex);
  if (weft::test::active) weft::test::active->synced(fd);
  return 0;  // a real fsync takes milliseconds and would test nothing more
}

extern "C" int renameat2(int from, const char* old_path, int to, const char* new_path,
                         unsigned flags) noexcept {
  if (weft::test::no_exchange && (flags & RENAME_EXCHANGE)) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from, old_path, to, new_path, flags));
}

extern "C" ssize_t pread(int fd, void* data, size_t want, off_t offset) {
  if (weft::test::read_error != 0 && weft::test::reads_left-- <= 0) {
    errno = weft::test::read_error;
    return -1;
  }
  const ssize_t done = ::syscall(SYS_pread64, fd, data, want, offset);
  if (done > 0) weft::test::bytes += done;
  return done;
}

extern "C" int unlinkat(int folder, const char* path, int flags) noexcept {
  if (weft::test::no_removal && std::string_view(path).ends_with("busy")) {
    errno = EBUSY;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
